"""Short causal convolutions over tokens: the helper, and LFM2's gated convolution layer.

Letters: `S` tokens, `Q` channels, `k` kernel size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import CacheConfig, Count, Recurrent, State
from outrider.core.model.families.spec import ConvSpec
from outrider.core.model.kernels.linear import Linear


def causal(x: Tensor, past: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise convolution of `x` [S, Q] behind `past` [k - 1, Q] with `weight` [Q, k]; outputs [S, Q] and all inputs.

    Taps are added one by one, oldest first, so a row's sum does not depend on how many rows there are.
    """
    inputs = torch.cat((past, x))  # [k - 1 + S, Q]
    rows = x.shape[0]
    y = inputs[:rows] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        y = y + inputs[tap : tap + rows] * weight[:, tap]
    return y, inputs


def newest(inputs: Tensor, count: Count, keep: int) -> Tensor:
    """Of `inputs` [keep + S, Q] those that are before token `count`: [keep, Q]."""
    if isinstance(count, Tensor):
        return inputs[count + torch.arange(keep, device=inputs.device)]
    return inputs[count : count + keep].clone()


@dataclass(slots=True)
class ShortConv:
    """Gated short convolution (LFM2): `out(C * conv(B * u))` with B, C, u from one projection."""

    spec: ConvSpec
    mix: Linear  # d -> 3 d
    conv: Tensor  # [d, k]
    out: Linear  # d -> d
    conv_bias: Tensor | None = None  # [d]

    def new_state(self, room: CacheConfig) -> State | None:
        """Newest conv inputs."""
        return Recurrent(room, ((self.spec.kernel - 1, self.conv.shape[0]), room.dtype))

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        parts = self.project(x)
        return self.output(self.along(parts, where, state), parts, residual)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `batched.Parted`: conv inputs, the gate after them, both [S, d]."""
        b, c, u = self.mix(x).chunk(3, -1)
        return b * u, c

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """As `batched.Parted`: [S, d], not gated."""
        assert isinstance(state, Recurrent)
        y, inputs = causal(parts[0], state.now[0], self.conv)
        keep = self.spec.kernel - 1
        state.passed(where.rows, lambda count: [newest(inputs, count, keep)])
        return y if self.conv_bias is None else y + self.conv_bias

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """As `batched.Parted`."""
        y = parts[1] * y
        return self.out(y) if residual is None else self.out.plus(y, residual)
