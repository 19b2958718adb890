"""From GGUF names and metadata to published tensor names and a config dict, one table entry for each architecture.

Loads no torch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from outrider.core.errors import BrokenFileError, ModelError
from outrider.core.weights.gguf import AGAIN, GGUFFile

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ASIDE = {"rope_freqs.weight"}  # goes into the config


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one GGUF architecture maps. `interleaved`: q and k rows stand in pairs and must be put back into halves."""

    model_type: str
    title: str  # the class name that published configs give
    interleaved: bool = False
    block: Mapping[str, str] = field(default_factory=lambda: _LLAMA)


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
}


def architecture(file: GGUFFile) -> Architecture:
    """The table entry of a file. Raises ModelError for an architecture that is not in the table."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise BrokenFileError(f"{file.path} does not name its architecture.", AGAIN)
    found = ARCHITECTURES.get(name)
    if found is None or file.metadata.get(f"{name}.expert_count"):
        kind = f"{name} with experts" if found else name
        raise ModelError(
            f"{file.path} holds a model of architecture {kind!r}, which is not read.",
            f"GGUF files of these architectures are: {', '.join(ARCHITECTURES)}.",
        )
    return found


def published_names(file: GGUFFile, kind: Architecture) -> dict[str, str]:
    """Published name -> name in the file, in file order. Raises ModelError for a tensor that has no place in the model."""
    names = {}
    for stored in file.tensors:
        if stored in _ASIDE:
            continue
        stem, _, ending = stored.rpartition(".")
        block = _BLOCK.fullmatch(stem)
        if block and block[2] in kind.block:
            name = f"model.layers.{int(block[1])}.{kind.block[block[2]]}.{ending}"
        elif stem in _OUTER:
            name = f"{_OUTER[stem]}.{ending}"
        else:
            name = ""
        if not name or ending not in ("weight", "bias") or name in names:
            raise ModelError(
                f"{file.path}: tensor {stored!r} has no place in a {kind.model_type} model.",
                "Take another file of this model; this one needs a newer reader or is broken.",
            )
        names[name] = stored
    return names


def config(file: GGUFFile, kind: Architecture) -> dict[str, Any]:
    """The metadata as a published config dict. Raises BrokenFileError where a value is missing or contradicts the tensors."""
    read = _Metadata(file)
    heads = read.count("attention.head_count")
    width = read.count("embedding_length")
    vocab = _embedding_rows(file, width)
    layers = _layers(file, read)
    found: dict[str, Any] = {
        "model_type": kind.model_type,
        "architectures": [kind.title],
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": read.count("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.count("attention.head_count_kv", heads),
        "head_dim": read.count("attention.key_length", width // heads),
        "max_position_embeddings": read.count("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": read.number("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
    }
    found.update(_rope(file, read, found))
    for key in ("bos", "eos", "padding"):
        token = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and token < vocab:
            found["pad_token_id" if key == "padding" else f"{key}_token_id"] = token
    return found


def _embedding_rows(file: GGUFFile, width: int) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2 or table.shape[1] != width:
        raise BrokenFileError(f"{file.path} has no embedding table of width {width}.", AGAIN)
    return table.shape[0]


def _layers(file: GGUFFile, read: _Metadata) -> int:
    told = read.count("block_count")
    there = {int(match[1]) for match in map(_BLOCK.match, file.tensors) if match}
    if len(there) != told or max(there) != told - 1:
        raise BrokenFileError(f"{file.path} promises {told} layers and holds {len(there)}.", AGAIN)
    return told


def _rope(file: GGUFFile, read: _Metadata, known: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rotary = read.count("rope.dimension_count", known["head_dim"])
    if rotary != known["head_dim"]:
        found["partial_rotary_factor"] = rotary / known["head_dim"]
    kind = read.get("rope.scaling.type", "none")
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 1.0))
    if kind in ("linear", "none") and factor not in (0.0, 1.0):
        found["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": read.count("rope.scaling.original_context_length"),
            "beta_fast": read.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": read.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    elif kind not in ("linear", "none"):
        raise ModelError(f"{file.path} scales its positions by {kind!r}, which is not read.", "Take another file.")
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is not None:
        if tensor.kind != "F32" or len(tensor.shape) != 1:
            raise BrokenFileError(f"{file.path}: rope_freqs.weight is not a row of 32-bit numbers.", AGAIN)
        with file.raw(tensor) as raw:
            found["rope_freqs"] = list(struct.unpack(f"<{tensor.shape[0]}f", raw))
    return found


class _Metadata:
    """Checked access to the keys under the architecture's name."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.prefix = file.metadata["general.architecture"]

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.prefix}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number; an array must repeat one."""
        value = self.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._fail(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; a 32-bit one is read as the shortest decimal that it can stand for."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e38:
            self._fail(key, value)
        short = float(f"{value:.7g}")
        return short if struct.pack("<f", short) == struct.pack("<f", value) else float(value)

    def _fail(self, key: str, value: Any) -> NoReturn:
        what = "lacks" if value is None else f"has {str(value)[:40]!r} as"
        raise BrokenFileError(f"{self.file.path} {what} {self.prefix}.{key}.", AGAIN)
