"""Tensors that are in memory, or come from a file without a config, as a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.core.text.files import TokenizerFiles

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .layout import Layout
    from .quantized import Grouped


class TensorCheckpoint:
    """Tensors by name, with a config, as a `Checkpoint`; nothing of it is quantised."""

    format, quantisation = "tensors", "plain"

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]],
        config: dict[str, Any] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`path`: where they come from, for messages. With `shapes`, `tensors` is called when the first one is loaded."""
        self.path, self.config = path, config or {}
        self.generation: dict[str, Any] = {}
        self._read = tensors if callable(tensors) else lambda: tensors
        self._tensors = {} if shapes is not None else dict(self._read())
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors.values())
        self._shapes = shapes or {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._shapes[name]

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor, as it is or in `dtype`. Raises BrokenFileError where something else than floats stands for weights."""
        from .stored import as_weights

        if not self._tensors:
            self._tensors = dict(self._read())
        tensor = self._tensors[name]
        return tensor if dtype is None else as_weights(tensor, dtype, f"{self.path}: {name}")

    def layout(self, name: str) -> Layout | None:
        """None: all is plain."""
        return None

    def grouped(self, name: str) -> Grouped | None:
        """None: all is plain."""
        return None

    def text(self) -> TokenizerFiles:
        """No tokenizer."""
        return TokenizerFiles(origin=str(self.path))

    def close(self) -> None:
        """Let go of the tensors."""
        self._tensors = {}
