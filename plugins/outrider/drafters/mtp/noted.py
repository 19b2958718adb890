"""A checkpoint that remembers which tensors were read, so that what is left over can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from outrider.core.formats.checkpoint import Checkpoint


class Noted:
    """Reads as the checkpoint does; `read` holds the names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As the checkpoint's."""
        self.read.add(name)
        return self._checkpoint.load(name, dtype)

    def grouped(self, name: str) -> object:
        """As the checkpoint's."""
        self.read.add(name)
        return self._checkpoint.grouped(name)
