"""GGUF files of every family: the golden checkpoints through a converter of our own, and files that llama.cpp's wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import golden
import pytest
import torch
from converter import ARCHITECTURES, convert
from golden import FOLDER, decoder
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.formats.gguf.tables import ARCHITECTURES as READ

REAL = Path(__file__).resolve().parents[2] / "data" / "gguf"
LEFT_OUT = {
    "mistral",  # GGUF does not keep its window
    *("gemma3_nested", "gemma4_nested", "qwen3_5_nested"),  # weights of others, with the config in its older form
}
NAMES = [name for name in golden.NAMES if golden.config(name)["model_type"].removesuffix("_text") in ARCHITECTURES]
NAMES = [name for name in NAMES if name not in LEFT_OUT]
# GGUF keeps 1 + w of a norm, in float32, and the delta net's own norm makes much of that rounding
TOLERANCE = {"qwen3_next": 5e-5, "qwen3_5": 5e-5, "qwen3_5_moe": 2e-4}


def stored(name: str) -> dict[str, Tensor]:
    """The plain tensors of a golden checkpoint, without those of other towers and what wraps the others."""
    checkpoint = open_checkpoint(FOLDER / name)
    found = {key: checkpoint.load(key) for key in checkpoint.names() if not re.search("vision|visual|multi_modal", key)}
    return {re.sub(r"language_model\.model|model\.language_model", "model", key): found[key] for key in found}


def published(name: str) -> dict[str, Tensor]:
    """The same as a GGUF file gives them: experts apart; what it splits in another way left out."""
    found: dict[str, Tensor] = {}
    for key, tensor in stored(name).items():
        if key.endswith("experts.gate_up_proj") and not name.startswith("gpt_oss"):
            for expert, both in enumerate(tensor):
                for half, rows in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[key.replace("gate_up_proj", f"{expert}.{half}_proj.weight")] = rows
        elif key.endswith("experts.down_proj") and not name.startswith("gpt_oss"):
            found |= {key.replace("down_proj", f"{e}.down_proj.weight"): rows for e, rows in enumerate(tensor)}
        elif "in_proj_qkvz" not in key and "in_proj_ba" not in key:
            found[key] = tensor
    return found


def written(name: str, folder: Path) -> Path:
    """A golden checkpoint as a GGUF file."""
    return convert(golden.config(name), stored(name), folder / "model.gguf")


def reference(name: str, folder: Path) -> Tensor:
    """Sketches of the logits of 48 tokens. What GGUF does not keep of Gemma 3 is left out of the config too."""
    known = golden.tensors(name)
    if not name.startswith("gemma3"):
        return known["f64.logits"][0]
    config = golden.config(name)
    (folder / "config.json").write_text(json.dumps(config | {"query_pre_attn_scalar": config["head_dim"]}))
    save_file(stored(name), folder / "model.safetensors")
    return golden.sketch(logits(folder, known["input_ids"][0]))


def logits(path: Path, ids: Tensor) -> Tensor:
    model = decoder(path, torch.float64, len(ids))
    return model.run(ids, model.new_cache(len(ids))).logits


@pytest.mark.parametrize("name", NAMES)
def test_float64_logits(name: str, tmp_path: Path) -> None:
    found = logits(written(name, tmp_path), golden.tensors(name)["input_ids"][0])
    (tmp_path / "changed").mkdir()
    near = TOLERANCE.get(name.removesuffix("_nested"), 5e-6)
    golden.assert_close(found, reference(name, tmp_path / "changed"), atol=near)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_back_under_its_published_name(name: str, tmp_path: Path) -> None:
    """Those for drafting too. Only the one that was added to norms, and logarithms, may round."""
    checkpoint = open_checkpoint(written(name, tmp_path))
    expected = published(name)
    assert not expected.keys() - set(checkpoint.names())
    for key, tensor in expected.items():
        found = checkpoint.load(key)
        assert tuple(found.shape) == checkpoint.shape(key) == tuple(tensor.shape)
        rounds = "norm" in key or key.endswith("A_log")
        torch.testing.assert_close(found, tensor, atol=2e-7 if rounds else 0, rtol=2e-7 if rounds else 0)
    checkpoint.close()


def test_every_architecture_is_tried() -> None:
    types = {golden.config(name)["model_type"].removesuffix("_text") for name in NAMES}
    assert {ARCHITECTURES[kind] for kind in types} == set(READ)


@pytest.mark.parametrize("file", sorted(REAL.glob("*.gguf")), ids=lambda path: path.stem)
def test_files_of_the_real_converter(file: Path) -> None:
    """Made of golden checkpoints with numbers that fit into 16 bits; the logits are of an implementation of its own."""
    expected = load_file(REAL / "expected.safetensors")
    found = logits(file, expected[f"{file.stem}.ids"].long())[-8:]
    torch.testing.assert_close(found, expected[f"{file.stem}.logits"].double(), atol=5e-6, rtol=0)
