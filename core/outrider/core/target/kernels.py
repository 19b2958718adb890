"""Triton kernels: few rows times a quantised matrix, expanded in registers. Imported only where Triton is.

Letters: `S` rows, `o` outputs, `i` inputs, `g` codes in a group.
"""

# pyright: reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.core.weights.grouped import Grouped

ROWS = 16  # rows of one program; a row's sum does not depend on how many of them are used
_OUTPUTS, _INPUTS = 32, 128


@triton.jit
def _value(code, table, scale, low, TABLE: tl.constexpr, FLOAT8: tl.constexpr, LOW: tl.constexpr):
    """Weights of codes, their scales and offsets, as float32."""
    if TABLE:
        value = tl.load(table + code.to(tl.int32))
    elif FLOAT8:  # e4m3 is fp16 with three bits of exponent and seven of mantissa missing: shift, then scale by 2^8
        bits = code.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        value = code.to(tl.float32)
    value = value * scale
    if LOW:
        value = value + low
    return value


@triton.jit
def _grouped_linear(
    x,
    codes,
    scale,
    low,
    table,
    out,
    rows,
    outputs,
    inputs,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT8: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    row_there, out_there = s[:, None] < rows, o[None, :] < outputs
    groups = inputs // GROUP
    bytes_in_row = inputs * BITS // 8
    total = tl.zeros((BLOCK_S, BLOCK_O), dtype=tl.float32)
    for start in range(0, bytes_in_row, BLOCK_I):
        at = start + tl.arange(0, BLOCK_I)
        there = at < bytes_in_row
        mask = there[:, None] & out_there
        byte = tl.load(codes + o[None, :].to(tl.int64) * bytes_in_row + at[:, None], mask=mask, other=0)  # [I, O]
        if BITS == 4:  # byte t of a group: code t below, code t + g / 2 above
            group = at // (GROUP // 2)
            first = group * GROUP + at % (GROUP // 2)
        else:
            group = at // GROUP
            first = at
        place = o[None, :].to(tl.int64) * groups + group[:, None]
        factor = tl.load(scale + place, mask=mask, other=0.0).to(tl.float32)
        shift = tl.load(low + place, mask=mask, other=0.0).to(tl.float32) if LOW else factor
        x_mask = row_there & there[None, :]
        x_at = x + s[:, None].to(tl.int64) * inputs + first[None, :]
        part = tl.load(x_at, mask=x_mask, other=0.0)
        code = byte & 15 if BITS == 4 else byte
        weight = _value(code, table, factor, shift, TABLE, FLOAT8, LOW).to(part.dtype)
        total = tl.dot(part, weight, total, input_precision="ieee")
        if BITS == 4:
            part = tl.load(x_at + GROUP // 2, mask=x_mask, other=0.0)
            weight = _value(byte >> 4, table, factor, shift, TABLE, FLOAT8, LOW).to(part.dtype)
            total = tl.dot(part, weight, total, input_precision="ieee")
    tl.store(
        out + s[:, None].to(tl.int64) * outputs + o[None, :], total.to(out.dtype.element_ty), row_there & out_there
    )


def grouped_linear(x: Tensor, weight: Grouped) -> Tensor:
    """[S, i] times the transpose of a quantised matrix [o, i]: [S, o] in the dtype of `x`, products in it, sums in fp32."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    float8 = weight.codes.dtype == torch.float8_e4m3fn
    grid = (triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, ROWS))
    _grouped_linear[grid](
        x.contiguous(),
        weight.codes.view(torch.uint8) if float8 else weight.codes,
        weight.scale,
        weight.scale if weight.low is None else weight.low,
        weight.scale if weight.table is None else weight.table,
        out,
        rows,
        outputs,
        inputs,
        GROUP=weight.group,
        BITS=weight.bits,
        TABLE=weight.table is not None,
        FLOAT8=float8,
        LOW=weight.low is not None,
        BLOCK_S=ROWS,
        BLOCK_O=_OUTPUTS,
        BLOCK_I=_INPUTS,
    )
    return out
