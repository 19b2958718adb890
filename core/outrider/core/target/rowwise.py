"""Functions of single numbers, over rows: the same bits for a row wherever it stands.

On a CPU torch shares many numbers out among threads, takes as many at once as fit into vectors, and works on the rest of each
share by other instructions, which round some functions in another way. Which numbers that are hangs on where the row stands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .linear import FEW

ALONE = 1 << 15  # numbers up to which torch takes one thread
VECTORS = 32  # numbers that it takes at once at most


def rowwise(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """`function` of parts [S, ...]; in a pass that decodes of each row by itself, unless all rows are worked on alike."""
    rows, numbers = parts[0].shape[0], parts[0].numel()
    alike = numbers <= ALONE and numbers % VECTORS == 0
    if parts[0].device.type != "cpu" or alike or not 1 < rows <= FEW:
        return function(*parts)
    return torch.cat([function(*row) for row in zip(*(part.split(1) for part in parts), strict=True)])
