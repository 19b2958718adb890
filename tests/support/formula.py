"""Tensors made by a formula, so that a reference has to store no weights."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


def made(name: str, shape: tuple[int, ...]) -> Tensor:
    """A float64 tensor that depends on its name alone: norms near 1, decays below it, matrices and biases of usual size."""
    count = torch.Size(shape).numel()
    phase = zlib.crc32(name.encode()) % 6283 / 1000
    waves = torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + phase).view(shape)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "A_log":
        return (waves + 2).log()
    if leaf in ("D", "layer_scalar", "scale", "per_expert_scale") or (leaf == "weight" and len(shape) == 1):
        return 1 + 0.2 * waves
    return waves * (0.3 if len(shape) > 1 else 0.4)
