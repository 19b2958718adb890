"""Triton kernels: attention of a few rows over held keys and values, from the projections to what each head gives.

Three launches. The first norms and turns queries and keys and writes keys and values to their slots. The second splits the
held rows among programs; the third joins what they found. Nothing depends on a length that the host would have to know: programs
read from device memory where the rows end, and those that have none leave at once, so a captured graph serves every length.

What a row gives does not depend on how many rows share its pass, bit for bit: tiles of keys are at absolute rows, program p
takes tiles p, p + P, …, P depends on the buffer alone, a tile of which a row sees nothing changes nothing for that row, and
partial sums are joined in the order of programs. The queries of one key/value head, G S of them, go into tiles of 16 up to 16
and of 32 beyond; for both the matrix units use one instruction in one order, and all sums over keys are made by them.

Letters: `S` rows of the pass, `H` query heads, `K` key/value heads, `G` = H / K, `h` head size, `C` rows held, `P` programs of
one head.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.core.model.cache.layout import KVSlots

from .interface import Heads

WIDEST = 256  # head size
_LOG2E = 1.4426950408889634
_HEIGHTS = (16, 32)  # from 64 on Hopper would take another instruction
_PROGRAMS = 256  # of all heads together, where the buffer has so many tiles
_TILE_BYTES = 1 << 16  # keys and values that a program holds or has under way, so that the smallest devices can
_JOINED = 16  # partial sums that are added at once


@triton.jit
def _ready(
    mixed,
    kv,
    q,
    slots,
    cos,
    sin,
    q_weight,
    k_weight,
    q_eps,
    k_eps,
    mixed_row,
    turn_row,
    heads,
    kv_heads,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    ROPE: tl.constexpr,
):
    """One head of one row: normed, turned, put where it belongs."""
    s = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kind = mixed.dtype.element_ty
    d = tl.arange(0, WIDTH)
    there = d < HEAD
    other = tl.where(d < HEAD // 2, d + HEAD // 2, d - HEAD // 2)  # the dim that it is turned with
    at = mixed + s * mixed_row + head * HEAD
    x = tl.load(at + d, mask=there, other=0.0).to(tl.float32)
    y = x
    z = tl.load(at + other, mask=there, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, 0) / HEAD + tl.where(head < heads, q_eps, k_eps))
        y *= factor
        z *= factor
        if WEIGHT:
            q_w, k_w = tl.load(q_weight + d, mask=there, other=0.0), tl.load(k_weight + d, mask=there, other=0.0)
            y *= tl.where(head < heads, q_w, k_w).to(tl.float32)
            q_w, k_w = (
                tl.load(q_weight + other, mask=there, other=0.0),
                tl.load(k_weight + other, mask=there, other=0.0),
            )
            z *= tl.where(head < heads, q_w, k_w).to(tl.float32)
        y, z = y.to(kind).to(tl.float32), z.to(kind).to(tl.float32)
    if ROPE:
        c = tl.load(cos + s * turn_row + d, mask=there, other=0.0).to(tl.float32)
        n = tl.load(sin + s * turn_row + d, mask=there, other=0.0).to(tl.float32)
        y = y * c + z * n
    y = tl.where(head < heads + kv_heads, y, x).to(kind)  # values stay as they are
    if head < heads:
        tl.store(q + (s * heads + head) * HEAD + d, y, mask=there)
    else:
        tl.store(kv + (tl.load(slots + s) * 2 * kv_heads + head - heads) * HEAD + d, y, mask=there)


@triton.jit
def _held(kv, row, kv_head, kv_heads, d, mask, HEAD: tl.constexpr, RING: tl.constexpr):
    """Keys and values of some rows, each [TILE, WIDTH]."""
    slot = row % RING if RING else row
    at = kv + slot[:, None].to(tl.int64) * (2 * kv_heads * HEAD) + kv_head * HEAD + d[None, :]
    return tl.load(at, mask=mask, other=0.0), tl.load(at + kv_heads * HEAD, mask=mask, other=0.0)


@triton.jit
def _sees(row, live, begin, bits, position, loose, WINDOW: tl.constexpr):
    """Whether each query sees each of some rows, [HEIGHT, TILE]."""
    t = row - begin  # which of the loose rows, below 0 for others
    word = tl.where(t[None, :] < 32, bits.to(tl.int32)[:, None], (bits >> 32).to(tl.int32)[:, None])
    sees = live[None, :] & ((t[None, :] < 0) | (((word >> (t & 31)[None, :]) & 1) != 0))
    if WINDOW:
        is_loose = live & (t >= 0)
        stands = tl.where(is_loose, tl.load(loose + t, mask=is_loose, other=0).to(tl.int32), row)
        sees = sees & (stands[None, :] > position[:, None] - WINDOW)
    return sees


@triton.jit(do_not_specialize=["rows", "loose_rows"])
def _look(
    q,
    kv,
    found,
    top,
    total,
    base,
    positions,
    loose,
    bits,
    rows,
    loose_rows,
    kv_heads,
    scale,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    TILE: tl.constexpr,
    RING: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """What some queries of one key/value head find in every P-th tile of keys: sums, and the maximum they are relative to."""
    kv_head, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    r = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)  # tiles that read the same keys run side by side
    there, s = r < rows * GROUP, r // GROUP
    place = (s * kv_heads + kv_head) * GROUP + r % GROUP  # among all queries of the pass
    d = tl.arange(0, WIDTH)
    mask = there[:, None] & (d < HEAD)[None, :]
    query = tl.load(q + place[:, None].to(tl.int64) * HEAD + d[None, :], mask=mask, other=0.0)
    position = tl.load(positions + s, mask=there, other=0).to(tl.int32)
    seen = tl.load(bits + s, mask=there, other=0)
    begin = tl.load(base).to(tl.int32)
    end = begin + loose_rows
    lowest = tl.maximum(begin + 1 - WINDOW, 0) // TILE if WINDOW else 0  # tiles before it nobody sees any more
    first = part + tl.cdiv(tl.maximum(lowest - part, 0), parts) * parts
    highest = tl.full((HEIGHT,), float("-inf"), dtype=tl.float32)
    ones = tl.full((TILE, 16), 1.0, dtype=query.dtype)
    weights = tl.zeros((HEIGHT, 16), dtype=tl.float32)  # sixteen times the same
    sums = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
    for tile in range(first, tl.cdiv(end, TILE), parts):
        row = tile * TILE + tl.arange(0, TILE)
        live = row < end
        keys, values = _held(kv, row, kv_head, kv_heads, d, live[:, None] & (d < HEAD)[None, :], HEAD, RING)
        score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(_sees(row, live, begin, seen, position, loose, WINDOW), score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp2(score - safe[:, None]).to(values.dtype)
        fade = tl.exp2(highest - safe)[:, None]
        weights = tl.dot(share, ones, weights * fade, input_precision="ieee")
        sums = tl.dot(share, values, sums * fade, input_precision="ieee")
        highest = higher
    out = part * rows * kv_heads * GROUP + place
    tl.store(top + out, highest, mask=there)
    tl.store(total + out, tl.max(weights, 1), mask=there)
    mask = mask & (highest > float("-inf"))[:, None]
    tl.store(found + out[:, None].to(tl.int64) * HEAD + d[None, :], sums, mask=mask)


@triton.jit(do_not_specialize=["queries"])
def _join(
    found,
    top,
    total,
    sinks,
    out,
    queries,
    heads,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    SINKS: tl.constexpr,
    LOG2E: tl.constexpr,
):
    """One query: the parts' sums, brought to one maximum, added in order, and divided by their weights."""
    query = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    there = part < PARTS
    tops = tl.load(top + part * queries + query, mask=there, other=float("-inf"))
    totals = tl.load(total + part * queries + query, mask=there, other=0.0)
    sink = tl.load(sinks + query % heads).to(tl.float32) * LOG2E if SINKS else float("-inf")
    highest = tl.maximum(tl.max(tops, 0), sink)
    weights = tl.sum(tl.exp2(tops - highest) * totals, 0) + tl.exp2(sink - highest)
    d = tl.arange(0, WIDTH)
    in_head = d < HEAD
    y = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, PARTS, STEP):
        some = start + tl.arange(0, STEP)
        some_tops = tl.load(top + some * queries + query, mask=some < PARTS, other=float("-inf"))
        mask = (some_tops > float("-inf"))[:, None] & in_head[None, :]
        at = found + (some * queries + query)[:, None].to(tl.int64) * HEAD + d[None, :]
        y += tl.sum(tl.load(at, mask=mask, other=0.0) * tl.exp2(some_tops - highest)[:, None], 0)
    tl.store(out + query.to(tl.int64) * HEAD + d, (y / weights).to(out.dtype.element_ty), mask=in_head)


