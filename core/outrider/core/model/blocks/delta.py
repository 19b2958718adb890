"""Gated delta net: a linear-attention layer whose memory is one matrix a head, corrected by what it got wrong.

Source: Gated Delta Networks (arXiv 2412.06464), as Qwen3-Next and Qwen3.5 use it. In fp32. In passes that may be rolled back
tokens are taken one after the other, so a drafted token leaves exactly the state a plain one leaves; wider ones go by chunks.

Letters: `S` tokens, `nk` key heads, `nv` value heads, `dk`, `dv` their sizes, `Q` = 2 nk dk + nv dv conv channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import CacheConfig, Count, Recurrent, State
from outrider.core.model.families.spec import DeltaSpec
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.linear import Linear

from . import scan
from .conv import causal, newest
from .norm import Norm
from .rowwise import rowwise
from .scan import by_chunks, chunked, fading


@dataclass(slots=True)
class DeltaNet:
    """Weights of one layer."""

    spec: DeltaSpec
    qkv: Linear  # d -> Q: all q, all k, all v
    z: Linear  # d -> nv dv
    ba: Linear  # d -> 2 nv: beta, decay
    conv: Tensor  # [Q, kernel]
    a_log: Tensor  # [nv] fp32
    dt_bias: Tensor  # [nv] fp32
    norm: Norm  # over dv
    out: Linear  # nv dv -> d

    def new_state(self, room: CacheConfig) -> State | None:
        """Newest conv inputs and the memory."""
        s = self.spec
        exact = torch.float64 if room.dtype == torch.float64 else torch.float32
        inputs, memory = (s.kernel - 1, self.conv.shape[0]), (s.value_heads, s.key_dim, s.value_dim)
        return Recurrent(room, (inputs, room.dtype), (memory, exact))

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        parts = self.project(x)
        return self.output(self.along(parts, where, state), parts, residual)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `batched.Parted`: conv inputs [S, Q], betas and decays [S, 2 nv], the gate [S, nv dv]."""
        return self.qkv(x), self.ba(x), self.z(x)

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """As `batched.Parted`: [S, nv, dv], not normed."""
        assert isinstance(state, Recurrent)
        s, rows = self.spec, where.rows
        past, memory = state.now
        exact = memory.dtype
        mixed, inputs = causal(parts[0], past, self.conv)
        q, k, v = rowwise(F.silu, mixed).split([s.key_heads * s.key_dim] * 2 + [s.value_heads * s.value_dim], -1)
        q = _unit(q.view(rows, -1, s.key_dim).to(exact)) * s.key_dim**-0.5
        k = _unit(k.view(rows, -1, s.key_dim).to(exact))  # [S, nk, dk]
        v = v.view(rows, -1, s.value_dim).to(exact)  # [S, nv, dv]
        b, a = parts[1].to(exact).chunk(2, -1)
        logs = -self.a_log.exp() * rowwise(F.softplus, a + self.dt_bias)  # [S, nv], of the decay
        keep = s.kernel - 1
        if rows > state.slack:
            repeat = s.value_heads // s.key_heads
            q, k = q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1)  # [S, nv, dk]
            y, end = _by_chunks(memory, (q, k, v), b.sigmoid(), logs)
            state.passed(rows, lambda count: [newest(inputs, count, keep), end])
        else:
            y, then = _few(memory, (q, k, v), rowwise(torch.sigmoid, b), logs.exp())
            state.passed(rows, lambda count: [newest(inputs, count, keep), then(count)])
        return y

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """As `batched.Parted`."""
        gate = parts[2]
        y = self.norm(y.to(gate.dtype)) * rowwise(F.silu, gate).view(y.shape)
        y = y.reshape(gate.shape)
        return self.out(y) if residual is None else self.out.plus(y, residual)


def _few(
    memory: Tensor, qkv: tuple[Tensor, ...], beta: Tensor, decay: Tensor
) -> tuple[Tensor, Callable[[Count], Tensor]]:
    """Outputs [S, nv, dv] of a pass that may be rolled back, and what makes the memory after its first tokens."""
    q, k, v = qkv
    kernels = ops.walker(v)
    if kernels is not None:
        walked = kernels.Steps(k, v, decay, beta)
        return kernels.walk(memory, q, walked), partial(scan.after, kernels, memory, walked)
    rows, repeat = v.shape[0], v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1)  # [S, nv, dk]
    steps = _steps((q, k, v), beta, decay)
    y, end = _by_tokens(memory, steps, q)
    return y, lambda count: end if isinstance(count, int) and count == rows else _walk(memory, steps, count)[2]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class _Steps(NamedTuple):
    """What each token does with the memory, made for all of them at once."""

    reads: Tensor  # [S, nv, 2, dk] its key, scaled by beta, and its query, both faded
    keys: Tensor  # [S, nv, dk, 1]
    values: Tensor  # [S, nv, 1, dv] scaled by beta
    decays: Tensor  # [S, nv, 1, 1]


def _steps(qkv: tuple[Tensor, ...], beta: Tensor, decay: Tensor) -> _Steps:
    q, k, v = qkv
    beta, decay = beta[..., None], decay[..., None]
    reads = torch.stack((k * beta, q), 2) * decay[..., None]
    return _Steps(reads, k[..., None], (v * beta)[:, :, None], decay[..., None])


def _walk(memory: Tensor, steps: _Steps, count: Count) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What each of `count` tokens finds [nv, 2, dv] and writes [nv, 1, dv], and the memory [nv, dk, dv] after them."""
    memory = memory.clone()
    finds, writes = [], []
    if isinstance(count, Tensor):  # tokens that do not count leave the memory as it is
        idle = torch.arange(steps.keys.shape[0], device=count.device)[:, None, None, None] >= count
        steps = steps._replace(keys=steps.keys.masked_fill(idle, 0), decays=steps.decays.masked_fill(idle, 1))
        count = steps.keys.shape[0]
    for reads, key, value, decay in zip(*(part[:count] for part in steps), strict=True):
        found = reads @ memory
        wrong = value - found[:, :1]
        memory.mul_(decay).baddbmm_(key, wrong)
        finds.append(found)
        writes.append(wrong)
    return finds, writes, memory


def _by_tokens(memory: Tensor, steps: _Steps, q: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [S, nv, dv] and the memory at the end."""
    finds, writes, memory = _walk(memory, steps, q.shape[0])
    own = (steps.keys[..., 0] * q).sum(-1, keepdim=True) * torch.stack(writes)[:, :, 0]
    return torch.stack(finds)[:, :, 1] + own, memory


def _by_chunks(memory: Tensor, qkv: tuple[Tensor, ...], beta: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """The same for many tokens: what those of a chunk write is found by solving a triangle of what they read of each other."""
    q, k, v, beta, logs = (chunked(x) for x in (*qkv, beta[..., None], logs[..., None]))
    fade = fading(logs)
    scaled = k * beta
    triangle = (scaled @ k.transpose(-1, -2)) * fade.between  # [N, nv, C, C]
    sides = torch.cat((v * beta, scaled * fade.since), -1)
    solved = torch.linalg.solve_triangular(triangle, sides, upper=False, unitriangular=True)
    writes, against = solved.split([v.shape[-1], k.shape[-1]], -1)
    reads, memory = by_chunks(memory, q, k, writes, fade, against)
    return reads[: qkv[0].shape[0]], memory
