"""Functions of single numbers, over rows: the same bits for a row wherever it stands.

On a CPU torch shares many numbers out among threads, takes as many at once as fit into vectors, and works on the rest of each
share by other instructions, which round some functions in another way. Which numbers that are depends on where the row stands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider.core.model.kernels.linear import MAX_DECODE_ROWS

ALONE = 1 << 15  # numbers up to which torch takes one thread
VECTORS = 32  # numbers that it takes at once at most


def rowwise(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """`function` of parts [S, ...]; on a CPU of as many rows at once as are worked on alike, or of each row by itself.

    A wide pass of rows that do not fill vectors, or of very long ones, is left to torch.
    """
    rows, numbers = parts[0].shape[0], parts[0].numel()
    alike = numbers <= ALONE and numbers % VECTORS == 0
    if parts[0].device.type != "cpu" or rows < 2 or alike:
        return function(*parts)
    each = numbers // rows
    if rows > MAX_DECODE_ROWS and (each % VECTORS or each > ALONE):
        return function(*parts)
    some = max(1, ALONE // each) if rows > MAX_DECODE_ROWS else 1
    return torch.cat([function(*few) for few in zip(*(part.split(some) for part in parts), strict=True)])
