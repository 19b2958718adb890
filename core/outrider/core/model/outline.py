"""Whether a checkpoint holds the model that its config describes: every tensor, each of the right shape. Reads no matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from outrider.core.model.kernels.forms import WeightFormat

from .load import load_decoder

if TYPE_CHECKING:
    from outrider.core.formats.checkpoint import Checkpoint

_ARITHMETIC = ("add", "__add__", "mul", "__mul__")
_ROWS = 64  # of tables that are made and thrown away


class _Outline:
    """A checkpoint whose tensors have shapes and no numbers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the right shape without memory; who asks for one as it is stored wants its numbers."""
        if dtype is None:
            return self._checkpoint.load(name)
        return torch.empty(self._checkpoint.shape(name), dtype=dtype, device="meta")

    def layout(self, name: str) -> None:
        """None: nothing is kept as it is stored."""

    def grouped(self, name: str) -> None:
        """None, as `layout`."""


class _Quick(TorchFunctionMode):
    """What is done most to tensors without numbers, by hand: torch itself imports its compiler for that, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name: str = getattr(func, "__name__", "")
        first: Any = args[0] if args else None
        if func is torch.cat and first[0].is_meta:
            dim = args[1] if len(args) > 1 else 0
            shape = [*first[0].shape]
            shape[dim] = sum(part.shape[dim] for part in first)
            return torch.empty(shape, dtype=first[0].dtype, device="meta")
        if name in _ARITHMETIC and isinstance(first, Tensor) and first.is_meta and isinstance(args[1], int | float):
            return first
        return func(*args, **(kwargs or {}))


def check(checkpoint: Checkpoint) -> None:
    """Go through a load of the model without weights. Raises ModelError for what a load would refuse."""
    outline: Any = _Outline(checkpoint)
    with _Quick():
        load_decoder(outline, WeightFormat(torch.float32, torch.device("meta")), _ROWS)
