"""What a drafter does again and again on tensors of one shape, each shape captured when it is first asked for.

Numbers that change (tokens, where a pass begins) come as a tensor from the host; layers find their rows by `DeviceStart`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.blocks.block import Mixer
from outrider.core.model.cache.states import KVCache

from .capture import Capture
from .decoder import reads_what_is_there
from .graph_runner import reach

SHORT = 17  # rows of a pass that is worth a graph; longer ones come once in an answer


class Steps:
    """The captured work of one conversation over layers with these mixers; `like` has their dtype and is on their device."""

    def __init__(self, graphs: Capture, like: Tensor, mixers: Sequence[Mixer]) -> None:
        self._graphs, self._device = graphs, like.device
        self._free = reads_what_is_there(mixers, like)
        self._made: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, key: Hashable, work: Callable[..., Any], *arguments: Tensor) -> Any:
        """What `work` gives, good until the same key is asked for again.

        The first work of a key serves all later ones, so whatever it takes beside its arguments belongs into the key or stays
        what it is. It may be tried out: all that it writes beside its result is scratch, or what it would write again.
        """
        if key not in self._made:
            examples = [argument.to(self._device) for argument in arguments]
            self._made[key] = self._graphs.function(work, examples)
        return self._made[key](*arguments)

    def pinned(self, numbers: Sequence[int]) -> Tensor:
        """Numbers [n] going to the device."""
        return torch.tensor(numbers, dtype=torch.int64, pin_memory=self._device.type == "cuda")

    def end(self, stop: int, rows: KVCache, *, masked: bool = False) -> int:
        """Rows that a still pass reads of a memory that it fills up to row `stop`; `masked`: no kernel takes its tree."""
        whole = rows.parts[0].shape[0]
        return whole if self._free and not masked else reach(stop, whole)


def filled(x: Tensor, rows: int) -> Tensor:
    """[S, ...] -> [rows, ...], zeros behind."""
    return x if x.shape[0] == rows else F.pad(x, (0, 0) * (x.dim() - 1) + (0, rows - x.shape[0]))
