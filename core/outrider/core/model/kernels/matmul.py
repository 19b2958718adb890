"""Triton kernels: few rows times a quantised matrix, expanded in registers. Imported only where Triton is.

A program takes some outputs and a part of the inputs; how many parts there are depends on the matrix alone, and their sums are
added in order by a second, small kernel. So a row's result does not depend on how many rows share its pass: up to 16 rows it
is the same code for all, and taller tiles for up to 32 and 64 rows use the same matrix instruction on the same inputs in the
same order. (Two warps and 64 outputs are chosen for that too: with four warps Hopper would take another instruction.)

Letters: `S` rows, `o` outputs, `i` inputs, `g` codes in a group.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.core.formats.quantized import Grouped

ROWS = 16  # of the lowest tile
_HEIGHTS = (ROWS, 32, 64)
_OUTPUTS, _BYTES = 64, 64  # of one step
_PROGRAMS = 512  # wanted at least, as far as each has four steps
_STAGES, _SHARED = 4, 48 << 10  # steps under way, and bytes of them
_ADDED = 512  # results that one program of the second kernel adds up


@triton.jit
def _value(code, table, TABLE: tl.constexpr, FLOAT8: tl.constexpr):
    """What codes stand for, as float32."""
    if TABLE:
        value = tl.load(table + code.to(tl.int32))
    elif FLOAT8:  # e4m3 is float32 with four bits of exponent and twenty of mantissa missing
        bits = ((code.to(tl.int32) << 24) >> 4) & -0x78100000
        value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    else:
        value = code.to(tl.float32)
    return value


@triton.jit
def _finish(total, at, o, mask, bias, residual, out, BIAS: tl.constexpr, PLUS: tl.constexpr):
    """Store sums, with bias and residual added."""
    if BIAS:
        total += tl.load(bias + o, mask=mask, other=0.0).to(tl.float32)
    if PLUS:
        total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _grouped_linear(
    x,
    codes,
    scale,
    low,
    table,
    bias,
    residual,
    out,
    rows,
    outputs,
    length,
    groups,
    steps,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT8: tl.constexpr,
    LOW: tl.constexpr,
    BIAS: tl.constexpr,
    PLUS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    s = tl.program_id(2) * BLOCK_S + tl.arange(0, BLOCK_S)
    part, out_there, row_there = tl.program_id(1), o < outputs, s < rows
    EACH: tl.constexpr = GROUP * BITS // 8  # bytes of a group
    line = codes + o.to(tl.int64)[:, None] * length
    scale_line = o.to(tl.int64)[:, None] * groups
    x_line = x + s.to(tl.int64)[None, :] * (groups * GROUP)
    total = tl.zeros((BLOCK_O, BLOCK_S), dtype=tl.float32)
    for step in range(0, steps):
        start = (part * steps + step) * BLOCK_B
        at = start + tl.arange(0, BLOCK_B)
        there = at < length
        byte = tl.load(line + at[None, :], mask=out_there[:, None] & there[None, :], other=0)
        byte = tl.reshape(byte, (BLOCK_O, BLOCK_B // CHUNK, CHUNK))
        chunk = start + tl.arange(0, BLOCK_B // CHUNK) * CHUNK  # each is in one group
        place = scale_line + (chunk // EACH)[None, :]
        mask = out_there[:, None] & (chunk < length)[None, :]
        factor = tl.load(scale + place, mask=mask, other=0.0).to(tl.float32)[:, :, None]
        shift = tl.load(low + place, mask=mask, other=0.0).to(tl.float32)[:, :, None] if LOW else 0.0
        first = at // EACH * GROUP + at % EACH if BITS == 4 else at  # byte t of a group: code t below, t + g / 2 above
        x_mask = there[:, None] & row_there[None, :]
        for half in tl.static_range(8 // BITS):  # pyright: ignore[reportGeneralTypeIssues]
            code = byte if BITS == 8 else (byte >> 4 if half else byte & 15)
            some = tl.load(x_line + first[:, None] + half * (GROUP // 2), mask=x_mask, other=0.0)
            value = _value(code, table, TABLE, FLOAT8) * factor + shift
            weight = tl.reshape(value.to(some.dtype), (BLOCK_O, BLOCK_B))
            total = tl.dot(weight, some, total, input_precision="ieee")
    at = s[None, :].to(tl.int64) * outputs + o[:, None]
    mask = out_there[:, None] & row_there[None, :]
    if WHOLE:
        _finish(total, at, o[:, None] + tl.zeros_like(s)[None, :], mask, bias, residual, out, BIAS, PLUS)
    else:
        tl.store(out + part.to(tl.int64) * rows * outputs + at, total, mask=mask)


@triton.jit
def _add(
    sums,
    bias,
    residual,
    out,
    results,
    outputs,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    PLUS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < results
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(0, PARTS):
        total += tl.load(sums + part * results + at, mask=mask, other=0.0)
    _finish(total, at, at % outputs, mask, bias, residual, out, BIAS, PLUS)


def grouped_linear(x: Tensor, weight: Grouped, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """[S, i] times the transpose of a quantised matrix [o, i], plus `bias` [o] and `residual` [S, o]: [S, o].

    Products are made in the dtype of `x`, which is the result's; sums in fp32.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    float8 = weight.codes.dtype == torch.float8_e4m3fn
    length = inputs * weight.bits // 8
    parts = _parts(outputs, length)
    heights = _HEIGHTS[:1] if x.dtype == torch.float32 else _HEIGHTS  # no matrix units there, and no registers for more
    height = next((some for some in heights if rows <= some), heights[-1])
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    sums = out if parts == 1 else torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    after = out if bias is None else bias, out if residual is None else residual.contiguous()
    flags = {"BIAS": bias is not None, "PLUS": residual is not None}
    under_way = _BYTES * (_OUTPUTS + height * x.element_size() * 8 // weight.bits)
    _grouped_linear[triton.cdiv(outputs, _OUTPUTS), parts, triton.cdiv(rows, height)](
        x.contiguous(),
        weight.codes.view(torch.uint8) if float8 else weight.codes,
        weight.scale,
        weight.scale if weight.low is None else weight.low,
        weight.scale if weight.table is None else weight.table,
        *after,
        sums,
        rows,
        outputs,
        length,
        weight.scale.shape[1],
        triton.cdiv(triton.cdiv(length, _BYTES), parts),
        GROUP=weight.group,
        CHUNK=_BYTES if weight.group == inputs else math.gcd(weight.group * weight.bits // 8, _BYTES),
        BITS=weight.bits,
        TABLE=weight.table is not None,
        FLOAT8=float8,
        LOW=weight.low is not None,
        WHOLE=parts == 1,
        BLOCK_S=height,
        BLOCK_O=_OUTPUTS,
        BLOCK_B=_BYTES,
        num_warps=2,
        num_stages=1 if weight.table is not None else max(1, min(_STAGES, _SHARED // under_way)),
        **flags,
    )
    if parts > 1:
        results = rows * outputs
        grid = (triton.cdiv(results, _ADDED),)
        _add[grid](sums, *after, out, results, outputs, PARTS=parts, BLOCK=_ADDED, **flags)
    return out


def _parts(outputs: int, length: int) -> int:
    """Into how many parts the inputs, rows of so many bytes, are cut."""
    blocks, steps, parts = triton.cdiv(outputs, _OUTPUTS), triton.cdiv(length, _BYTES), 1
    while blocks * parts < _PROGRAMS and parts * 8 <= steps:
        parts *= 2
    return parts
