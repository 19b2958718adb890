"""Experts with random weights of every kind, and what they should give, in float64.

Letters: `S` rows, `k` slots of a row, `E` experts, `o` outputs, `i` inputs, `d` width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.formats.quantized import Grouped, pack_nibbles, quantise
from outrider.core.model.blocks.mlp import Dense, Ungated
from outrider.core.model.families.spec import Activation
from outrider.core.model.kernels.activations import ACTIVATIONS
from outrider.core.model.kernels.linear import Expanding, Linear

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TABLES = {
    "any table": torch.randn(16, generator=torch.Generator().manual_seed(7)),
    "floats of 4 bits": torch.cat((E2M1, -E2M1)),
    "floats of 4 bits, doubled": 2 * torch.cat((E2M1, -E2M1)),
}
KINDS = ["4 bits", "8 bits", "floats of 8 bits", "small groups", *TABLES]  # of codes; beside them there is "plain"

Size = tuple[int, int]


def numbers(seed: int, *shape: int) -> Tensor:
    """Normal ones, float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _codes(seed: int, size: Size, below: int = 256) -> Tensor:
    return torch.randint(0, below, size, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def stored(kind: str, seed: int, size: Size) -> Grouped:
    """A matrix [o, i] of numbers near one."""
    if kind in ("4 bits", "8 bits"):
        return quantise(numbers(seed, *size), int(kind[0]))
    group = 16 if kind == "small groups" else 32
    scale = numbers(seed, size[0], size[1] // group).abs()
    if kind == "floats of 8 bits":
        every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
        small = every[every.float().abs() < 3].view(torch.uint8)
        return Grouped(small[_codes(seed, size, len(small)).int()].view(torch.float8_e4m3fn), scale)
    if kind == "small groups":
        return Grouped(_codes(seed, size), (scale / 128).half(), numbers(seed + 1, *scale.shape).half())
    return Grouped(pack_nibbles(_codes(seed, size, 16), group), scale / 4, None, TABLES[kind], 4)


def layer(
    kind: str, seed: int, size: Size, bias: bool = False, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Linear:
    """[o, i], scaled so that outputs are near one."""
    shift = numbers(seed + 100, size[0]).to(device, dtype) if bias else None
    if kind == "plain":
        return Linear((numbers(seed, *size) * size[1] ** -0.5).to(device, dtype), shift)
    weight = stored(kind, seed, size)
    low = None if weight.low is None else weight.low * size[1] ** -0.5
    return Expanding(replace(weight, scale=weight.scale * size[1] ** -0.5, low=low), shift, torch.device(device))


def gated(
    kind: str,
    count: int,
    size: Size,
    activation: Activation = "silu",
    *,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[Dense]:
    """So many experts; `size` is the width and the inner one."""
    width, inner = size
    return [
        Dense(
            layer(kind, 2 * seed, (2 * inner, width), bias, dtype, device),
            layer(kind, 2 * seed + 1, (width, inner), bias, dtype, device),
            activation,
        )
        for seed in range(count)
    ]


def case(rows: int, top: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [S, d], and what a router may give for them: weights and experts [S, k]."""
    chosen = numbers(rows, rows, count).topk(top).indices
    return numbers(1, rows, width), numbers(2, rows, top).softmax(-1), chosen


def want(experts: Sequence[Dense | Ungated], x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """By the definition, [S, d] float64."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for number in chosen.unique().tolist():
        expert, (rows, slots) = experts[number], (chosen == number).nonzero(as_tuple=True)
        some = x[rows].double()
        if isinstance(expert, Dense):
            made = ACTIVATIONS[expert.activation](*_product(expert.gate_up, some).chunk(2, -1))
        else:
            made = _product(expert.up, some).relu() ** 2
        out.index_add_(0, rows, weights[rows, slots, None].double() * _product(expert.down, made))
    return out


def _product(linear: Linear, x: Tensor) -> Tensor:
    weight = linear.held.expand(torch.float64) if isinstance(linear, Expanding) else linear.weight.double()
    return F.linear(x, weight, None if linear.bias is None else linear.bias.double())
