"""Blocks of quantised weights, expanded with torch.

Letters: `n` blocks in a chunk, `w` weights in a block. Each expander takes [n, bytes] uint8 and returns [n, w] float32, with
products and sums rounded one after the other, as other readers of the format do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Weights expanded at a time. That many stay in the processor's cache, and torch does not split the work on them: waiting for
# its other threads at every step of every chunk costs far more than it gains as soon as another program is busy.
_CHUNK = 32_256
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def expand(raw: memoryview, kind: str, dtype: torch.dtype | None = None) -> Tensor:
    """`raw` blocks of `kind` as a new flat tensor of `dtype` (None: as stored, float32 for quantised blocks)."""
    data = torch.frombuffer(raw, dtype=torch.uint8)
    if kind in _PLAIN:
        return data.view(_PLAIN[kind]).to(dtype or _PLAIN[kind], copy=True)
    weights, size, expander = _EXPANDERS[kind]
    blocks = data.view(-1, size)  # [blocks, bytes]
    out = torch.empty(blocks.shape[0], weights, dtype=dtype or torch.float32)
    step = _CHUNK // weights
    for start in range(0, blocks.shape[0], step):
        out[start : start + step] = expander(blocks[start : start + step])
    return out.view(-1)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[n, b] bytes -> [n, 2 b]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _fifth(blocks: Tensor, at: int) -> Tensor:
    """Bit i of the 32-bit word at byte `at`, moved to bit 4: [n, 32]."""
    word = blocks[:, at : at + 4]  # [n, 4]
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (word.unsqueeze(2) >> shifts) & 1  # [n, 4, 8]
    return bits.view(-1, 32) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 2:]).float().sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 6:]) | _fifth(blocks, 2)
    return q.float().sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 8:]) | _fifth(blocks, 4)
    return q.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_half(blocks, 0))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the 8 groups, 6 bits each in 12 bytes, times their float16 factors: two [n, 8, 1]."""
    low, mid, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scale = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=1)
    least = torch.cat((mid & 63, (high >> 4) | ((mid >> 6) << 4)), dim=1)
    return (scale.float() * _half(blocks, 0)).unsqueeze(2), (least.float() * _half(blocks, 2)).unsqueeze(2)


def _k_nibbles(packed: Tensor) -> Tensor:
    """[n, 128] bytes -> [n, 8, 32]: of each 32 bytes the low halves, then the high ones."""
    quads = packed.reshape(-1, 4, 1, 32)
    return torch.cat((quads & 15, quads >> 4), dim=2).view(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, least = _k_scales(blocks)
    return _k_nibbles(blocks[:, 16:]).float().mul_(scale).sub_(least).view(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, least = _k_scales(blocks)
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4  # [n, 8, 32]
    q = _k_nibbles(blocks[:, 48:]) | fifth
    return q.float().mul_(scale).sub_(least).view(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).view(-1, 8, 32)  # [n, 8, 32]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 8, 32)
    scale = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)  # [n, 16]
    q = (low | (high << 4)).view(-1, 16, 16).float().sub_(32)
    return q.mul_(scale.unsqueeze(2)).view(-1, 256)


_EXPANDERS: dict[str, tuple[int, int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
}
