"""Biases and grouped norms against logits of transformers, which the files in `tests/data/biases` were made by."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from converter import convert
from formula import made
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model import outline
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder

FILE = Path(__file__).resolve().parents[2] / "data" / "biases" / "biases.safetensors"
with safe_open(FILE, framework="pt") as stored:
    TOLD: dict[str, str] = stored.metadata()
    LOGITS = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
IDS = torch.tensor(json.loads(TOLD["ids"]))
NAMES = sorted(LOGITS)


def write(name: str, folder: Path, **more: Any) -> Path:
    """The checkpoint of one case, with other values in its config."""
    told = json.loads(TOLD[name])
    (folder / "config.json").write_text(json.dumps({**told["config"], **more}))
    tensors = {key: made(key, tuple(shape)) for key, shape in told["shapes"].items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def pieces(model: Decoder, rows: int) -> torch.Tensor:
    """Logits of all tokens, so many at a time."""
    cache, found = model.new_cache(32), []
    for at in range(0, len(IDS), rows):
        found.append(model.run(IDS[at : at + rows], cache).logits)
        cache.commit(min(at + rows, len(IDS)))
    return torch.cat(found)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = golden.decoder(write(name, tmp_path), torch.float64, 32)
    for rows in (len(IDS), 3, 1):
        torch.testing.assert_close(pieces(model, rows), LOGITS[name], atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_has_them(name: str, tmp_path: Path) -> None:
    outline.check(open_checkpoint(write(name, tmp_path)))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_fused_steps_and_torchs_own_add_them(name: str, fused: bool, tmp_path: Path) -> None:
    with contextlib.nullcontext() if fused else ops.only("cpu", None):
        model = golden.decoder(write(name, tmp_path), torch.float32, 32)
        for rows in (len(IDS), 1):
            torch.testing.assert_close(pieces(model, rows).double(), LOGITS[name], atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "deepseek_v3_no_rank", "gemma4_keys_as_values", "gemma4_shared_keys", "qwen3_5", "qwen3_next"],
)
def test_gguf_files_have_them_too(name: str, tmp_path: Path) -> None:
    folder = write(name, tmp_path)
    checkpoint = open_checkpoint(folder)
    tensors = {key: checkpoint.load(key, torch.float32) for key in checkpoint.names()}
    file = convert(json.loads((folder / "config.json").read_text()), tensors, tmp_path / "model.gguf")
    torch.testing.assert_close(pieces(golden.decoder(file, torch.float64, 32), 3), LOGITS[name], atol=5e-6, rtol=0)


def test_whole_blocks_in_c_add_them(tmp_path: Path) -> None:
    """Against torch's own steps, with the same quantised matrices."""
    stored = load_file(golden.FOLDER / "gemma3" / "model.safetensors")
    for name in [name for name in stored if "self_attn" in name and name.endswith("proj.weight")]:
        stored[name.replace(".weight", ".bias")] = made(name, stored[name].shape[:1]).float()
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**golden.config("gemma3"), "attention_bias": True}))
    checkpoint, found = open_checkpoint(tmp_path), []
    for fused in (True, False):
        with contextlib.nullcontext() if fused else ops.only("cpu", None):
            model = load_decoder(checkpoint, WeightFormat(torch.float32, golden.CPU, 8), 32)
            found.append(pieces(model, 1))
            if fused and not model._stacks(model._scale):
                pytest.skip("this machine runs no blocks in C")
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)
