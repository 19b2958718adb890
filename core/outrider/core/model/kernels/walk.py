"""Triton kernel: linear recurrences over one matrix a head, token by token, in one launch. Imported only where Triton is.

`M <- a M + k w^T`, read as `M^T q`. With `beta` the memory is corrected (gated delta net, arXiv 2412.06464):
`w = beta (v - (a M)^T k)`; without, `w = v` (Mamba-2, arXiv 2405.21060). What happens to a column of M depends on that column
alone, so each program holds a few columns of one head in registers and goes through all tokens.

`walk` reads and leaves the memory as it was; `settle` goes through the first tokens of the same pass and writes it once. Both
are the same compiled code, so a memory settled after n tokens is, bit for bit, what token n of a longer walk finds.

Letters: `S` tokens, `nk` key heads, `nv` value heads, `dk`, `dv` their sizes.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 8  # of the memory that one program holds


class Steps(NamedTuple):
    """What each token does to the memory. Rows may be apart, the heads of a row are one after another."""

    keys: Tensor  # [S, nk, dk]; a key head serves nv / nk value heads in order, as `repeat_interleave` has it
    values: Tensor  # [S, nv, dv]
    decays: Tensor  # [S, nv], factors
    betas: Tensor | None  # [S, nv]; None: values are written as they are


@triton.jit(do_not_specialize=["tokens", "reads"])
def _walk(
    memory,
    into,
    q,
    k,
    v,
    decay,
    beta,
    out,
    count,
    tokens,
    reads,
    q_row,
    k_row,
    v_row,
    decay_row,
    beta_row,
    SHARE: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    DELTA: tl.constexpr,
):
    head, heads = tl.program_id(0), tl.num_programs(0)
    i = tl.arange(0, WIDTH)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_k, in_v = i < DK, j < DV
    at = head.to(tl.int64) * (DK * DV) + i[:, None] * DV + j[None, :]
    there = in_k[:, None] & in_v[None, :]
    held = tl.load(memory + at, mask=there, other=0.0)
    key_at = head // SHARE * DK + i
    value_at = head * DV + j
    if reads == 0:
        tokens = tl.minimum(tokens, tl.load(count).to(tl.int32))
    for t in range(0, tokens):
        key = tl.load(k + t * k_row + key_at, mask=in_k, other=0.0).to(tl.float32)
        query = tl.load(q + t * q_row + key_at, mask=in_k, other=0.0).to(tl.float32)
        write = tl.load(v + t * v_row + value_at, mask=in_v, other=0.0).to(tl.float32)
        held = held * tl.load(decay + t * decay_row + head).to(tl.float32)
        if DELTA:
            wrong = write - tl.sum(key[:, None] * held, 0)
            write = wrong * tl.load(beta + t * beta_row + head).to(tl.float32)
        held = held + key[:, None] * write[None, :]
        read = tl.sum(query[:, None] * held, 0)
        if reads != 0:
            tl.store(out + (t * heads + head) * DV + j, read, mask=in_v)
    if reads == 0:
        tl.store(into + at, held, mask=there)


def walk(memory: Tensor, queries: Tensor, steps: Steps) -> Tensor:
    """What each token reads, its own step included: [S, nv, dv] fp32.

    `memory` [nv, dk, dv] fp32, contiguous; `queries` [S, nk, dk].
    """
    out = torch.empty(steps.values.shape, dtype=torch.float32, device=memory.device)
    unread = torch.empty(1, dtype=torch.int64, device=memory.device)
    _launch(memory, memory, queries, steps, (out, unread, 1))
    return out


def settle(memory: Tensor, steps: Steps, count: Tensor, into: Tensor | None = None) -> None:
    """Write the memory after the first `count` [1] int64 tokens of a walk, in place or to another tensor like it."""
    _launch(memory, memory if into is None else into, steps.keys, steps, (memory, count, 0))


def _launch(memory: Tensor, into: Tensor, queries: Tensor, steps: Steps, last: tuple[Tensor, Tensor, int]) -> None:
    heads, dk, dv = memory.shape
    assert memory.is_contiguous() and into.is_contiguous() and memory.dtype == into.dtype == torch.float32
    q, k, v, decay, beta = (
        part if part[0].is_contiguous() else part.contiguous()
        for part in (queries, *steps[:3], steps.decays if steps.betas is None else steps.betas)
    )
    _walk[heads, triton.cdiv(dv, COLUMNS)](
        memory,
        into,
        q,
        k,
        v,
        decay,
        beta,
        last[0],
        last[1],
        k.shape[0],
        last[2],
        q.stride(0),
        k.stride(0),
        v.stride(0),
        decay.stride(0),
        beta.stride(0),
        SHARE=heads // k.shape[1],
        DK=dk,
        DV=dv,
        WIDTH=triton.next_power_of_2(dk),
        COLUMNS=COLUMNS,
        DELTA=steps.betas is not None,
        num_warps=1,
    )
