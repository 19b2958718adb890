"""Quantised matrices as the engine keeps them: whole-number codes, and a scale for each group of them along the inputs.

One form stands for all that files hold: 4-bit blocks of GGUF, AWQ, GPTQ and compressed-tensors, 5- to 8-bit blocks, FP8
with its scales, the 4-bit floats of MXFP4. How a device multiplies by them is up to `core.model.linear`.

Letters: `o` outputs (rows), `i` inputs, `g` codes in a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .layout import Layout

GROUP = 32  # inputs that share a scale where `quantise` makes 4 bits
_CLIPS = (1.0, 0.95, 0.9, 0.85)  # shares of a group's range that `quantise` tries
_SLICE = 1 << 21  # weights worked on at a time


@dataclass(frozen=True, slots=True)
class Grouped:
    """`w = scale * value(code) + low`, where value is the code itself or its entry in `table`."""

    codes: Tensor  # [o, i] uint8, int8 or float8_e4m3fn; for 4 bits [o, i / 2] uint8, see `pack_nibbles`
    scale: Tensor  # [o, i / g] floating
    low: Tensor | None = None  # [o, i / g]
    table: Tensor | None = None  # [16] float32
    bits: int = 8

    @property
    def shape(self) -> torch.Size:
        """[o, i]."""
        return torch.Size((self.codes.shape[0], self.codes.shape[1] * 8 // self.bits))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.codes.device

    @property
    def group(self) -> int:
        """Codes that share a scale."""
        return self.shape[1] // self.scale.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in (self.codes, self.scale, self.low) if part is not None)

    @property
    def layout(self) -> Layout:
        """What a header would have said."""
        coding = "affine" if self.low is not None else "scaled"
        if self.codes.dtype == torch.float8_e4m3fn:
            coding = "float8"
        elif self.table is not None:
            coding = "table"
        each = self.scale.itemsize + (0 if self.low is None else self.low.itemsize)
        rows, columns = self.shape
        return Layout(rows, columns, self.bits, self.group, coding, each)

    @property
    def whole(self) -> bool:
        """Whether scales and offsets fit the codes."""
        rows, columns = self.shape
        fits = self.scale.shape[0] == rows and self.scale.shape[1] > 0 and columns % self.scale.shape[1] == 0
        return fits and (self.low is None or self.low.shape == self.scale.shape)

    @property
    def kind(self) -> tuple[object, ...]:
        """What must be equal for two of them to be in one matrix."""
        return self.codes.dtype, self.scale.dtype, self.bits, self.group, self.low is None, self.table is None

    def __getitem__(self, rows: Tensor | slice) -> Grouped:
        """Some of the rows, in the order asked."""
        low = None if self.low is None else self.low[rows]
        return replace(self, codes=self._rows(rows), scale=self.scale[rows], low=low)

    def moved(self, order: Tensor) -> Grouped | None:
        """Columns in another order [i], if it keeps groups together; None if it tears them."""
        size = self.group
        first = order.view(-1, size)[:, :1]
        if not torch.equal(order.view(-1, size), first // size * size + torch.arange(size)):
            return None
        groups, rows = first[:, 0] // size, self.shape[0]
        codes = self.codes.view(torch.uint8).view(rows, -1, size * self.bits // 8)[:, groups]
        low = None if self.low is None else self.low[:, groups]
        return replace(self, codes=codes.view(rows, -1).view(self.codes.dtype), scale=self.scale[:, groups], low=low)

    def split(self, sizes: Sequence[int]) -> list[Grouped]:
        """Cut by rows."""
        ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        return [self[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def to(self, device: torch.device) -> Grouped:
        """On another device."""
        low, table = (None if part is None else part.to(device) for part in (self.low, self.table))
        return Grouped(self.codes.to(device), self.scale.to(device), low, table, self.bits)

    def values(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Codes of some rows [n, i], one in a byte."""
        codes = self._rows(rows)
        return codes if self.bits == 8 else unpack_nibbles(codes, self.group)

    def expand(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The plain matrix [o, i]; products and sums are rounded to float32, one after the other, then to `dtype`."""
        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        step = max(1, _SLICE // self.shape[1])
        for start in range(0, self.shape[0], step):
            out[start : start + step] = self.lookup(slice(start, start + step))
        return out

    def lookup(self, rows: Tensor | slice) -> Tensor:
        """Some rows of the plain matrix, [n, i] float32."""
        codes, scale = self.values(rows), self.scale[rows].float()
        made = codes.float() if self.table is None else self.table[codes.int()]
        made = made.view(codes.shape[0], -1, self.group) * scale[..., None]
        if self.low is not None:
            made += self.low[rows].float()[..., None]
        return made.view(codes.shape)

    def _rows(self, rows: Tensor | slice) -> Tensor:
        return self.codes.view(torch.uint8)[rows].view(self.codes.dtype)  # float8 has no indexing of its own


def concat(parts: Sequence[Grouped]) -> Grouped | None:
    """One matrix of all rows; None where the parts are of different kinds."""
    if any(part.kind != parts[0].kind for part in parts):
        return None
    low = None if parts[0].low is None else torch.cat([part.low for part in parts if part.low is not None])
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts]).view(parts[0].codes.dtype)
    return replace(parts[0], codes=codes, scale=torch.cat([part.scale for part in parts]), low=low)


def pack_nibbles(codes: Tensor, group: int) -> Tensor:
    """[o, i] codes 0..15 -> [o, i / 2]: of each group the first half in low nibbles, the second in high ones."""
    halves = codes.view(codes.shape[0], -1, 2, group // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).view(codes.shape[0], -1)


def unpack_nibbles(packed: Tensor, group: int) -> Tensor:
    """The inverse of `pack_nibbles`."""
    halves = packed.view(packed.shape[0], -1, 1, group // 2)
    return torch.cat((halves & 15, halves >> 4), 2).view(packed.shape[0], -1)


def quantise(weight: Tensor, bits: int) -> Grouped:
    """Round a plain matrix [o, i]: 8 bits with one scale a row, 4 bits with a scale and an offset for 32 inputs.

    For 4 bits `i` must be a multiple of `GROUP`. Of a few shares of each group's range the one with the least squared error
    is taken. A 4-bit offset is a multiple of bfloat16's steps, as scales are, because that is what the CPU's kernel reads.
    """
    rows, columns = weight.shape
    step = max(1, _SLICE // columns)
    return (
        _joined([_quantised(part.float(), bits) for part in weight.split(step)]) if rows else _quantised(weight, bits)
    )


def _joined(parts: list[Grouped]) -> Grouped:
    whole = concat(parts)
    assert whole is not None
    return whole


def _quantised(weight: Tensor, bits: int) -> Grouped:
    rows, columns = weight.shape
    size = columns if bits == 8 else GROUP
    groups = weight.view(rows, -1, size)
    least: Tensor | None = None
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for clip in _CLIPS:
        found = _symmetric(groups, clip) if bits == 8 else _affine(groups, clip)
        codes, scale, low = found
        error = (codes * scale + low - groups).square_().sum(-1, keepdim=True)
        if best is None or least is None:
            best, least = found, error
            continue
        better = error < least
        best = tuple(torch.where(better, new, old) for new, old in zip(found, best, strict=True))  # type: ignore[assignment]
        least = torch.minimum(error, least)
    assert best is not None
    codes, scale, low = best[0].view(rows, columns), best[1].squeeze(-1), best[2].squeeze(-1)
    if bits == 8:
        return Grouped(codes.to(torch.int8), scale)
    return Grouped(pack_nibbles(codes.to(torch.uint8), size), scale, low, bits=4)


def _symmetric(groups: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    scale = (groups.abs().amax(-1, keepdim=True) * (clip / 127)).bfloat16().float().clamp_min(1e-12)
    return (groups / scale).round_().clamp_(-127, 127), scale, torch.zeros_like(scale)


def _affine(groups: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0..15. The middle of the range, where the kernel has its zero, is what gets rounded."""
    top, bottom = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    scale = ((top - bottom) * (clip / 15)).bfloat16().float().clamp_min(1e-12)
    zero = ((top + bottom) / 2 + scale / 2).bfloat16().float()  # the value of code 8
    codes = ((groups - zero) / scale).round_().add_(8).clamp_(0, 15)
    return codes, scale, zero - 8 * scale
