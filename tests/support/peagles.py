"""Tiny P-EAGLE drafts in their published forms for the toy targets, and their formulas written out in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import eagles
import torch
from eagles import EPS, HEADS, INNER, KV, SIZE, THETA, WIDTH
from safetensors.torch import load_file
from torch import Tensor

MASK = 3  # the token of masked rows
STATES = (0, 1, 2)
KINDS = ("speculators", "normed", "specforge", "nemo", "qwen3", "other_norms")


def _weights(vocab: int, words: int, layers: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(11)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=g) / columns**0.5

    def norm(width: int = WIDTH) -> Tensor:
        return torch.rand(width, generator=g) + 0.5

    chosen = torch.randperm(vocab, generator=g)[:words].sort().values
    made = {
        "embed_tokens.weight": matrix(vocab, WIDTH) * 6,
        "fc.weight": matrix(WIDTH, 3 * WIDTH),
        "mask_hidden": torch.randn(1, 1, 3 * WIDTH, generator=g),
        "norm.weight": norm(),
        "lm_head.weight": matrix(words, WIDTH) * 3,
        "d2t": chosen - torch.arange(words),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True),
        "layers.0.hidden_norm.weight": norm(),
    }
    for layer in range(layers):
        at, wide = f"layers.{layer}.", WIDTH if layer else 2 * WIDTH
        for name, rows in (("q", HEADS), ("k", KV), ("v", KV)):
            made[f"{at}self_attn.{name}_proj.weight"] = matrix(rows * SIZE, wide) * 2
        made[f"{at}self_attn.o_proj.weight"] = matrix(WIDTH, HEADS * SIZE)
        made |= {f"{at}mlp.{name}_proj.weight": matrix(INNER, WIDTH) for name in ("gate", "up")}
        made[f"{at}mlp.down_proj.weight"] = matrix(WIDTH, INNER)
        made |= {f"{at}{name}_layernorm.weight": norm() for name in ("input", "post_attention")}
    return made


def folder(
    path: Path,
    kind: str = "specforge",
    vocab: int = 48,
    words: int = 20,
    layers: int = 3,
    more: Mapping[str, Tensor | None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A random draft in a public form; `more` and `config` change it, None takes away."""
    made: dict[str, Tensor | None] = {**_weights(vocab, words, layers), **(more or {})}
    tensors = {name: part for name, part in made.items() if part is not None}
    block = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
    }
    said: dict[str, Any] = {**block, "pard_token": MASK, "eagle_aux_hidden_state_layer_ids": list(STATES)}
    g = torch.Generator().manual_seed(12)
    if kind in ("speculators", "normed", "qwen3"):
        said = {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"], "mask_token_id": MASK}
        said |= {"transformer_layer_config": block, "eagle_aux_hidden_state_layer_ids": list(STATES)}
    if kind == "normed":
        said["norm_before_residual"] = True
    if kind == "qwen3":
        norms = (f"layers.{layer}.self_attn.{part}_norm.weight" for layer in range(layers) for part in "qk")
        tensors |= {name: torch.rand(SIZE, generator=g) + 0.5 for name in norms}
    if kind == "nemo":
        tensors |= {f"fc_norm.{index}.weight": torch.rand(WIDTH, generator=g) + 0.5 for index in range(3)}
        tensors["mask_hidden"] = tensors["mask_hidden"][0]
        kept = ("lm_head.weight", "d2t", "t2d", "mask_hidden")
        tensors = {name if name in kept else f"model.{name}": part for name, part in tensors.items()}
        said = {**said, "mask_token_id": said.pop("pard_token"), "parallel_drafting": True, "fc_norm": True}
    if kind == "other_norms":
        for layer in range(1, layers):
            tensors[f"layers.{layer}.hidden_norm.weight"] = tensors.pop(f"layers.{layer}.input_layernorm.weight")
    said = {key: value for key, value in {**said, **(config or {})}.items() if value is not None}
    return eagles.write(path, tensors, said)


class Formula:
    """A draft in float64, computed from the files."""

    def __init__(self, path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        self.block = config.get("transformer_layer_config", config)
        self.normed = config.get("norm_before_residual", False)
        self.mask = config.get("mask_token_id", config.get("pard_token"))
        loaded = load_file(path / "model.safetensors")
        self.p = {name.removeprefix("model."): part.double() for name, part in loaded.items()}

    def draft(self, tokens: Tensor, states: Tensor, at: Tensor, count: int) -> tuple[Tensor, list[int]]:
        """Logits [count, Vd] and likeliest tokens behind the last of `tokens` [S], made from `states` [S, 3, d] at `at` [S]."""
        blank = self.p["mask_hidden"].view(1, 3, -1).expand(count - 1, -1, -1)
        states = torch.cat((states.double(), blank))
        ids = torch.cat((tokens, torch.full((count - 1,), self.mask)))
        at = torch.cat((at, at[-1] + torch.arange(1, count)))
        logits = self.logits(self.features(ids, self.fused(states), at)[-count:])
        return logits, [self.word(row) for row in logits]

    def fused(self, states: Tensor) -> Tensor:
        if "fc_norm.0.weight" in self.p:
            states = torch.stack([rms(states[:, i], self.p[f"fc_norm.{i}.weight"]) for i in range(3)], 1)
        return states.flatten(1) @ self.p["fc.weight"].T

    def features(self, ids: Tensor, g: Tensor, at: Tensor) -> Tensor:
        p = self.p
        h = rms(g, p["layers.0.hidden_norm.weight"])
        x = h if self.normed else g
        u = torch.cat((rms(p["embed_tokens.weight"][ids], p["layers.0.input_layernorm.weight"]), h), 1)
        for i in range(self.block["num_hidden_layers"]):
            if i:
                other = p.get(f"layers.{i}.hidden_norm.weight")
                u = rms(x, p[f"layers.{i}.input_layernorm.weight"] if other is None else other)
            x = x + self.attention(f"layers.{i}.self_attn.", u, at)
            m = rms(x, p[f"layers.{i}.post_attention_layernorm.weight"])
            gate, up, down = (p[f"layers.{i}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            z = m @ gate.T
            x = x + (z / (1 + (-z).exp()) * (m @ up.T)) @ down.T
        return x

    def attention(self, name: str, u: Tensor, at: Tensor) -> Tensor:
        q, k, v = ((u @ self.p[f"{name}{part}_proj.weight"].T).view(len(u), -1, SIZE) for part in "qkv")
        if f"{name}q_norm.weight" in self.p:
            q, k = rms(q, self.p[f"{name}q_norm.weight"]), rms(k, self.p[f"{name}k_norm.weight"])
        angles = at[:, None, None] * THETA ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (torch.complex(*x.chunk(2, -1)) * turn for x in (q, k))
        heads = []
        for head in range(HEADS):
            mine = head * KV // HEADS
            scores = (q[:, head] @ k[:, mine].conj().T).real / SIZE**0.5
            scores[torch.ones_like(scores).triu(1) == 1] = -torch.inf
            heads.append(scores.softmax(-1) @ v[:, mine])
        return torch.cat(heads, 1) @ self.p[f"{name}o_proj.weight"].T

    def logits(self, features: Tensor) -> Tensor:
        return rms(features, self.p["norm.weight"]) @ self.p["lm_head.weight"].T

    def word(self, row: Tensor) -> int:
        return int(row.argmax() + self.p["d2t"][row.argmax()])


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight
