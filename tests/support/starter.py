"""The starter as a Hugging Face folder, whole or cut to its first layers, and prompts by id."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.core.formats.checkpoint import Checkpoint, open_checkpoint
from outrider.core.library.library import resolve
from outrider.core.text.tokenizer import Tokenizer

SHARD = 2 << 30  # bytes


def folder(into: Path, layers: int | None = None, model: str = "starter") -> Path:
    """A GGUF dequantised to fp32, as config, safetensors and tokenizer; `layers` keeps only the first ones."""
    source = open_checkpoint(resolve(model))
    config = dict(source.config)
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    config.setdefault("architectures", ["LlamaForCausalLM"])
    config["torch_dtype"] = "float32"
    if config["model_type"] == "gemma3":
        config["model_type"] = "gemma3_text"  # the plain name promises a vision tower
    into.mkdir(parents=True, exist_ok=True)
    _weights(source, _kept(source, layers), into)
    (into / "config.json").write_text(json.dumps(config))
    _tokenizer(source, into)
    source.close()
    return into


def _weights(source: Checkpoint, names: list[str], into: Path) -> None:
    """One file, or as many as keep each below `SHARD`, with their index."""
    shards: list[list[str]] = [[]]
    room = SHARD
    for name in names:
        size = 4 * math.prod(source.shape(name))
        if size > room and shards[-1]:
            shards.append([])
            room = SHARD
        shards[-1].append(name)
        room -= size
    count, places = len(shards), {}
    for number, kept in enumerate(shards, 1):
        file = "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
        tensors = {name: source.load(name, torch.float32).contiguous() for name in kept}
        save_file(tensors, into / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(kept, file))
    if count > 1:
        (into / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _kept(source: Checkpoint, layers: int | None) -> list[str]:
    def index(name: str) -> int:
        return int(name.split(".")[2]) if name.startswith("model.layers.") else -1

    return [name for name in source.names() if layers is None or index(name) < layers]


def _tokenizer(source: Checkpoint, into: Path) -> None:
    tokenizer = Tokenizer(source.text())
    (into / "tokenizer.json").write_text(tokenizer.to_json())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": source.text().template,
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "add_bos_token": tokenizer.adds_bos,
    }
    (into / "tokenizer_config.json").write_text(json.dumps(settings))


def prompts(folder: Path, ids: list[str]) -> list[dict]:
    """Rows of the prompt files in `folder`, in the order of `ids`."""
    rows = {}
    for file in sorted(folder.glob("*.jsonl")):
        if file.name.startswith("train"):
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["id"]] = row
            rows[f"{file.stem}/{row['id']}"] = row
    return [rows[i] for i in ids]
