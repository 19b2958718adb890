"""Writing a model as it would be published: config.json, safetensors, the files of its tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.blocks.rope import inverse_frequencies
from outrider.core.model.families.spec import RopeSpec
from outrider.core.text.tokenizer import Tokenizer

TEXT = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Tensors under their published names, in `dtype`, and the config. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    kind = {"gemma3": "gemma3_text"}.get(str(config.get("model_type")), config.get("model_type"))
    told = {name: value for name, value in _scaled(config).items() if name not in ("quantization_config", "dtype")}
    told |= {"model_type": kind, "torch_dtype": _NAMES[dtype]}
    if kind in CLASSES:
        told["architectures"] = [CLASSES[kind]]
    (folder / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _scaled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Divisors of frequencies, as a GGUF keeps them, said as others understand it: by Llama 3's settings, if they are those."""
    told, divisors = dict(config), config.get("rope_freqs")
    if not divisors:
        return told
    settings = {"factor": max(divisors), **LLAMA3}
    plain = RopeSpec(float(config["rope_theta"]), 2 * len(divisors))
    spec = replace(plain, kind="llama3", scaling=tuple(settings.items()))
    wanted, found = (inverse_frequencies(one, 0, 0)[0] for one in (replace(plain, divisors=tuple(divisors)), spec))
    if torch.allclose(found, wanted, rtol=1e-4, atol=0):
        del told["rope_freqs"]
        told["rope_scaling"] = {"rope_type": "llama3", **settings}
    return told


def copy_text(source: Path, folder: Path) -> None:
    """The tokenizer of the model at `source`, and its template: its own files, or new ones where it is a GGUF."""
    if source.is_dir() and (source / "config.json").exists():
        for name in TEXT:
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
        return
    checkpoint = open_checkpoint(source)
    try:
        tokenizer = Tokenizer(checkpoint.text())
        template = checkpoint.text().template
    finally:
        checkpoint.close()
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "add_bos_token": tokenizer.adds_bos,
    }
    values = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
