"""Checkpoints whose config and tensors disagree: one clear error, or the model all the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError, OutriderError

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def changed(family: str, into: Path, change: Change) -> Path:
    """A golden checkpoint with another config or other tensors."""
    config = json.loads((golden.FOLDER / family / "config.json").read_text())
    tensors = load_file(golden.FOLDER / family / "model.safetensors")
    change(config, tensors)
    (into / "config.json").write_text(json.dumps(config))
    save_file(tensors, into / "model.safetensors")
    return into


def put(name: str, tensor: Tensor) -> Change:
    return lambda config, tensors: tensors.update({name: tensor})


def drop(ending: str) -> Change:
    return lambda config, tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(ending)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("model.norm.weight", torch.ones(63)), r"model\.norm\.weight is 63, the config says 64"),
        (
            put("model.layers.0.self_attn.q_proj.weight", torch.ones(64, 32)),
            r"q_proj\.weight is 64x32, the config says",
        ),
        (
            lambda config, tensors: config.update(hidden_size=128),
            r"embed_tokens\.weight is 256x64, the config says 256x128",
        ),
        (lambda config, tensors: config.update(num_hidden_layers=9), r"no tensor model\.layers\.\d\."),
        (drop("down_proj.weight"), r"no tensor model\.layers\.0\.mlp\.down_proj\.weight"),
        (drop("lm_head.weight"), r"no lm_head\.weight though its config says the head is not tied"),
        (
            put("model.layers.0.mlp.up_proj.weight", torch.ones(128, 64, dtype=torch.int64)),
            r"up_proj\.weight holds whole",
        ),
        (lambda config, tensors: config.pop("num_attention_heads"), r"no usable 'num_attention_heads'"),
        (lambda config, tensors: config.update(model_type="exotic"), r"'exotic' is not known; known are"),
    ],
)
def test_one_error_names_what_does_not_fit(change: Change, words: str, tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=words) as caught:
        golden.decoder(changed("llama", tmp_path, change), torch.float32, 64)
    assert isinstance(caught.value, ModelError | BrokenFileError)
    assert caught.value.hint


def test_a_drafter_that_the_config_promises_and_the_file_lacks_is_not_missed(tmp_path: Path) -> None:
    folder = changed("qwen3_5", tmp_path, lambda config, tensors: [tensors.pop(n) for n in list(tensors) if "mtp" in n])
    reference = golden.tensors("qwen3_5")
    model = golden.decoder(folder, torch.float64, 64)
    logits = model.run(reference["input_ids"][0], model.new_cache(64)).logits
    golden.assert_close(logits, reference["f64.logits"][0], atol=5e-6)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"<!DOCTYPE html>\n<html><body>Sign in to the network</body></html>", "is a web page that was saved"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a Git LFS pointer"),
        (b"GGUF" + bytes(60), "header does not fit"),
    ],
)
def test_a_shard_that_is_something_else(head: bytes, words: str, tmp_path: Path) -> None:
    shutil.copytree(golden.FOLDER / "llama", tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").chmod(0o644)
    (tmp_path / "model.safetensors").write_bytes(head)
    with pytest.raises(BrokenFileError, match=words):
        golden.decoder(tmp_path, torch.float32, 64)
