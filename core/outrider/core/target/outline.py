"""Whether a checkpoint holds the model that its config describes: every tensor, each of the right shape. Reads no weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .linear import Form
from .load import load_decoder

if TYPE_CHECKING:
    from outrider.core.weights.checkpoint import Checkpoint

_ROWS = 64  # of tables that are made and thrown away


class _Outline:
    """A checkpoint whose tensors have shapes and no numbers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the right shape without memory."""
        return torch.empty(self._checkpoint.shape(name), dtype=dtype or torch.float32, device="meta")

    def layout(self, name: str) -> None:
        """None: nothing is kept as it is stored."""

    def grouped(self, name: str) -> None:
        """None, as `layout`."""


def check(checkpoint: Checkpoint) -> None:
    """Go through a load of the model without weights. Raises ModelError for what a load would refuse."""
    outline: Any = _Outline(checkpoint)
    load_decoder(outline, Form(torch.float32, torch.device("meta")), _ROWS)
