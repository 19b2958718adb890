"""Blocks of quantised weights: read as codes in groups, or expanded.

Letters: `n` blocks in a chunk, `w` weights in a block, `g` weights that share a scale. Each reader takes [n, bytes] uint8 and
returns codes [n, w], scales [n, w / g], and offsets of that shape or None; products and sums are rounded one after the other,
as other readers of the format do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .quantized import Grouped, pack_nibbles

# Weights read at a time. That many stay in the processor's cache, and torch does not split the work on them: waiting for
# its other threads at every step of every chunk costs far more than it gains as soon as another program is busy.
_CHUNK = 32_256
_CODES = 1 << 19  # the same for codes, which need fewer and smaller steps
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # e2m1 values, doubled
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Codes = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of block. `bits`: 4 where codes are 0..15, else 8."""

    weights: int
    nbytes: int
    group: int
    bits: int
    read: Callable[[Tensor], Codes]
    table: tuple[int, ...] | None = None


def expand(raw: memoryview, kind: str, dtype: torch.dtype | None = None) -> Tensor:
    """`raw` blocks of `kind` as a new flat tensor of `dtype` (None: as stored, float32 for quantised blocks)."""
    data = torch.frombuffer(raw, dtype=torch.uint8)
    if kind in _PLAIN:
        return data.view(_PLAIN[kind]).to(dtype or _PLAIN[kind], copy=True)
    how = _KINDS[kind]
    table = None if how.table is None else torch.tensor(how.table, dtype=torch.float32)
    blocks = data.view(-1, how.nbytes)
    out = torch.empty(blocks.shape[0], how.weights, dtype=dtype or torch.float32)
    step = _CHUNK // how.weights
    for start in range(0, blocks.shape[0], step):
        codes, scale, low = how.read(blocks[start : start + step])
        values = codes.float() if table is None else table[codes.int()]
        values = values.view(-1, scale.shape[1], how.group).mul_(scale.float()[..., None])
        if low is not None:
            values.add_(low.float()[..., None])
        out[start : start + step] = values.view(-1, how.weights)
    return out.view(-1)


