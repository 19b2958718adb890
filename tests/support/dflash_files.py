"""Tiny DFlash drafters of the toy target, written in their published forms, and the block pass once more in plain steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

WIDTH, HEADS, KV, HEAD, INNER, LAYERS = 32, 4, 2, 8, 24, 2  # of the drafter; the toy target is as wide
RANK, REDUCED, WINDOW, BLOCK = 6, 20, 9, 5
STATES = [0, 1]  # outputs of the toy's two layers
KINDS = ("dflash", "dspark", "dflash2", "speculators")

SIZES: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": HEAD,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


def config(kind: str, vocab: int = 48) -> dict[str, Any]:
    """The config.json of a kind."""
    sizes = {**SIZES, "vocab_size": vocab, "layer_types": ["full_attention"] * LAYERS}
    sliding = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    keys = {"mask_token_id": vocab - 1, "target_layer_ids": STATES}
    if kind == "dflash":
        return {**sizes, **sliding, "block_size": BLOCK, "num_target_layers": 2, "dflash_config": keys}
    if kind == "dspark":
        return {**sizes, **keys, "block_size": BLOCK, "num_target_layers": 2, "markov_rank": RANK}
    if kind == "dflash2":
        extra = {"block_size": BLOCK, "conv_kernel_size": 3, "conv_group_size": 16, "selector_top_k": min(6, vocab)}
        both = {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * LAYERS, "is_causal": False}
        return {**sizes, **both, "dflash_config": {**keys, **extra}}
    return {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [each + 1 for each in STATES],
        "block_size": BLOCK,
        "mask_token_id": vocab - 1,
        "draft_vocab_size": min(REDUCED, vocab - 1),
        "transformer_layer_config": {**sizes, **sliding},
    }


def tensors(kind: str, vocab: int = 48, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a kind."""
    g = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=g) / columns**0.5

    def norm(width: int = WIDTH) -> Tensor:
        return torch.rand(width, generator=g) + 0.5

    made = {"fc.weight": matrix(WIDTH, len(STATES) * WIDTH), "hidden_norm.weight": norm(), "norm.weight": norm()}
    for at in (f"layers.{index}." for index in range(LAYERS)):
        made[at + "input_layernorm.weight"], made[at + "post_attention_layernorm.weight"] = norm(), norm()
        for name, size in (("q", HEADS), ("k", KV), ("v", KV)):
            made[f"{at}self_attn.{name}_proj.weight"] = matrix(size * HEAD, WIDTH)
        made[at + "self_attn.o_proj.weight"] = matrix(WIDTH, HEADS * HEAD)
        made[at + "self_attn.q_norm.weight"], made[at + "self_attn.k_norm.weight"] = norm(HEAD), norm(HEAD)
        made[at + "mlp.gate_proj.weight"], made[at + "mlp.up_proj.weight"] = matrix(INNER, WIDTH), matrix(INNER, WIDTH)
        made[at + "mlp.down_proj.weight"] = matrix(WIDTH, INNER)
        for name in ("attention_conv", "mlp_conv") if kind == "dflash2" else ():
            made[f"{at}{name}.base_kernel"] = torch.randn(2, 3, WIDTH, generator=g) * 0.5
            made[f"{at}{name}.kernel_projection.weight"] = matrix(2 * 3 * 2, WIDTH)
    if kind == "dspark":
        made["markov_head.markov_w1.weight"] = torch.randn(vocab, RANK, generator=g)
        made["markov_head.markov_w2.weight"] = torch.randn(vocab, RANK, generator=g)
        made["confidence_head.proj.weight"], made["confidence_head.proj.bias"] = matrix(1, WIDTH + RANK), norm(1)
        made["embed_tokens.weight"], made["lm_head.weight"] = matrix(vocab, WIDTH), matrix(vocab, WIDTH)
    if kind == "dflash2":
        for name in ("predecessor", "successor"):
            made[f"candidate_selector.{name}_codebook"] = torch.randn(vocab, RANK, generator=g)
        made["candidate_selector.hidden_projection.weight"] = matrix(RANK, WIDTH)
    if kind == "speculators":
        some = min(REDUCED, vocab - 1)
        ids = torch.randperm(vocab, generator=g)[:some].sort().values
        made["lm_head.weight"], made["d2t"] = matrix(some, WIDTH) * 4, ids - torch.arange(some)
        made["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return made


def write(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Path:
    """A checkpoint on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(dict(weights), folder / "model.safetensors")
    return folder


# ---------------------------------------------------------------------------------------------------- in plain steps


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rope of [T, heads, h]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-torch.arange(half) / half)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat((pairs.real, pairs.imag), -1)


def _sees(settings: Mapping[str, Any], layer: int, query: int, key: int, anchor: int) -> bool:
    """The mask, pair by pair."""
    sizes = settings.get("transformer_layer_config", settings)
    if sizes["layer_types"][layer] == "full_attention":
        return True
    if settings.get("is_causal") is not False and key > query:
        return False
    if "transformer_layer_config" in settings:
        return key >= anchor - WINDOW
    return abs(query - key) < WINDOW


def _conv(base: Tensor, extra: Tensor, x: Tensor) -> Tensor:
    """`base` [taps, d], `extra` [B, taps, groups], `x` [B, d]."""
    y = torch.zeros_like(x)
    for slot in range(x.shape[0]):
        for tap in range(min(base.shape[0], slot + 1)):
            for group, part in enumerate(extra[slot, tap]):
                some = slice(16 * group, 16 * group + 16)
                y[slot, some] += (base[tap, some] + part) * x[slot - tap, some]
    return y


def _around(p: Mapping[str, Tensor], at: str, u: Tensor, mixer: Any) -> Tensor:
    if at + "base_kernel" not in p:
        return mixer(u)
    extra = (u @ p[at + "kernel_projection.weight"].T).view(u.shape[0], 2, 3, -1)
    base = p[at + "base_kernel"]
    return _conv(base[1], extra[:, 1], mixer(_conv(base[0], extra[:, 0], u)))


def block(folder: Path, states: Tensor, first: int, x: Tensor) -> Tensor:
    """Slot states [B, d] of the embedded slots `x`, behind context states [C, P, d] of the positions from `first` on."""
    settings, p = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    context = _rms(states.flatten(1) @ p["fc.weight"].T, p["hidden_norm.weight"])
    anchor = first + states.shape[0]
    places = torch.arange(first, anchor + x.shape[0])
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        mask = torch.tensor(
            [[_sees(settings, layer, anchor + j, int(k), anchor) for k in places] for j in range(x.shape[0])]
        )

        def attend(u: Tensor, at: str = at + "self_attn.", mask: Tensor = mask) -> Tensor:
            rows = torch.cat((context, u))
            q, k, v = (
                (some @ p[f"{at}{name}_proj.weight"].T).view(some.shape[0], -1, HEAD)
                for name, some in (("q", u), ("k", rows), ("v", rows))
            )
            q = _turned(_rms(q, p[at + "q_norm.weight"]), places[-u.shape[0] :])
            k = _turned(_rms(k, p[at + "k_norm.weight"]), places)
            k, v = (part.repeat_interleave(HEADS // KV, 1).transpose(0, 1) for part in (k, v))  # [H, T, h]
            scores = (q.transpose(0, 1) @ k.mT / HEAD**0.5).masked_fill(~mask, -torch.inf)
            return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1) @ p[at + "o_proj.weight"].T

        def dense(u: Tensor, at: str = at + "mlp.") -> Tensor:
            gate, up, down = (p[f"{at}{name}_proj.weight"] for name in ("gate", "up", "down"))
            return (F.silu(u @ gate.T) * (u @ up.T)) @ down.T

        x = x + _around(p, at + "attention_conv.", _rms(x, p[at + "input_layernorm.weight"]), attend)
        x = x + _around(p, at + "mlp_conv.", _rms(x, p[at + "post_attention_layernorm.weight"]), dense)
    return _rms(x, p["norm.weight"])
