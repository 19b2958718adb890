"""A decoder that gradients pass: logits are the engine's, gradients are true, what is saved is a model like any other."""

from __future__ import annotations

import json
from pathlib import Path

import golden
import pupils
import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import ModelError
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.blocks.rope import inverse_frequencies
from outrider.core.model.families.spec import RopeSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.train import decoder as decoders
from outrider.core.train import export
from outrider.core.train.recipe import Text
from outrider.core.train.sampled import engine, sample

FAMILIES = ("gemma3", "granite", "llama", "mistral", "qwen2", "qwen3", "smollm3")
OURS = [name for name in golden.NAMES if name in FAMILIES or name.startswith(("gemma3_", "llama_", "mistral_"))]
OTHERS = ["cohere2", "deepseek_v3", "gemma4_e", "gpt_oss", "lfm2", "nemotron_h", "olmo2", "phi3", "qwen3_next"]
CPU = WeightFormat(torch.float32, torch.device("cpu"))


def packed(lengths: list[int]) -> list[Text]:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [Text(end - length, end - length, end) for end, length in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize("name", OURS)
def test_logits_and_states_are_the_references_for_each_of_several_texts(name: str) -> None:
    model, known = decoders.read(golden.FOLDER / name), golden.tensors(name)
    ids = known["input_ids"][0]
    states = range(len(model.spec.layers) + 1)
    with torch.no_grad():
        made = model(torch.cat((ids[:5], ids, ids[:30])), packed([5, 48, 30]), states)
        logits = model.logits(made.last)
    for rows in (slice(5, 53), slice(53, 83)):
        count = rows.stop - rows.start
        golden.assert_close(logits[rows], known["logits"][0, :count], atol=golden.tolerance(name))
        for k in states:
            golden.assert_close(made.kept[k][rows], known[f"h.{k}"][0, :count], atol=1e-3)


@pytest.mark.parametrize("name", OURS)
def test_what_is_saved_is_loaded_with_equal_logits(name: str, tmp_path: Path) -> None:
    model, ids = decoders.read(golden.FOLDER / name), golden.tensors(name)["input_ids"][0]
    model.save(tmp_path, None, torch.float32)
    saved = golden.decoder(tmp_path, torch.float32, 48)
    whole = golden.decoder(golden.FOLDER / name, torch.float32, 48)
    torch.testing.assert_close(saved.run(ids, saved.new_cache(48)).logits, whole.run(ids, whole.new_cache(48)).logits)
    if name != "gemma3_nested":  # its names are those of a model with more around it
        stored = set(load_file(tmp_path / "model.safetensors"))
        assert stored == set(load_file(golden.FOLDER / name / "model.safetensors"))


@pytest.mark.parametrize("name", ["gemma3", "smollm3", "llama"])
def test_some_layers_alone_are_a_model_of_their_own(name: str, tmp_path: Path) -> None:
    """Also where layers are of several kinds, which the config counts by their place."""
    whole = decoders.read(golden.FOLDER / name)
    kept = [0, len(whole.spec.layers) - 1]
    some = decoders.read(golden.FOLDER / name, kept)
    assert some.spec.layers == tuple(whole.spec.layers[at] for at in kept)
    ids, texts = golden.tensors(name)["input_ids"][0], packed([48])
    along = decoders.Along(texts, ids.device)
    with torch.no_grad():
        x = whole.embed(ids)
        for at in kept:
            x = whole.model.layers[at](x, along)
        torch.testing.assert_close(some(ids, texts).last, x)
    some.save(tmp_path, None, torch.float32)
    saved = golden.decoder(tmp_path, torch.float32, 48)
    torch.testing.assert_close(saved.run(ids, saved.new_cache(48)).logits, whole.logits(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in OTHERS if name in golden.NAMES])
def test_other_models_are_refused_and_told_what_can_be_trained(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        decoders.read(golden.FOLDER / name)
    assert all(method in caught.value.hint for method in ("eagle", "medusa", "dflash"))
    assert "gradients" in caught.value.hint


def test_rounded_weights_make_a_student_and_are_not_trained_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.checkpoint(tmp_path)
    teacher = pupils.from_disk(tmp_path)
    assert decoders.of_target(teacher).spec == teacher.spec

    def rounded(path: Path):
        found = open_checkpoint(path)
        found.quantisation = "Q4_1"
        return found

    monkeypatch.setattr(decoders, "open_checkpoint", rounded)
    assert decoders.read(tmp_path).spec == teacher.spec
    with pytest.raises(ModelError, match="in Q4_1 only") as caught:
        decoders.of_target(teacher)
    assert "medusa" in caught.value.hint


@pytest.mark.parametrize("name", ["llama_bias", "gemma3", "qwen3"])
def test_gradients_are_true(name: str) -> None:
    """Along one direction through all weights, against the difference that a small step makes."""
    model = decoders.read(golden.FOLDER / name).double()
    ids, texts = golden.tensors(name)["input_ids"][0], packed([20, 28])
    luck = torch.Generator().manual_seed(1)
    weights = torch.randn(48, model.spec.vocab, generator=luck, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (model.logits(model(ids, texts).last) * weights).mean()

    loss().backward()
    ways = [torch.randn(part.shape, generator=luck, dtype=torch.float64) for part in model.parameters()]
    slope = 0.0
    for part, way in zip(model.parameters(), ways, strict=True):
        assert part.grad is not None and bool(part.grad.any())
        slope += float((part.grad * way).sum())
    found = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for part, way in zip(model.parameters(), ways, strict=True):
                part += step * way
            found.append(float(loss()))
    assert (found[0] - found[1]) / 2e-6 == pytest.approx(slope, rel=1e-6)


def test_a_head_that_a_file_holds_besides_is_the_one_that_counts(tmp_path: Path) -> None:
    toys.checkpoint(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    for equal in (False, True):
        (tmp_path / "config.json").write_text(json.dumps({**told, "tie_word_embeddings": True}))
        if equal:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
            save_file(tensors, tmp_path / "model.safetensors")
        model = decoders.read(tmp_path)
        assert model.config["tie_word_embeddings"] is equal
        assert torch.equal(model.table, tensors["lm_head.weight"])
        assert (model.lm_head is None) is equal


@pytest.mark.parametrize("known", [True, False])
def test_divisors_of_a_llama_3_are_said_as_others_understand_them(tmp_path: Path, known: bool) -> None:
    toys.checkpoint(tmp_path / "big")
    file = tmp_path / "big" / "config.json"
    told = json.loads(file.read_text())
    settings = {"factor": 8.0, **export.LLAMA3}
    plain, scaled = RopeSpec(5e5, 8), RopeSpec(5e5, 8, "llama3", tuple(settings.items()))
    base, turned = (inverse_frequencies(rope, 256, 256)[0] for rope in (plain, scaled))
    divisors = (base / turned).tolist() if known else [1.0, 1.0, 2.0, 8.0]
    file.write_text(json.dumps({**told, "rope_theta": 5e5, "rope_freqs": divisors}))
    model = decoders.read(tmp_path / "big")
    model.save(tmp_path / "copy", None, torch.float32)
    made = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert ("rope_freqs" in made) is not known
    assert made.get("rope_scaling") == ({"rope_type": "llama3", **settings} if known else None)
    ids = torch.arange(100, 200)
    saved = golden.decoder(tmp_path / "copy", torch.float32, 200)
    with torch.no_grad():
        logits = model.logits(model(ids, packed([100])).last)
    torch.testing.assert_close(saved.run(ids, saved.new_cache(200)).logits, logits, atol=1e-4, rtol=1e-4)


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    toys.checkpoint(tmp_path / "big")
    decoders.read(tmp_path / "big").save(tmp_path / "copy", tmp_path / "big")
    first, second = (pupils.from_disk(tmp_path / name).info for name in ("big", "copy"))
    assert second.tokenizer == first.tokenizer
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (tmp_path / "copy" / "tokenizer_config.json").exists()


def test_answers_are_drawn_by_the_models_law(tmp_path: Path) -> None:
    toys.checkpoint(tmp_path)
    model = decoders.read(tmp_path)
    running = engine(model, CPU, 40)
    prompt = [3, 4, 5]
    with torch.no_grad():
        law = model.logits(model(torch.tensor(prompt), packed([3])).last[-1:])[0].softmax(-1)
    drawn = sample(running, [prompt] * 200, 1, (), torch.Generator().manual_seed(1))
    best, chance = int(law.argmax()), float(law.max())
    count = sum(answer == [best] for answer in drawn)
    assert abs(count - 200 * chance) < 4 * (200 * chance * (1 - chance)) ** 0.5
    assert 0.02 < chance < 0.98
    again = [sample(running, [prompt, [7]], 12, {best}, torch.Generator().manual_seed(2)) for _ in range(2)]
    assert again[0] == again[1]
    for answer in sample(running, [prompt] * 20, 12, {best}, torch.Generator().manual_seed(3)):
        assert best not in answer[:-1]
        assert len(answer) == 12 or answer[-1] == best


def test_the_engines_copy_does_not_change_with_what_is_trained(tmp_path: Path) -> None:
    toys.checkpoint(tmp_path)
    model = decoders.read(tmp_path)
    running = engine(model, CPU, 40)
    ids = torch.tensor([1, 2, 3])
    before = running.run(ids, running.new_cache(40)).logits.clone()
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model(ids, packed([3])).last), before, atol=1e-5, rtol=1e-5)
        for part in model.parameters():
            part.mul_(2)
    assert torch.equal(running.run(ids, running.new_cache(40)).logits, before)