def grouped(raw: memoryview, kind: str, columns: int) -> Grouped | None:
    """`raw` blocks of `kind` as a matrix of that many columns; None for kinds that are no blocks."""
    if kind in _PLAIN:
        return None
    how = _KINDS[kind]
    blocks = torch.frombuffer(raw, dtype=torch.uint8).view(-1, how.nbytes)
    step, parts = _CODES // how.weights, []
    for start in range(0, blocks.shape[0], step):
        codes, scale, low = how.read(blocks[start : start + step])
        parts.append((pack_nibbles(codes, how.group) if how.bits == 4 else codes, scale, low))
    codes, scale = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    lows = [low for _, _, low in parts if low is not None]
    low = torch.cat(lows).view(-1, columns // how.group) if lows else None
    table = None if how.table is None else torch.tensor(how.table, dtype=torch.float32)
    codes = codes.view(-1, columns * how.bits // 8)
    return Grouped(codes, scale.view(-1, columns // how.group), low, table, how.bits)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _nibbles(packed: Tensor) -> Tensor:
    """[n, b] bytes -> [n, 2 b]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _fifth(blocks: Tensor, at: int) -> Tensor:
    """Bit i of the 32-bit word at byte `at`, moved to bit 4: [n, 32]."""
    word = blocks[:, at : at + 4]  # [n, 4]
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (word.unsqueeze(2) >> shifts) & 1  # [n, 4, 8]
    return bits.view(-1, 32) << 4


def _q4_0(blocks: Tensor) -> Codes:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, scale.float().mul_(-8)


def _q4_1(blocks: Tensor) -> Codes:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Codes:
    q = _nibbles(blocks[:, 6:]) | _fifth(blocks, 2)
    return q.view(torch.int8).sub_(16), _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> Codes:
    return _nibbles(blocks[:, 8:]) | _fifth(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Codes:
    return blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0), None


def _iq4_nl(blocks: Tensor) -> Codes:
    return _nibbles(blocks[:, 2:]), _half(blocks, 0), None


def _iq4_xs(blocks: Tensor) -> Codes:
    places = torch.arange(8, dtype=torch.int32)
    low = (blocks[:, 4:8].repeat_interleave(2, 1) >> (places % 2 * 4).byte()) & 15  # [n, 8]
    high = (blocks[:, 2:4].contiguous().view(torch.int16).int() >> (2 * places)) & 3
    scale = (low | (high << 4)).float().sub_(32).mul_(_half(blocks, 0))
    return _nibbles(blocks[:, 8:].reshape(-1, 16)).view(-1, 256), scale, None


def _mxfp4(blocks: Tensor) -> Codes:
    power = blocks[:, :1].int()
    half = torch.where(power < 2, 0x00200000 << power.clamp(max=1), (power - 1) << 23)  # bits of 2 ^ (power - 128)
    return _nibbles(blocks[:, 1:]), half.view(torch.float32), None


def _quarters(packed: Tensor) -> Tensor:
    """[n, 64] bytes -> [n, 256]: of each 32 bytes the lowest two bits, then the next two and so on."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 256)


def _q2_k(blocks: Tensor) -> Codes:
    packed = blocks[:, :16]
    scale = (packed & 15).float().mul_(_half(blocks, 80))  # [n, 16]
    least = (packed >> 4).float().mul_(_half(blocks, 82))
    return _quarters(blocks[:, 16:80]), scale, least.neg_()


def _q3_k(blocks: Tensor) -> Codes:
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    third = ((blocks[:, :32].unsqueeze(1) >> shifts) & 1).view(-1, 256)  # where it is 0, 4 less
    packed, high = blocks[:, 96:104], blocks[:, 104:108].unsqueeze(1)
    low = torch.cat((packed & 15, packed >> 4), dim=1)  # [n, 16]
    high = ((high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 4, 1)) & 3).view(-1, 16)
    scale = (low | (high << 4)).float().sub_(32).mul_(_half(blocks, 108))
    return _quarters(blocks[:, 32:96]) | (third << 2), scale, scale * -4


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and negative minima of the 8 groups, 6 bits each in 12 bytes, times their float16 factors: two [n, 8]."""
    low, mid, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scale = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=1)
    least = torch.cat((mid & 63, (high >> 4) | ((mid >> 6) << 4)), dim=1)
    return scale.float().mul_(_half(blocks, 0)), least.float().mul_(_half(blocks, 2)).neg_()


def _k_nibbles(packed: Tensor) -> Tensor:
    """[n, 128] bytes -> [n, 256]: of each 32 bytes the low halves, then the high ones."""
    quads = packed.reshape(-1, 4, 1, 32)
    return torch.cat((quads & 15, quads >> 4), dim=2).view(-1, 256)


def _q4_k(blocks: Tensor) -> Codes:
    return _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: Tensor) -> Codes:
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4  # [n, 8, 32]
    return _k_nibbles(blocks[:, 48:]) | fifth.view(-1, 256), *_k_scales(blocks)


def _q6_k(blocks: Tensor) -> Codes:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).view(-1, 256)
    scale = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)  # [n, 16]
    return (low | (_quarters(blocks[:, 128:192]) << 4)).view(torch.int8).sub_(32), scale, None


_KINDS = {
    "Q4_0": _Kind(32, 18, 32, 4, _q4_0),
    "Q4_1": _Kind(32, 20, 32, 4, _q4_1),
    "Q5_0": _Kind(32, 22, 32, 8, _q5_0),
    "Q5_1": _Kind(32, 24, 32, 8, _q5_1),
    "Q8_0": _Kind(32, 34, 32, 8, _q8_0),
    "IQ4_NL": _Kind(32, 18, 32, 4, _iq4_nl, _IQ4),
    "IQ4_XS": _Kind(256, 136, 32, 4, _iq4_xs, _IQ4),
    "MXFP4": _Kind(32, 17, 32, 4, _mxfp4, _FP4),
    "Q2_K": _Kind(256, 84, 16, 4, _q2_k),
    "Q3_K": _Kind(256, 110, 16, 4, _q3_k),
    "Q4_K": _Kind(256, 144, 32, 4, _q4_k),
    "Q5_K": _Kind(256, 176, 32, 8, _q5_k),
    "Q6_K": _Kind(256, 210, 16, 8, _q6_k),
}
