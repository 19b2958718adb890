"""The decoder: weights and one forward pass over them. It owns no conversation; K/V come in with each call.

Letters: `S` new tokens, `V` vocabulary, `d` width, `H` query heads, `K` key/value heads, `G` = H / K, `h` head size,
`C` visible cache rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import Cache, span
from .linear import Linear
from .spec import TargetSpec

FOLD_ROWS = 32  # up to here query groups are folded into rows, so that K and V are read once without expanding them


class Pass(NamedTuple):
    """What one forward gives."""

    logits: Tensor  # [S or 1, V]
    hidden: Tensor | None  # [S, states asked for, d]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, fused as the forward wants them."""

    input_norm: Tensor  # [d]
    qkv: Linear  # d -> (H + 2 K) h
    out: Linear  # H h -> d
    mlp_norm: Tensor  # [d]
    gate_up: Linear  # d -> 2 mlp_width
    down: Linear  # mlp_width -> d


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything a decoder reads."""

    embedding: Tensor  # [V, d]
    layers: tuple[Layer, ...]
    norm: Tensor  # [d]
    head: Linear  # d -> V
    cos: Tensor  # [C, h]
    sin: Tensor  # [C, h], signed
    nbytes: int = 0


class Decoder:
    """Pre-norm transformer with grouped-query attention and a gated MLP."""

    def __init__(self, spec: TargetSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self._scale = spec.head_dim**-0.5

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache of this model for `capacity` tokens (at most the rope table's rows)."""
        rows = self.weights.cos.shape[0]
        if capacity > rows:
            raise ValueError(f"capacity {capacity} exceeds the rope table of {rows}")
        return Cache(self.spec, capacity, self.dtype, self.device)

    def embed(self, ids: Tensor) -> Tensor:
        """[S] -> [S, d]."""
        return F.embedding(ids, self.weights.embedding)

    def norm(self, hidden: Tensor) -> Tensor:
        """Final norm alone, [S, d] -> [S, d]."""
        return F.rms_norm(hidden, (self.spec.width,), self.weights.norm, self.spec.eps)

    def head(self, hidden: Tensor) -> Tensor:
        """[S, d] -> [S, V], no norm."""
        return self.weights.head(hidden)

    @torch.inference_mode()
    def run(self, ids: Tensor, cache: Cache, *, last: bool = False, states: Sequence[int] = ()) -> Pass:
        """One pass over `ids` [S] at `cache.length`; K/V are written there, the length is not moved.

        `last`: logits of the last row only. `states`: numbers of the residuals to export (0 embedding … L before the norm).
        """
        kept: dict[int, Tensor] = {}
        x = self._layers(ids, cache, cache.length, self.spec.layers, (states, kept))
        hidden = torch.stack([kept[k] for k in states], 1) if states else None
        return Pass(self.head(self.norm(x[-1:] if last else x)), hidden)

    @torch.inference_mode()
    def early(self, ids: Tensor, cache: Cache, start: int, layers: int) -> Tensor:
        """Residual [S, d] after the first `layers` layers for `ids` at `start`; their K/V are scratch."""
        return self._layers(ids, cache, start, layers, ((), {}))

    def _layers(
        self, ids: Tensor, cache: Cache, start: int, count: int, keep: tuple[Sequence[int], dict[int, Tensor]]
    ) -> Tensor:
        states, kept = keep
        rows = ids.shape[0]
        end = start + rows
        if end > cache.capacity:
            raise ValueError(f"{rows} tokens at {start} exceed a cache of {cache.capacity}")
        positions = torch.arange(start, end, device=self.device)  # [S]
        cos = self.weights.cos[start:end, None]  # [S, 1, h]
        sin = self.weights.sin[start:end, None]
        end = span(end)
        mask = self._mask(positions, end)
        x = self.embed(ids)  # [S, d]
        for index, layer in enumerate(self.weights.layers[:count]):
            if index in states:
                kept[index] = x
            x = layer.out.plus(self._attention(index, layer, x, (cos, sin, positions, mask, end), cache), x)
            x = layer.down.plus(self._mlp(layer, x), x)
        if count in states:
            kept[count] = x
        return x

    def _mask(self, positions: Tensor, end: int) -> Tensor:
        """Additive causal mask `[G S or S, C]`."""
        rows = positions.shape[0]
        hidden = torch.arange(end, device=self.device) > positions[:, None]  # [S, C]
        mask = torch.zeros_like(hidden, dtype=self.dtype).masked_fill_(hidden, float("-inf"))
        return mask.repeat(self.spec.groups, 1) if rows <= FOLD_ROWS else mask

    # Both halves of a block return what goes into their output projection, which adds the residual itself.

    def _attention(self, index: int, layer: Layer, x: Tensor, where: tuple, cache: Cache) -> Tensor:
        cos, sin, positions, mask, end = where
        spec, rows = self.spec, x.shape[0]
        normed = F.rms_norm(x, (spec.width,), layer.input_norm, spec.eps)
        qkv = layer.qkv(normed).view(rows, spec.heads + 2 * spec.kv_heads, spec.head_dim)  # [S, H + 2K, h]
        roped = qkv[:, : spec.heads + spec.kv_heads]  # [S, H + K, h]
        torch.addcmul(roped * cos, roped.roll(spec.head_dim // 2, -1), sin, out=roped)
        cache.write(index, positions, qkv[:, spec.heads :])
        keys, values = cache.read(index, end)  # [1, K, C, h]
        q = qkv[:, : spec.heads]
        if rows > FOLD_ROWS:
            q = q.transpose(0, 1)[None]  # [1, H, S, h]
            y = F.scaled_dot_product_attention(q, keys, values, mask, scale=self._scale, enable_gqa=True)
            return y[0].transpose(0, 1).reshape(rows, -1)
        q = q.view(rows, spec.kv_heads, spec.groups, spec.head_dim).permute(1, 2, 0, 3)  # [K, G, S, h]
        q = q.reshape(1, spec.kv_heads, spec.groups * rows, spec.head_dim)
        y = F.scaled_dot_product_attention(q, keys, values, mask, scale=self._scale)
        y = y.view(spec.kv_heads, spec.groups, rows, spec.head_dim).permute(2, 0, 1, 3)  # [S, K, G, h]
        return y.reshape(rows, -1)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        normed = F.rms_norm(x, (self.spec.width,), layer.mlp_norm, self.spec.eps)
        gate, up = layer.gate_up(normed).chunk(2, -1)
        return F.silu(gate).mul_(up)
