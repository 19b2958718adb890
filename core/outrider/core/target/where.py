"""Where a pass stands: positions, rope rows and masks, made once and shared by all layers.

Letters: `S` tokens of the pass, `C` visible rows, `G` query heads for each key head, `h` head size, `R` rows of a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .spec import RopeSpec
from .state import SPAN, span

if TYPE_CHECKING:
    from .state import Ring

FOLD_ROWS = 32  # up to here query groups are folded into rows, so that keys and values are read without expanding them

SCORES = 1 << 26  # scores that are computed at once where they have to be written down

Tables = dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]]  # by rope and head size: cos and signed sin [C, h]


def fitting(each: int) -> int:
    """Rows whose scores, `each` of them for a row, may be written down together."""
    return max(1, SCORES // each)


class Where:
    """`rows` tokens at `start`."""

    def __init__(self, start: int, rows: int, tables: Tables, dtype: torch.dtype, device: torch.device) -> None:
        self.start, self.rows = start, rows
        self.stop = start + rows
        self.end = span(self.stop)  # rows that full attention reads
        self.positions = torch.arange(start, self.stop, device=device)  # [S]
        self.wide: tuple[Ring, list[Tensor]] | None = None  # what the last ring gave to a pass wider than itself
        self._tables, self._dtype, self._device = tables, dtype, device
        self._ropes: dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int, int], Tensor] = {}
        self._slots: dict[int, Tensor] = {}

    @property
    def folds(self) -> bool:
        """Whether query groups go into rows."""
        return self.rows <= FOLD_ROWS

    def first(self, window: int) -> int:
        """First row that a layer of this window reads; a multiple of SPAN, as `end` is."""
        return max(0, self.start + 1 - window) // SPAN * SPAN if window else 0

    def slots(self, ring: int) -> Tensor:
        """Where these positions lie in a ring of so many rows, [S]."""
        if ring not in self._slots:
            self._slots[ring] = self.positions % ring
        return self._slots[ring]

    def rope(self, rope: RopeSpec, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of these positions, each [S, 1, h]."""
        key = (rope, head_dim)
        if key not in self._ropes:
            cos, sin = self._tables[key]
            self._ropes[key] = cos[self.start : self.stop, None], sin[self.start : self.stop, None]
        return self._ropes[key]

    def mask(self, window: int, groups: int, ring: int = 0) -> Tensor:
        """Additive mask [G S, C] (or [S, C] for many rows): causal, and within the window.

        Columns are rows from `first` to `end`, or the slots of a ring of so many rows once the pass has written to it.
        """
        key = (window, groups, ring)
        if key not in self._masks:
            seen = self._held(ring) if ring else torch.arange(self.first(window), self.end, device=self._device)  # [C]
            hidden = seen > self.positions[:, None]  # [S, C]
            if window:
                hidden |= seen <= self.positions[:, None] - window
            if ring:
                hidden |= seen < 0
            mask = torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
            self._masks[key] = mask.repeat(groups, 1) if self.folds else mask
        return self._masks[key]

    def _held(self, ring: int) -> Tensor:
        """The position in each slot that is read, below 0 where there is none yet, [C]."""
        newest = self.positions[-1]
        return newest - (newest - torch.arange(min(self.end, ring), device=self._device)) % ring