def attend(mixed: Tensor, kv: Tensor, heads: Heads, place: KVSlots) -> Tensor:
    """As `Fused.attend`: [S, H h]. Rows below 2^31."""
    spec, rows = heads.spec, mixed.shape[0]
    if mixed.stride(2) != 1 or mixed.stride(1) != spec.head_dim:
        mixed = mixed.contiguous()
    q = torch.empty(rows * spec.heads, spec.head_dim, dtype=mixed.dtype, device=mixed.device)
    _prepared(mixed, kv, q, heads, place)
    out = torch.empty_like(q)
    _looked(q, kv, out, heads, place)
    return out.view(rows, -1)


def _prepared(mixed: Tensor, kv: Tensor, q: Tensor, heads: Heads, place: KVSlots) -> None:
    spec, norms = heads.spec, [norm for norm in (heads.q_norm, heads.k_norm) if norm is not None]
    weights = [norm.weight for norm in norms if norm.weight is not None]
    cos, sin = (mixed, mixed) if place.cos is None or place.sin is None else (place.cos, place.sin)
    parts = spec.heads + (0 if spec.source is not None else 2 * spec.kv_heads)
    width = triton.next_power_of_2(spec.head_dim)
    _ready[mixed.shape[0], parts](
        mixed,
        kv,
        q,
        place.slots,
        cos,
        sin,
        weights[0] if weights else mixed,
        weights[-1] if weights else mixed,
        norms[0].eps if norms else 0.0,
        norms[-1].eps if norms else 0.0,
        mixed.stride(0),
        cos.stride(0),
        spec.heads,
        spec.kv_heads,
        HEAD=spec.head_dim,
        WIDTH=width,
        NORM=bool(norms),
        WEIGHT=bool(weights),
        ROPE=place.cos is not None,
        num_warps=1,
    )


