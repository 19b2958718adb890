"""Keys and values of one conversation: static buffers with slack, rolled back by moving a length.

Letters: `L` layers, `K` key/value heads, `C` capacity in tokens, `d` head size, `S` new tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .spec import TargetSpec


class Cache:
    """Static K/V. Rows at and beyond `length` are scratch: a pass writes them, `commit` or the next pass decides their fate."""

    def __init__(self, spec: TargetSpec, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (spec.layers, spec.kv_heads, capacity, spec.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)  # [L, K, C, d]
        self.v = torch.zeros(shape, dtype=dtype, device=device)  # [L, K, C, d]
        self.capacity = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return self.k.nbytes + self.v.nbytes

    def write(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Put `k`, `v` [S, K, d] at `positions` [S] of a layer."""
        self.k[layer].index_copy_(1, positions, k.transpose(0, 1))
        self.v[layer].index_copy_(1, positions, v.transpose(0, 1))

    def commit(self, length: int) -> None:
        """The first `length` tokens are true, forwards or backwards; nothing is copied."""
        if not 0 <= length <= self.capacity:
            raise ValueError(f"length {length} outside a cache of {self.capacity}")
        self.length = length
