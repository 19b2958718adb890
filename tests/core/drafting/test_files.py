"""The files of a drafter and the layers in them: names, containers, settings, and what is read."""

from __future__ import annotations

import json
from pathlib import Path

import layers
import pytest
import torch
import toys
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.drafting.files import DraftConfig, open_draft
from outrider.core.drafting.layers import ReducedHead, WeightReader, load_layers

CONFIG = {
    "hidden_size": layers.WIDTH,
    "intermediate_size": layers.INNER,
    "num_attention_heads": layers.HEADS,
    "num_key_value_heads": layers.KV,
    "rms_norm_eps": layers.EPS,
    "vocab_size": 48,
}


def tensors(seed: int = 3) -> dict[str, Tensor]:
    return {f"layers.0.{name}": part for name, part in layers.block(torch.Generator().manual_seed(seed)).items()}


def write(folder: Path, weights: dict[str, Tensor], name: str = "model.safetensors", **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | more))
    torch.save(weights, folder / name) if name.endswith(".pt") else save_file(weights, folder / name)
    return folder


def test_tensors_have_the_drafters_names(tmp_path: Path) -> None:
    def named(name: str) -> str | None:
        return None if "input" in name else f"mine.{name}"

    with open_draft(write(tmp_path / "draft", tensors()), names=named) as files:
        assert len(files.holds) == 8 and "mine.layers.0.self_attn.q_proj.weight" in files.holds
        assert files.size("mine.layers.0.mlp.down_proj.weight") == (layers.WIDTH, layers.INNER)
        assert files.size("layers.0.mlp.down_proj.weight") == ()
        assert files.settings.integer("hidden_size") == layers.WIDTH and files.name == "draft"
        with pytest.raises(BrokenFileError, match=r"has no tensor layers\.0\.input_layernorm"):
            files.load("layers.0.input_layernorm.weight")
        below = files.below("mine.layers.0.mlp.")
        assert below.holds == {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
        assert torch.equal(below.load("up_proj.weight"), tensors()["layers.0.mlp.up_proj.weight"])


def test_a_pickle_is_read_where_there_are_no_safetensors(tmp_path: Path) -> None:
    published = ("heads.safetensors", "heads.pt")
    write(tmp_path, tensors(4), "heads.pt")
    with open_draft(tmp_path, *published) as files:
        assert torch.equal(files.load("layers.0.mlp.up_proj.weight"), tensors(4)["layers.0.mlp.up_proj.weight"])
    write(tmp_path, tensors(5), "heads.safetensors")
    write(tmp_path, tensors(6), "model.safetensors")
    with open_draft(tmp_path, *published) as files:
        assert torch.equal(files.load("layers.0.mlp.up_proj.weight"), tensors(5)["layers.0.mlp.up_proj.weight"])
    (tmp_path / "heads.safetensors").unlink()
    with open_draft(tmp_path, *published) as files:  # a whole checkpoint
        assert torch.equal(files.load("layers.0.mlp.up_proj.weight"), tensors(6)["layers.0.mlp.up_proj.weight"])


def test_numbers_that_cannot_be(tmp_path: Path) -> None:
    weights = tensors() | {"bad": torch.tensor([1.0, torch.nan]), "ids": torch.tensor([1, 2])}
    folder = write(tmp_path, weights)
    with open_draft(folder) as files:
        assert files.load("bad").isnan().any()
    with open_draft(folder, finite=True, again="Fetch it again.") as files:
        assert files.load("ids").tolist() == [1, 2]
        with pytest.raises(BrokenFileError, match="bad holds something else than finite numbers") as told:
            files.load("bad", torch.float16)
        assert told.value.hint == "Fetch it again."


def test_layers_are_told_by_their_tensors_or_by_settings() -> None:
    config = DraftConfig({**CONFIG, "attention_bias": True}, "the config")
    plain = {name: tuple(part.shape) for name, part in tensors().items()}
    assert config.layers([0], plain).shapes() == plain
    told = config.layers([0, 7])
    assert told.shapes().keys() - plain.keys() > {"layers.0.self_attn.o_proj.bias", "layers.1.mlp.up_proj.weight"}
    assert [layer.mixer.window for layer in told.layers] == [0, 7]  # type: ignore[union-attr]
    first = config.layers([0], plain, reads=99).shapes()
    assert first["layers.0.self_attn.k_proj.weight"] == (layers.KV * layers.SIZE, 99)
    assert first.keys() == plain.keys() - {"layers.0.input_layernorm.weight"}
    with pytest.raises(ModelError, match="the config cannot be used: it has no usable 'intermediate_size'"):
        DraftConfig({"hidden_size": 32}, "the config").layers([0])


def test_whole_heads_turn_whatever_the_target_turns() -> None:
    ropes = {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    config = DraftConfig({**CONFIG, **ropes}, "the config")
    parts, whole = (some.layers([0]).mixer.rope for some in (config, config.whole_heads()))
    assert parts is not None and whole is not None
    assert (parts.width, whole.width, whole.theta) == (layers.SIZE // 2, layers.SIZE, 500.0)


def test_a_head_over_some_words(tmp_path: Path) -> None:
    """Its own rows, or those of the target; scaled and capped as the files say."""
    target, ids = toys.target(), torch.tensor([3, 7, 40])
    rows = torch.randn(3, layers.WIDTH, generator=torch.Generator().manual_seed(1))
    marks = torch.zeros(48, dtype=torch.bool).index_fill_(0, ids, True)
    weights = {"d2t": ids - torch.arange(3), "t2d": marks, "lm_head.weight": rows}
    x = torch.randn(2, layers.WIDTH, generator=torch.Generator().manual_seed(2))
    with open_draft(write(tmp_path, weights)) as files:
        read = WeightReader(files, None, target, prefix="")
        own, tied = read.reduced_head(3, tied=False, scale=2.0, cap=5.0), read.reduced_head(3, tied=True)
    assert isinstance(own, ReducedHead) and own.ids.tolist() == ids.tolist()
    torch.testing.assert_close(own(x), 5 * torch.tanh(2 * (x @ rows.T) / 5))
    torch.testing.assert_close(tied(x), target.head(x)[:, ids])


def test_misshapen_layers_are_named(tmp_path: Path) -> None:
    weights = tensors() | {"layers.0.mlp.down_proj.weight": torch.zeros(layers.WIDTH, 5)}
    with open_draft(write(tmp_path / "draft", weights)) as files:
        read = WeightReader(files, files.settings.layers([0], files.holds), toys.target(), prefix="")
        with pytest.raises(
            ModelError, match=r"draft: layers\.0\.mlp\.down_proj\.weight is 32x5, the config says 32x48"
        ):
            load_layers(read)
