"""Gated activations with torch's own steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.families.spec import Activation


def _silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


def _gelu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh").mul_(up)


def _clamped(gate: Tensor, up: Tensor) -> Tensor:
    """gpt-oss: both halves bounded by 7, a steeper sigmoid, and one added to the linear half."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(gate * 1.702)


ACTIVATIONS: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "clamped": _clamped,
}
