"""Norms: root mean square over the last dimension, with or without weight, with or without taking the mean away first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import packs


class Norm:
    """`x / rms(x) * w` over the last dimension; `centred` takes the mean away first.

    Where torch has no kernel of its own for it (bf16 on a CPU: eight small ones instead), x is normed together with -x:
    their mean is 0 and their variance the mean square of x, so the fused layer norm gives the same.
    """

    __slots__ = ("_doubled", "centred", "eps", "weight", "width")

    def __init__(self, width: int, weight: Tensor | None, eps: float, *, centred: bool = False) -> None:
        self.width, self.weight, self.eps, self.centred = width, weight, eps, centred
        self._doubled = None
        if weight is not None and not centred and packs(weight.dtype, weight.device):
            self._doubled = torch.cat((weight, weight))

    def __call__(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, (self.width,), self.weight, None, self.eps)
        if self._doubled is not None:
            both = F.layer_norm(torch.cat((x, -x), -1), (2 * self.width,), self._doubled, None, self.eps)
            return both[..., : self.width]
        return F.rms_norm(x, (self.width,), self.weight, self.eps)
