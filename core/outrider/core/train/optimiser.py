"""AdamW, and Muon for matrices that begin with chance: those learn the same in about two thirds of the steps.

Muon (K. Jordan, 2024; Moonlight, arXiv 2502.16982): the averaged gradient of a matrix is replaced by the nearest matrix whose
singular values are all one, found by a few Newton-Schulz steps, at the size that an update of AdamW has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .recipe import Group

MOMENTUM = 0.95
STEPS = 5
CURVE = (3.4445, -4.7750, 2.0315)  # of a Newton-Schulz step, as Muon's author chose them
SIZE = 0.8  # of an update, times the root of the longer side; AdamW's is about a quarter of that


class Optimiser(torch.optim.AdamW):
    """Over the groups of a trainee; `factor` of a group of parameters is that of its rate."""

    def __init__(self, groups: Sequence[Group], rate: float, betas: tuple[float, float], decay: float) -> None:
        parameter_groups: list[dict[str, Any]] = []
        for group in groups:
            matrices = [part for part in group.parts if group.fresh and part.ndim == 2]
            others = [part for part in group.parts if not (group.fresh and part.ndim == 2)]
            parameter_groups += [
                {"params": parts, "factor": group.factor, "matrices": known}
                for parts, known in ((others, False), (matrices, True))
                if parts
            ]
        super().__init__(parameter_groups, lr=rate, betas=betas, weight_decay=decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step along the gradients that are there."""
        for group in self.param_groups:
            if not group["matrices"]:
                continue
            for part in group["params"]:
                if part.grad is not None:
                    self._turn(part, part.grad, group)
                    part.grad = None  # AdamW leaves it alone
        super().step(closure)

    def _turn(self, part: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, rate = self.state[part], group["lr"]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(part)
        state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        update = orthogonal(gradient.lerp(state["exp_avg"], MOMENTUM))
        part.mul_(1 - rate * group["weight_decay"])
        part.add_(update.to(part.dtype), alpha=-rate * SIZE * math.sqrt(max(part.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix [m, n] whose singular values are one, in bf16."""
    x = (matrix / matrix.norm().clamp(min=1e-12)).to(torch.bfloat16)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    a, b, c = CURVE
    for _ in range(STEPS):
        square = x @ x.t()
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.t() if tall else x
