"""Triton kernels: few rows through the experts that each of them has chosen. Imported only where Triton is.

Three launches, and the host never learns what was chosen: gate and up of all pairs (row, slot) with the activation, down of
all pairs, and the weighted sum of each row's slots in their order. An expert's matrices are found by their addresses, which
are in a table on the device, so they may be anywhere.

A program makes some outputs for up to 16 pairs that have chosen one expert, which is read once for all of them. It belongs to
the first of these pairs; programs of the others leave at once. A tile is 16 wide however few pairs there are, and sums run
along the inputs in one order, so a row's result does not depend on its neighbours.

Letters: `S` rows, `k` slots of a row, `P` = S k pairs, `E` experts, `o` outputs, `i` inputs, `d` width, `I` inner width.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.core.model.families.spec import Activation

from .gates import activated
from .interface import KINDS
from .linear import Expanding, Linear
from .matmul import _value

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_TILE = 16  # pairs of one program
_LOOKED = 64  # pairs that a program looks through at once for those that it takes
_PLAIN_OUTPUTS, _PLAIN_BYTES = 32, 256  # of one step; a row is read in long pieces
_OUTPUTS, _BYTES = 64, 64  # the same for codes, which take more steps to expand
_STAGES, _SHARED = 4, 48 << 10  # steps under way, and bytes of them
_WIDE = 16  # bytes that one thread reads at once where rows begin at multiples of them
_ADDED = 1024  # channels of one program of the last launch
_RELU2, _NONE = 3, 4  # beside the gated kinds
_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # what 4-bit floats stand for, up to a factor; then the same below zero


@triton.jit
def _earlier(chosen, pair, STEP: tl.constexpr):
    """How many pairs before this one have chosen its expert."""
    expert = tl.load(chosen + pair)
    found = pair * 0
    for start in range(0, pair, STEP):
        q = start + tl.arange(0, STEP)
        found += tl.sum((tl.load(chosen + q, mask=q < pair, other=-1) == expert).to(tl.int32), 0)
    return found


@triton.jit
def _mates(chosen, pair, pairs, TILE: tl.constexpr, STEP: tl.constexpr):
    """The next TILE pairs from this one on that have chosen its expert, and which of them exist."""
    expert = tl.load(chosen + pair)
    slot = tl.arange(0, TILE)
    mates = tl.zeros((TILE,), dtype=tl.int32)
    found = pair * 0
    for start in range(pair, pairs, STEP):
        q = start + tl.arange(0, STEP)
        same = (tl.load(chosen + q, mask=q < pairs, other=-1) == expert).to(tl.int32)
        rank = found + tl.cumsum(same, 0) - same
        hit = (same[None, :] > 0) & (rank[None, :] == slot[:, None])
        mates += tl.sum(tl.where(hit, q[None, :], 0), 1)
        found += tl.sum(same, 0)
    return mates, slot < found


@triton.jit
def _plain(total, line, out_there, x_line, there, inputs, BLOCK_I: tl.constexpr):
    """Adds plain rows [o, i] times the pairs' inputs to `total` [o, TILE]."""
    for start in range(0, inputs, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        some = tl.load(x_line + i[:, None], mask=(i < inputs)[:, None] & there[None, :], other=0.0)
        weight = tl.load(line + i[None, :], mask=out_there[:, None] & (i < inputs)[None, :], other=0.0)
        total = tl.dot(weight, some, total, input_precision="ieee")
    return total


@triton.jit
def _float4(code):
    """What codes stand for in a table of 4-bit floats, as float32: those lack six bits of exponent and 22 of mantissa."""
    bits = ((code.to(tl.int32) << 28) >> 6) & -0x7E400000
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def _packed(
    total,
    line,
    scale_line,
    low_line,
    table,
    out_there,
    x_line,
    there,
    length,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT4: tl.constexpr,
    FLOAT8: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """As `_plain` for codes, expanded as `kernels` does."""
    EACH: tl.constexpr = GROUP * BITS // 8  # bytes of a group
    CHUNKS: tl.constexpr = BLOCK_B // CHUNK  # a chunk is in one group
    unit = tl.load(table + 2) if FLOAT4 else 1.0
    for start in range(0, length, BLOCK_B):
        at = start + tl.arange(0, BLOCK_B)
        byte = tl.load(line + at[None, :], mask=out_there[:, None] & (at < length)[None, :], other=0)
        byte = tl.reshape(byte, (BLOCK_O, CHUNKS, CHUNK))
        chunk = start + tl.arange(0, CHUNKS) * CHUNK
        mask = out_there[:, None] & (chunk < length)[None, :]
        factor = tl.load(scale_line + (chunk // EACH)[None, :], mask=mask, other=0.0).to(tl.float32)[:, :, None] * unit
        if LOW:
            shift = tl.load(low_line + (chunk // EACH)[None, :], mask=mask, other=0.0).to(tl.float32)[:, :, None]
        first = at // EACH * GROUP + at % EACH if BITS == 4 else at  # byte t of a group: code t below, t + g / 2 above
        x_mask = (at < length)[:, None] & there[None, :]
        for half in tl.static_range(8 // BITS):
            code = ((byte >> 4) if half == 1 else (byte & 15)) if BITS == 4 else byte
            value = (_float4(code) if FLOAT4 else _value(code, table, TABLE, FLOAT8)) * factor
            if LOW:
                value = value + shift
            some = tl.load(x_line + first[:, None] + half * (GROUP // 2), mask=x_mask, other=0.0)
            weight = tl.reshape(value.to(some.dtype), (BLOCK_O, BLOCK_B))
            total = tl.dot(weight, some, total, input_precision="ieee")
    return total


# Not formatted, so that many arguments share a line.
# fmt: off
@triton.jit(do_not_specialize=["pairs"])
def _through(
    x, chosen, places, weight, scale, low, table, bias, out, pairs, slots, experts, outputs, inputs, length, groups,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, BITS: tl.constexpr, TABLE: tl.constexpr, FLOAT4: tl.constexpr,
    FLOAT8: tl.constexpr, LOW: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_B: tl.constexpr, ALIGNED: tl.constexpr,
):
    """Some outputs of one expert for the pairs that one program takes. Of the first expert's tensors only the dtypes are used."""
    pair = tl.program_id(1)
    if _earlier(chosen, pair, STEP) % TILE != 0:
        return
    mates, there = _mates(chosen, pair, pairs, TILE, STEP)
    at = places + tl.load(chosen + pair)
    GATED: tl.constexpr = KIND < 3
    EACH: tl.constexpr = BLOCK_O // 2 if GATED else BLOCK_O
    r = tl.arange(0, BLOCK_O)
    o = tl.program_id(0) * EACH + r % EACH  # gates, then the linear halves of the same channels
    row = o + r // EACH * outputs
    out_there = o < outputs
    x_line = x + (mates // slots)[None, :].to(tl.int64) * inputs
    line = tl.multiple_of(tl.load(at).to(weight.dtype), ALIGNED) + row.to(tl.int64)[:, None] * length
    total = tl.zeros((BLOCK_O, TILE), dtype=tl.float32)
    if BITS > 8:
        total = _plain(total, line, out_there, x_line, there, inputs, BLOCK_B)
    else:
        scale_at = row.to(tl.int64)[:, None] * groups
        total = _packed(
            total,
            line,
            tl.load(at + experts).to(scale.dtype) + scale_at,
            tl.load(at + 2 * experts).to(low.dtype) + scale_at,
            tl.load(at + 3 * experts).to(table.dtype),
            out_there,
            x_line,
            there,
            length,
            GROUP,
            CHUNK,
            BITS,
            TABLE,
            FLOAT4,
            FLOAT8,
            LOW,
            BLOCK_O,
            BLOCK_B,
        )
    if BIAS:
        shift = tl.load(tl.load(at + 4 * experts).to(bias.dtype) + row, mask=out_there, other=0.0)
        total += shift.to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(total, (2, EACH, TILE)), (1, 2, 0)))
        total = activated(gate, up, KIND, out.dtype.element_ty)
    elif KIND == 3:
        total = tl.maximum(total, 0.0)
        total = total * total
    o = tl.program_id(0) * EACH + tl.arange(0, EACH)
    place = mates[None, :].to(tl.int64) * outputs + o[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(o < outputs)[:, None] & there[None, :])
# fmt: on


@triton.jit
def _join(parts, weights, out, width, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """Some channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for slot in range(SLOTS):
        pair = row * SLOTS + slot
        part = tl.load(parts + pair * width + d, mask=d < width, other=0.0)
        total += part * tl.load(weights + pair).to(tl.float32)
    tl.store(out + row * width + d, total.to(out.dtype.element_ty), mask=d < width)


class _Parts(NamedTuple):
    """What a layer's product reads, in the order of a table of addresses."""

    weight: Tensor  # plain or codes
    scale: Tensor | None = None
    low: Tensor | None = None
    table: Tensor | None = None
    bias: Tensor | None = None


class _Bank:
    """One matrix [o, i] of every expert."""

    def __init__(self, parts: Sequence[_Parts], features: torch.Size) -> None:
        self.first, self.features = parts[0], features
        weight = self.first.weight
        self.bits = weight.nbytes * 8 // features.numel()
        self._held = parts  # an address keeps nothing alive
        rows = [[0 if part is None else part.data_ptr() for part in some] for some in zip(*parts, strict=True)]
        self.places = torch.tensor(rows, dtype=torch.int64, device=weight.device)  # [5, E]
        self._aligned = math.gcd(_WIDE, *rows[0])
        tables = [some.table for some in parts if some.table is not None]
        self._float4 = bool(tables) and _floats(torch.stack(tables).cpu())

    def through(self, x: Tensor, chosen: Tensor, slots: int, out: Tensor, kind: int) -> None:
        """Pair p's row, `x[p // slots]`, through the matrix of `chosen[p]` and an activation, into `out[p]`."""
        first, (rows, inputs) = self.first, self.features
        outputs, packed = rows // 2 if kind < _RELU2 else rows, first.scale is not None
        length, groups = first.weight.shape[1], 1 if first.scale is None else first.scale.shape[1]
        float8 = first.weight.dtype == torch.float8_e4m3fn
        weight = first.weight.view(torch.uint8) if float8 else first.weight
        block, nbytes = (_OUTPUTS, _BYTES) if packed else (_PLAIN_OUTPUTS, _PLAIN_BYTES)
        step, group = nbytes // first.weight.element_size(), inputs // groups
        under_way = nbytes * (block + _TILE * 8 * x.element_size() // self.bits)
        pairs = chosen.numel()
        _through[triton.cdiv(outputs, block // 2 if kind < _RELU2 else block), pairs](
            x,
            chosen,
            self.places,
            weight,
            *(weight if part is None else part for part in first[1:]),
            out,
            pairs,
            slots,
            self.places.shape[1],
            outputs,
            inputs,
            length,
            groups,
            GROUP=group,
            CHUNK=step if groups == 1 else math.gcd(group * self.bits // 8, step),
            BITS=self.bits,
            TABLE=first.table is not None,
            FLOAT4=self._float4,
            FLOAT8=float8,
            LOW=first.low is not None,
            BIAS=first.bias is not None,
            KIND=kind,
            TILE=_TILE,
            STEP=_LOOKED,
            BLOCK_O=block,
            BLOCK_B=step,
            ALIGNED=self._aligned,
            num_warps=2,
            num_stages=1
            if first.table is not None and not self._float4
            else max(1, min(_STAGES, _SHARED // under_way)),
        )


class Mixture:
    """`interface.Mixture` by the kernels of this file."""

    def __init__(self, upper: _Bank, lower: _Bank, kind: int) -> None:
        """`upper`: d -> 2 I, gates first, or d -> I. `lower`: I -> d."""
        self._upper, self._lower, self._kind = upper, lower, kind

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """As `interface.Mixture`; sums are made in fp32 and rounded once."""
        (rows, width), slots = x.shape, chosen.shape[1]
        chosen, weights = chosen.contiguous(), weights.contiguous()
        inner = torch.empty(rows * slots, self._lower.features[1], dtype=x.dtype, device=x.device)
        parts = torch.empty(rows * slots, width, dtype=torch.float32, device=x.device)
        out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
        if rows:
            self._upper.through(x.contiguous(), chosen, slots, inner, self._kind)
            self._lower.through(inner, chosen, 1, parts, _NONE)
            _join[rows, triton.cdiv(width, _ADDED)](parts, weights, out, width, SLOTS=slots, BLOCK=_ADDED)
        return out


def mixture(
    upper: Sequence[Linear], lower: Sequence[Linear], activation: Activation, dtype: torch.dtype
) -> Mixture | None:
    """For experts that are all alike; None where they are not, or no kernel reads their matrices."""
    if dtype not in _DTYPES:
        return None
    first, second = _bank(upper, dtype), _bank(lower, dtype)
    if first is None or second is None:
        return None
    return Mixture(first, second, _RELU2 if activation == "relu2" else KINDS[activation])


def _bank(layers: Sequence[Linear], dtype: torch.dtype) -> _Bank | None:
    kinds, parts = set[Any](), list[_Parts]()
    for layer in layers:
        some = _parts(layer, dtype)
        if some is None or not all(part is None or part.is_contiguous() for part in some):
            return None
        kinds.add((layer.features, *(None if part is None else (part.dtype, part.shape) for part in some)))
        parts.append(some)
    return _Bank(parts, layers[0].features) if len(kinds) == 1 else None


def _parts(layer: Linear, dtype: torch.dtype) -> _Parts | None:
    if isinstance(layer, Expanding):
        held = layer.held
        return _Parts(held.codes, held.scale, held.low, held.table, layer.bias)
    return _Parts(layer.weight, bias=layer.bias) if type(layer) is Linear and layer.weight.dtype == dtype else None


def _floats(tables: Tensor) -> bool:
    """Whether tables [E, 16] hold 4-bit floats."""
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    return torch.equal(tables, tables[:, 2:3] * values)
