"""Mamba-2: a linear-attention layer whose memory is one matrix a head that fades and is added to.

Source: Transformers are SSMs (arXiv 2405.21060), as Nemotron-H and Granite 4 use it. In fp32. In passes that may be rolled back
tokens are taken one after the other, so a drafted token leaves exactly the state a plain one leaves; wider ones go by chunks.

Letters: `S` tokens, `H` heads of size `h`, `g` groups that share keys and queries of size `N` (B and C in the paper),
`Q` = H h + 2 g N conv channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import CacheConfig, Count, Recurrent, State
from outrider.core.model.families.spec import MambaSpec
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.linear import Linear

from . import scan
from .conv import causal, newest
from .rowwise import rowwise
from .scan import by_chunks, by_tokens, chunked, fading


@dataclass(slots=True)
class Mamba:
    """Weights of one layer."""

    spec: MambaSpec
    mix: Linear  # d -> H h + Q + H: gate, conv channels (values, keys, queries), time steps
    conv: Tensor  # [Q, kernel]
    conv_bias: Tensor | None  # [Q]
    a_log: Tensor  # [H] fp32
    dt_bias: Tensor  # [H] fp32
    skip: Tensor  # [H] fp32
    norm: Tensor  # [H h]
    eps: float
    out: Linear  # H h -> d

    def new_state(self, room: CacheConfig) -> State | None:
        """Newest conv inputs and the memory."""
        s = self.spec
        exact = torch.float64 if room.dtype == torch.float64 else torch.float32
        inputs, memory = (s.kernel - 1, self.conv.shape[0]), (s.heads, s.state, s.head_dim)
        return Recurrent(room, (inputs, room.dtype), (memory, exact))

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        parts = self.project(x)
        return self.output(self.along(parts, where, state), parts, residual)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `batched.Parted`: the gate [S, H h], conv inputs [S, Q], time steps [S, H]."""
        s = self.spec
        return self.mix(x).split([s.heads * s.head_dim, self.conv.shape[0], s.heads], -1)

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """As `batched.Parted`: [S, H, h], neither gated nor normed."""
        assert isinstance(state, Recurrent)
        rows, keep = where.rows, self.spec.kernel - 1
        past, memory = state.now
        exact = memory.dtype
        _, mixed, dt = parts
        mixed, inputs = causal(mixed, past, self.conv)
        u, k, q = self._split(rowwise(F.silu, mixed if self.conv_bias is None else mixed + self.conv_bias).to(exact))
        dt = rowwise(F.softplus, dt.to(exact) + self.dt_bias)  # [S, H]
        w, logs = u * dt[..., None], -self.a_log.exp() * dt
        if rows > state.slack:
            y, end = by_chunks(memory, chunked(q), chunked(k), chunked(w), fading(chunked(logs[..., None])))
            state.passed(rows, lambda count: [newest(inputs, count, keep), end])
        else:
            y, then = _few(memory, (q, k, w), logs.exp())
            state.passed(rows, lambda count: [newest(inputs, count, keep), then(count)])
        return y[:rows] + self.skip[:, None] * u

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """As `batched.Parted`."""
        gate = parts[0]
        y = self._gated(y, gate.to(y.dtype)).to(gate.dtype) * self.norm
        return self.out(y) if residual is None else self.out.plus(y, residual)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [S, H, h], keys and queries [S, H, N]."""
        s = self.spec
        u, k, q = mixed.split([s.heads * s.head_dim, s.groups * s.state, s.groups * s.state], -1)
        k, q = (part.view(-1, s.groups, s.state).repeat_interleave(s.heads // s.groups, 1) for part in (k, q))
        return u.view(-1, s.heads, s.head_dim), k, q

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """[S, H, h] and the gate [S, H h]: gated, then normed over each group of channels, [S, H h]."""
        y = y.flatten(1) * rowwise(F.silu, z)
        grouped = y.view(y.shape[0], self.spec.norm_groups, -1)
        return F.rms_norm(grouped, (grouped.shape[-1],), None, self.eps).flatten(1)


def _few(memory: Tensor, qkw: tuple[Tensor, ...], decay: Tensor) -> tuple[Tensor, Callable[[Count], Tensor]]:
    """Outputs [S, H, h] of a pass that may be rolled back, and what makes the memory after its first tokens."""
    q, k, w = qkw
    kernels = ops.walker(w)
    if kernels is not None:
        steps = kernels.Steps(k, w, decay, None)
        return kernels.walk(memory, q, steps), partial(scan.after, kernels, memory, steps)
    y, end = by_tokens(memory, q, k, w, decay)

    def then(count: Count) -> Tensor:
        whole = isinstance(count, int) and count == w.shape[0]
        return end if whole else by_tokens(memory, q, k, w, decay, count)[1]

    return y, then