def _looked(q: Tensor, kv: Tensor, out: Tensor, heads: Heads, place: KVSlots) -> None:
    spec, sight, queries = heads.spec, place.sight, q.shape[0]
    head, kv_heads = spec.head_dim, spec.kv_heads
    rows, group = queries // spec.heads, spec.heads // kv_heads
    width = max(16, triton.next_power_of_2(head))
    tile = 32 if width > 128 else 64
    heights = _HEIGHTS[:1] if q.dtype == torch.float32 else _HEIGHTS  # no matrix units there, and no registers for more
    height = next((some for some in heights if rows * group <= some), heights[-1])
    parts = _parts(kv.shape[0], tile, kv_heads)
    found = torch.empty(parts, queries, head, dtype=torch.float32, device=q.device)
    top = torch.empty(parts, queries, dtype=torch.float32, device=q.device)
    total = torch.empty_like(top)
    _look[triton.cdiv(rows * group, height), kv_heads, parts](
        q,
        kv,
        found,
        top,
        total,
        sight.base,
        sight.positions,
        sight.loose,
        sight.bits,
        rows,
        sight.loose.shape[0],
        kv_heads,
        spec.scale * _LOG2E,
        GROUP=group,
        HEAD=head,
        WIDTH=width,
        HEIGHT=height,
        TILE=tile,
        RING=place.ring,
        WINDOW=spec.window,
        num_warps=4,
        num_stages=max(1, min(3, _TILE_BYTES // (2 * tile * width * kv.element_size()))),
    )
    _join[(queries,)](
        found,
        top,
        total,
        q if heads.sinks is None else heads.sinks,
        out,
        queries,
        spec.heads,
        HEAD=head,
        WIDTH=width,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(parts),
        STEP=_JOINED,
        SINKS=heads.sinks is not None,
        LOG2E=_LOG2E,
        num_warps=4,
    )


def _parts(held: int, tile: int, kv_heads: int) -> int:
    """Among how many programs the rows of one head are split."""
    return min(triton.cdiv(held, tile), 128, max(8, _PROGRAMS // kv_heads))
