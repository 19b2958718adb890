"""Drafters that have learnt nothing, in their published forms: useless, and never wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

WORDS = 100  # of EAGLE's own head


@dataclass(frozen=True, slots=True)
class Size:
    """Of a target, and of the drafter's one layer."""

    width: int
    heads: int
    kv: int
    head: int
    inner: int
    vocab: int
    layers: int

    @property
    def config(self) -> dict[str, Any]:
        """As a config.json says it."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv,
            "head_dim": self.head,
            "num_hidden_layers": 1,
            "vocab_size": self.vocab,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100000.0,
            "hidden_act": "silu",
        }


STARTER = Size(576, 9, 3, 64, 96, 49152, 30)
TINY = Size(64, 4, 2, 16, 48, 256, 4)  # of the golden checkpoints


def _layer(at: str, g: torch.Generator, size: Size, wide: int) -> dict[str, Tensor]:
    """Attention that reads rows of width `wide`, and an MLP."""
    rows = {"q": size.heads, "k": size.kv, "v": size.kv}
    made = {f"{at}self_attn.{name}_proj.weight": _matrix(g, count * size.head, wide) for name, count in rows.items()}
    made[f"{at}self_attn.o_proj.weight"] = _matrix(g, size.width, size.heads * size.head)
    made |= {f"{at}mlp.{name}_proj.weight": _matrix(g, size.inner, size.width) for name in ("gate", "up")}
    made[f"{at}mlp.down_proj.weight"] = _matrix(g, size.width, size.inner)
    made |= {f"{at}{name}.weight": torch.ones(size.width) for name in ("input_layernorm", "post_attention_layernorm")}
    return made


def _matrix(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=g) / columns**0.5


def _write(folder: Path, file: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def eagle(folder: Path, size: Size = STARTER) -> Path:
    """EAGLE-3, official names."""
    g = torch.Generator().manual_seed(1)
    made = _layer("midlayer.", g, size, 2 * size.width)
    made |= {"midlayer.hidden_norm.weight": torch.ones(size.width), "norm.weight": torch.ones(size.width)}
    made |= {"fc.weight": _matrix(g, size.width, 3 * size.width), "lm_head.weight": _matrix(g, WORDS, size.width) * 3}
    words = torch.randperm(size.vocab, generator=g)[:WORDS].sort().values
    made["d2t"], made["t2d"] = words - torch.arange(WORDS), torch.zeros(size.vocab, dtype=torch.bool)
    made["t2d"][words] = True
    return _write(
        folder,
        "model.safetensors",
        made,
        {
            **size.config,
            "model_type": "llama",
            "draft_vocab_size": WORDS,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
    )


def dflash(folder: Path, size: Size = STARTER) -> Path:
    """DFlash with one full layer."""
    g = torch.Generator().manual_seed(2)
    made = _layer("layers.0.", g, size, size.width)
    made |= {f"layers.0.self_attn.{name}_norm.weight": torch.ones(size.head) for name in "qk"}
    made |= {"fc.weight": _matrix(g, size.width, 2 * size.width), "hidden_norm.weight": torch.ones(size.width)}
    made["norm.weight"] = torch.ones(size.width)
    keys = {"mask_token_id": size.vocab - 1, "target_layer_ids": [0, 1]}
    config = {
        **size.config,
        "model_type": "qwen3",
        "layer_types": ["full_attention"],
        "block_size": 6,
        "dflash_config": keys,
    }
    return _write(folder, "model.safetensors", made, {**config, "num_target_layers": size.layers})


def medusa(folder: Path, size: Size = STARTER) -> Path:
    """Two heads."""
    g = torch.Generator().manual_seed(3)
    made: dict[str, Tensor] = {}
    for head in range(2):
        made[f"{head}.0.linear.weight"], made[f"{head}.0.linear.bias"] = (
            _matrix(g, size.width, size.width),
            torch.zeros(size.width),
        )
        made[f"{head}.1.weight"] = _matrix(g, size.vocab, size.width).half()
    return _write(folder, "medusa_lm_head.safetensors", made, {"medusa_num_heads": 2, "medusa_num_layers": 1})
