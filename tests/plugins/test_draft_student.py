"""Students made of parts of their teacher: each kind of cut, and what is left as it was."""

from __future__ import annotations

import json
from pathlib import Path

import golden
import pupils
import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.train.decoder import Decoder, Layer, read
from outrider.core.train.recipe import Text
from outrider.core.train.teacher import Teacher
from outrider.drafters.draft_model import student
from outrider.drafters.draft_model.student import Size, from_config, smaller

IDS = torch.tensor([5, 9, 13, 9, 5, 200, 13])
COUNTS = torch.ones(259)


@pytest.fixture
def teacher(tmp_path: Path) -> Teacher:
    return pupils.from_disk(toys.checkpoint(tmp_path / "big", layers=6))


def logits(model: Decoder, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model(ids, [Text(0, 0, len(ids))]).last)


def theirs(teacher: Teacher) -> torch.Tensor:
    return teacher.logits(teacher.read(IDS.tolist(), (teacher.info.layers,))[:, 0])


def test_all_layers_are_the_teacher_itself(teacher: Teacher) -> None:
    made = smaller(teacher, Size(layers=6), COUNTS)
    torch.testing.assert_close(logits(made.decoder), theirs(teacher), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("count", "kept"), [(0, (0, 5)), (1, (0,)), (3, (0, 2, 5)), (4, (0, 2, 3, 5))])
def test_layers_are_taken_evenly(teacher: Teacher, count: int, kept: tuple[int, ...]) -> None:
    made = smaller(teacher, Size(layers=count), COUNTS)
    assert made.layers == kept
    stored = load_file(Path(teacher.info.path) / "model.safetensors")
    ours = made.decoder.state_dict()
    for place, number in enumerate(kept):
        name = "self_attn.k_proj.weight"
        assert torch.equal(ours[f"model.layers.{place}.{name}"], stored[f"model.layers.{number}.{name}"])


def test_heads_and_neurons_that_write_nothing_are_not_missed(teacher: Teacher) -> None:
    """Of two groups of heads one is kept with its queries, and the neurons that do something."""
    folder = Path(teacher.info.path)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("o_proj.weight"):
            tensor[:, :16] = 0  # of the first group, two heads of 8
        if name.endswith("down_proj.weight"):
            tensor[:, 1::2] = 0
    save_file(tensors, folder / "model.safetensors")
    changed = pupils.from_disk(folder)
    made = smaller(changed, Size(layers=6, heads=1, inner=24), COUNTS).decoder
    assert (made.config["num_attention_heads"], made.config["num_key_value_heads"]) == (2, 1)
    assert made.config["intermediate_size"] == 24
    torch.testing.assert_close(logits(made), theirs(changed), atol=1e-5, rtol=1e-5)


def test_a_stream_that_is_only_turned_says_the_same(teacher: Teacher) -> None:
    """All of the cut but the loss of directions: norms in what reads, both sides of what lies between."""
    whole = read(Path(teacher.info.path))
    basis = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(1))).Q
    tensors = student._ends(whole, whole.spec, basis)
    size = Size(layers=6, heads=2, width=32, inner=48)
    for place, layer in enumerate(whole.model.layers):
        assert isinstance(layer, Layer)
        cut = student._Cut(layer, size, basis).tensors()
        tensors |= {f"model.layers.{place}.{name}": part for name, part in cut.items()}
    made = Decoder(whole.spec, whole.config)
    made.load_state_dict(made.state_dict() | tensors)
    torch.testing.assert_close(logits(made), theirs(teacher), atol=1e-4, rtol=1e-4)


def test_directions_that_nothing_lies_in_are_left_out(teacher: Teacher) -> None:
    """A model of 32 whose stream fills 20 directions is the same in a width of 20, up to the norm's eps."""
    folder = Path(teacher.info.path)
    tensors = load_file(folder / "model.safetensors")
    ways = torch.linalg.qr(torch.randn(32, 20, generator=torch.Generator().manual_seed(1))).Q  # [32, 20]
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor.fill_(1.0)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = ways @ ways.t() @ tensor
        elif "embed" in name or "lm_head" in name:
            tensors[name] = tensor @ ways @ ways.t()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    changed = pupils.from_disk(folder)
    made = smaller(changed, Size(layers=6, width=20), COUNTS)
    assert made.decoder.config["hidden_size"] == 20
    assert made.basis is not None and made.basis.shape == (32, 20)
    torch.testing.assert_close(logits(made.decoder), theirs(changed), atol=2e-3, rtol=1e-3)


def test_one_table_for_both_ends(teacher: Teacher, tmp_path: Path) -> None:
    made = smaller(teacher, Size(layers=2, tied=True), COUNTS).decoder
    assert made.lm_head is None
    made.save(tmp_path / "small", Path(teacher.info.path), torch.float32)
    loaded = pupils.from_disk(tmp_path / "small")
    torch.testing.assert_close(theirs(loaded), logits(made), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama_bias", "smollm3", "granite", "gemma3", "mistral_head_dim"])
def test_students_of_every_family_are_models_of_it(name: str, tmp_path: Path) -> None:
    """Whatever is cut, what is saved is read again; narrower where norms stand before the mixers alone."""
    teacher = pupils.from_disk(golden.FOLDER / name)
    ids = golden.tensors(name)["input_ids"][0]
    kv = teacher.spec.layers[0].mixer.kv_heads  # pyright: ignore[reportAttributeAccessIssue] - these have attention
    for number, width in enumerate((0, 40)):
        size = Size(layers=2, heads=kv // 2, width=width, inner=32)
        if width and name == "gemma3":
            with pytest.raises(ModelError, match="cannot be made narrower"):
                smaller(teacher, size, torch.ones(256))
            continue
        made = smaller(teacher, size, torch.ones(256)).decoder
        made.save(tmp_path / str(number), None, torch.float32)
        saved = golden.decoder(tmp_path / str(number), torch.float32, 48)
        torch.testing.assert_close(saved.run(ids, saved.new_cache(48)).logits, logits(made, ids), atol=1e-4, rtol=1e-4)


def test_a_student_from_a_config_is_fresh_and_has_the_teachers_tables(teacher: Teacher, tmp_path: Path) -> None:
    config = json.loads((Path(teacher.info.path) / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "intermediate_size": 20}
    file = tmp_path / "student.json"
    file.write_text(json.dumps(config))
    made = from_config(file, teacher, torch.Generator().manual_seed(1))
    again = from_config(file, teacher, torch.Generator().manual_seed(1))
    assert torch.equal(logits(made.decoder), logits(again.decoder))
    assert torch.equal(made.decoder.model.embed_tokens.weight, teacher.embedding())
    assert torch.equal(made.decoder.table, teacher.output())
    file.write_text(json.dumps(config | {"hidden_size": 16, "head_dim": 8}))
    narrow = from_config(file, teacher, torch.Generator().manual_seed(1)).decoder
    assert bool(logits(narrow).isfinite().all())
    file.write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(UsageError, match=r"300 tokens, big has 259"):
        from_config(file, teacher, torch.Generator())


def test_what_cannot_be_cut_is_told(teacher: Teacher) -> None:
    with pytest.raises(UsageError, match="A student of 9 layers cannot be made of 6"):
        smaller(teacher, Size(layers=9), COUNTS)
    with pytest.raises(UsageError, match="heads of a student cannot be 3"):
        smaller(teacher, Size(heads=3), COUNTS)
