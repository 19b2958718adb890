"""Norms: root mean square over the last dimension, with or without weight, with or without taking the mean away first."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.kernels import ops


class Norm:
    """`x / rms(x) * w` over the last dimension; `centred` takes the mean away first."""

    __slots__ = ("centred", "eps", "weight", "width")

    def __init__(self, width: int, weight: Tensor | None, eps: float, *, centred: bool = False) -> None:
        self.width, self.weight, self.eps, self.centred = width, weight, eps, centred

    def __call__(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, (self.width,), self.weight, None, self.eps)
        fast = ops.fused(x)
        if fast is not None:
            return fast.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, (self.width,), self.weight, self.eps)
