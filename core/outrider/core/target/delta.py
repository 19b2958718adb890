"""Gated delta net: a linear-attention layer whose memory is one matrix a head, corrected by what it got wrong.

Source: Gated Delta Networks (arXiv 2412.06464), as Qwen3-Next and Qwen3.5 use it. Tokens are taken one after the other in
fp32, in every pass alike, so a drafted token leaves exactly the state a plain one leaves.

Letters: `S` tokens, `nk` key heads, `nv` value heads, `dk`, `dv` their sizes, `Q` = 2 nk dk + nv dv conv channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .conv import causal
from .linear import Linear
from .norm import Norm
from .spec import DeltaSpec
from .state import Recurrent, State
from .where import Where


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

    def new_state(self, capacity: int, dtype: torch.dtype, device: torch.device) -> State | None:
        """Newest conv inputs and the memory."""
        s = self.spec
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        return Recurrent(
            ((s.kernel - 1, self.conv.shape[0]), dtype),
            ((s.value_heads, s.key_dim, s.value_dim), exact),
            device=device,
        )

    def __call__(self, x: Tensor, where: Where, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        assert isinstance(state, Recurrent)
        s, rows = self.spec, where.rows
        past, memory = state.now
        exact = memory.dtype
        mixed, inputs = causal(self.qkv(x), past, self.conv)
        q, k, v = F.silu(mixed).split([s.key_heads * s.key_dim] * 2 + [s.value_heads * s.value_dim], -1)
        repeat = s.value_heads // s.key_heads
        q = _unit(q.view(rows, -1, s.key_dim).to(exact)).repeat_interleave(repeat, 1) * s.key_dim**-0.5
        k = _unit(k.view(rows, -1, s.key_dim).to(exact)).repeat_interleave(repeat, 1)  # [S, nv, dk]
        v = v.view(rows, -1, s.value_dim).to(exact)  # [S, nv, dv]
        b, a = self.ba(x).to(exact).chunk(2, -1)
        decay = (-self.a_log.exp() * F.softplus(a + self.dt_bias)).exp()  # [S, nv]
        y, memories = _recur(memory, (q, k, v, b.sigmoid(), decay))
        keep = s.kernel - 1
        state.passed([[inputs[t + 1 : t + 1 + keep], memories[t]] for t in range(rows)])
        y = self.norm(y.to(x.dtype)) * F.silu(self.z(x)).view(rows, -1, s.value_dim)
        y = y.reshape(rows, -1)
        return self.out(y) if residual is None else self.out.plus(y, residual)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _recur(memory: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """Outputs [S, nv, dv] and the memory [nv, dk, dv] after each token."""
    outputs, memories = [], []
    for q, k, v, beta, decay in zip(*inputs, strict=True):
        memory = memory * decay[:, None, None]
        wrong = (v - torch.einsum("hkv,hk->hv", memory, k)) * beta[:, None]
        memory = memory + k[:, :, None] * wrong[:, None, :]
        outputs.append(torch.einsum("hkv,hk->hv", memory, q))
        memories.append(memory)
    return torch.stack(outputs), memories
