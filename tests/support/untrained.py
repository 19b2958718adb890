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
TOY = Size(32, 4, 2, 8, 48, 259, 2)  # of `toys.checkpoint`


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


def hydra(folder: Path, size: Size = STARTER) -> Path:
    """Two heads that see the guesses before theirs."""
    g = torch.Generator().manual_seed(4)
    made: dict[str, Tensor] = {}
    for head in range(2):
        for part in ("linear", "res_connection"):
            at = f"hydra_mlp.{head}.0.{part}"
            made[f"{at}.weight"] = _matrix(g, size.width, (head + 2) * size.width)
            made[f"{at}.bias"] = torch.zeros(size.width)
        made[f"hydra_lm_head.{head}.weight"] = _matrix(g, size.vocab, size.width)
        made[f"hydra_lm_head.{head}.bias"] = torch.zeros(size.vocab)
    return _write(folder, "hydra_lm_head.safetensors", made, {"hydra_num_heads": 2, "grounded_heads": True})


def hydra_prefix(folder: Path, size: Size = STARTER) -> Path:
    """Hydra++: two heads behind a layer shaped as the target's, which its config tells."""
    g = torch.Generator().manual_seed(7)
    made = _layer("prefix_embeding_layer.layers.0.", g, size, size.width)
    made["prefix_embeding_layer.norm.weight"] = torch.ones(size.width)
    for head in range(2):
        for part in ("linear", "res_connection"):
            at = f"hydra_mlp.{head}.1.{part}"
            made[f"{at}.weight"] = _matrix(g, size.width, (head + 2) * size.width)
            made[f"{at}.bias"] = torch.zeros(size.width)
        made[f"hydra_lm_head.{head}.1.weight"] = _matrix(g, size.vocab, size.width)
        made[f"hydra_lm_head.{head}.1.bias"] = torch.zeros(size.vocab)
    choices = [[0], [1], [0, 0], [1, 0]]
    config = {"hydra_num_heads": 2, "hydra_head_arch": "prefix-mlp", "grounded_heads": True, "hydra_choices": choices}
    return _write(folder, "hydra_lm_head.safetensors", made, config)


def parallel(folder: Path, size: Size = STARTER) -> Path:
    """Two parallel heads as Meta stores them; keys and values have as many heads as queries."""
    g = torch.Generator().manual_seed(5)
    wide = size.heads * size.head
    made = {"norm.weight": torch.ones(size.width)}
    for head in range(2):
        at = f"extra_heads.{head}."
        made |= {f"{at}attention.w{name}.weight": _matrix(g, wide, size.width) for name in "qkv"}
        made[f"{at}attention.wo.weight"] = _matrix(g, size.width, wide)
        made |= {f"{at}feed_forward.w{name}.weight": _matrix(g, size.inner, size.width) for name in "13"}
        made[f"{at}feed_forward.w2.weight"] = _matrix(g, size.width, size.inner)
        made |= {f"{at}{name}_norm.weight": torch.ones(size.width) for name in ("attention", "ffn")}
    settings = {"dim": size.width, "n_layers": size.layers + 2, "n_heads": size.heads, "n_future_tokens": 3}
    _write(folder, "consolidated.safetensors", made, {})
    (folder / "config.json").unlink()
    (folder / "params.json").write_text(json.dumps({**settings, "vocab_size": -1, "norm_eps": 1e-5}))
    return folder


def assistant(folder: Path, size: Size = STARTER) -> Path:
    """An assistant of Gemma 4, one full layer of half the target's width."""
    g = torch.Generator().manual_seed(6)
    at, narrow, wide = "model.layers.0.", size.width // 2, size.heads * size.head
    shapes = {
        "pre_projection": (narrow, 2 * size.width),
        "post_projection": (size.width, narrow),
        "model.embed_tokens": (size.vocab, narrow),
        f"{at}self_attn.q_proj": (wide, narrow),
        f"{at}self_attn.o_proj": (narrow, wide),
        f"{at}mlp.gate_proj": (size.inner, narrow),
        f"{at}mlp.up_proj": (size.inner, narrow),
        f"{at}mlp.down_proj": (narrow, size.inner),
    }
    made = {f"{name}.weight": _matrix(g, *shape) for name, shape in shapes.items()}
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        made[f"{at}{name}_layernorm.weight"] = torch.ones(narrow)
    made |= {f"{at}self_attn.q_norm.weight": torch.ones(size.head), "model.norm.weight": torch.ones(narrow)}
    made[f"{at}layer_scalar"] = torch.ones(1)
    inner = {
        **size.config,
        "model_type": "gemma4_text",
        "hidden_size": narrow,
        "num_kv_shared_layers": 1,
        "layer_types": ["full_attention"],
        "sliding_window": 16,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    inner.pop("hidden_act")
    config = {"model_type": "gemma4_assistant", "backbone_hidden_size": size.width, "text_config": inner}
    return _write(folder, "model.safetensors", made, config)
