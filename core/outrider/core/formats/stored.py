"""What tensors must be before they are used: weights are floats, and the words of a reduced vocabulary are words.

Letters: `V` words of the target, `Vd` of them that a reduced head knows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.base.errors import BrokenFileError
from outrider.core.formats.gguf.reader import AGAIN

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def as_weights(tensor: Tensor, dtype: torch.dtype | None, origin: str) -> Tensor:
    """The same numbers in `dtype` (None: as they are). Raises BrokenFileError, which names `origin`, for no plain floats."""
    if tensor.dtype not in _FLOATS:
        what = "complex numbers" if tensor.is_complex() else "whole numbers"
        what = "8-bit floats" if tensor.is_floating_point() else what
        kind = str(tensor.dtype).removeprefix("torch.")
        raise BrokenFileError(f"{origin} holds {what} ({kind}) and no scale for them.", AGAIN)
    return tensor if dtype is None else tensor.to(dtype)


def words(offsets: Tensor, marks: Tensor | None, vocab: int, origin: str) -> Tensor:
    """The target's id [Vd] of every word of a reduced head, whose `offsets` [Vd] are the distances to them.

    `marks` [V], if there are any, are true at those ids. Raises BrokenFileError, which names `origin`.
    """
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        raise BrokenFileError(f"{origin}: d2t holds no whole numbers.", AGAIN)
    ids = torch.arange(offsets.shape[0]) + offsets.long()
    if not bool(((ids >= 0) & (ids < vocab)).all()):
        raise BrokenFileError(f"{origin}: d2t leads outside the vocabulary.", AGAIN)
    led_to = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    if marks is not None and not torch.equal(marks != 0, led_to):
        raise BrokenFileError(f"{origin}: t2d marks other tokens than d2t leads to.", AGAIN)
    return ids
