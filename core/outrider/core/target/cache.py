"""Keys and values of one conversation: static buffers with slack, rolled back by moving a length.

Letters: `L` layers, `K` key/value heads, `C` capacity in tokens, `h` head size, `S` new tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .spec import TargetSpec

SPAN = 64  # a pass looks at a multiple of this many rows


def span(length: int) -> int:
    """Rows that a pass reads for `length` tokens, the rest masked.

    Sums over a row of scores are split by its length; with a length that only grows in steps, and masked entries that add
    exact zeros, a token's result does not depend on how many tokens share its pass.
    """
    return -(-length // SPAN) * SPAN


class Cache:
    """Static K/V, one row of `rows` for each token: keys, then values. Rows at and beyond `length` are scratch."""

    def __init__(self, spec: TargetSpec, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (span(capacity), 2 * spec.kv_heads, spec.head_dim)
        self.rows = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.layers)]  # L x [span(C), 2K, h]
        self._heads = spec.kv_heads
        self.capacity = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(rows.nbytes for rows in self.rows)

    def write(self, layer: int, positions: Tensor, kv: Tensor) -> None:
        """Put `kv` [S, 2K, h] at `positions` [S] of a layer."""
        self.rows[layer].index_copy_(0, positions, kv)

    def read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `end` tokens, each a view [1, K, end, h]."""
        view = self.rows[layer][:end].transpose(0, 1)[None]  # [1, 2K, end, h]
        return view[:, : self._heads], view[:, self._heads :]

    def commit(self, length: int) -> None:
        """The first `length` tokens are true, forwards or backwards; nothing is copied."""
        if not 0 <= length <= self.capacity:
            raise ValueError(f"length {length} outside a cache of {self.capacity}")
        self.length = length
