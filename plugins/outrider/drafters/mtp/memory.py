"""What a drafter with rows of its own has heard: the tokens, the target's newest states, and which rows never had one.

Row p pairs token p + 1 with the target's state of position p. A row whose state was never told (the drafter was switched on
later, or a state was cut and its token came back alone) is a hole: nobody sees it, and everything else stays where it is.

Letters: `S` rows of a pass, `d` width of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.drafting import Step
from outrider.core.model.cache.layout import LOOSE, Still, Tables, Tree, Where

CHUNK = 512  # rows of one pass; so many wait before they are fed without a draft being asked for
TAIL = 64  # newest states that are kept: where the last tokens are cut, others may follow the same state


class Memory:
    """Tokens and states of one conversation. Rows below `fed` lie in the drafter's cache, or are holes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.tokens: list[int] = []
        self.holes: list[range] = []
        self.fed = 0
        self._first = 0  # position of the first state held
        self._states: list[Tensor] = []  # runs [S, d] of positions that follow each other

    def copy(self) -> Memory:
        """The same conversation; states are never written, so they are shared."""
        other = Memory()
        other.tokens, other.holes, other.fed = list(self.tokens), list(self.holes), self.fed
        other._first, other._states = self._first, list(self._states)
        return other

    @property
    def rows(self) -> int:
        """Rows of the tokens heard: the newest token has no state yet."""
        return max(0, len(self.tokens) - 1)

    @property
    def waiting(self) -> int:
        """Rows that are known and not fed."""
        return max(0, min(self._stop, self.rows) - self.fed)

    @property
    def _stop(self) -> int:
        return self._first + sum(run.shape[0] for run in self._states)

    def breaks(self, step: Step) -> bool:
        """Whether states are missing before this step's: what waits must be fed first."""
        return self._told(step) > self._stop

    def _told(self, step: Step) -> int:
        """Position of the first state of a step."""
        told = 0 if step.hidden is None else step.hidden.shape[0]
        return step.start + step.tokens.shape[0] - told - 1

    def hear(self, step: Step, states: Tensor | None) -> None:
        """Take in a step; `states` [S, d] are its states as the drafter reads them, aligned at its end."""
        first = self._told(step)
        self.tokens += step.tokens.tolist()
        if first > self._stop:
            if first > self.fed:
                self.holes.append(range(self.fed, first))
            self.fed = self._first = first
            self._states = []
        if states is not None and states.shape[0]:
            self._states.append(states[max(0, self._stop - first) :])

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true; the state behind them still is, if it is held."""
        del self.tokens[length:]
        self.fed = min(self.fed, self.rows)
        self.holes = [range(hole.start, min(hole.stop, self.fed)) for hole in self.holes if hole.start < self.fed]
        if self._first > self.rows:
            self._first, self._states = self.rows, []
        elif self._states:
            self._states = [torch.cat(self._states)[: length - self._first]]

    def known(self) -> bool:
        """Whether the state of the newest row is held."""
        return self.rows > 0 and self._first < self.rows <= self._stop

    def again(self) -> None:
        """The newest row is to be fed once more: its output is wanted."""
        self.fed = min(self.fed, self.rows - 1)

    def take(self, count: int) -> Tensor:
        """States [count, d] of the next rows, which are fed from now on."""
        states = torch.cat(self._states)
        taken = states[self.fed - self._first :][:count]
        self.fed += count
        spare = max(0, self.fed - TAIL - self._first)
        self._states, self._first = [states[spare:]], self._first + spare
        return taken

    def where(self, first: int, count: int, tables: Tables, like: Tensor) -> Where:
        """The pass over rows `first` to `first + count`, which sees no hole; `like` tells dtype and device."""
        tree = None
        if self.holes:
            base, stop = min(first, self.holes[0].start), first + count
            positions = torch.arange(base, stop, device=like.device)
            seen = positions <= positions[first - base :, None]  # [S, T]
            for hole in self.holes:
                seen[:, hole.start - base : hole.stop - base] = False
            tree = Tree(base, positions, seen)
        return Where(first, count, tables, like.dtype, like.device, tree)

    def there(self, rows: int) -> Tensor | None:
        """Which of the first rows are no holes, [rows]; None if all are not."""
        if not self.holes:
            return None
        there = torch.ones(rows, dtype=torch.bool)
        for hole in self.holes:
            there[hole.start : hole.stop] = False
        return there


def still(start: Still, rows: int, tables: Tables, like: Tensor, there: Tensor | None) -> Where:
    """As `Memory.where` for `rows` rows from one on that only the device knows; `there` [start.end] as `Memory.there` gives it.

    With holes all rows that are read are loose, more than a kernel takes.
    """
    if there is None:
        return Where(start, rows, tables, like.dtype, like.device)
    many = max(start.end, LOOSE + 1)
    at = start.base + torch.arange(rows - many, rows, device=like.device)  # [T], below 0 there is nothing
    seen = there[at.clamp(min=0)] & (at <= at[-rows:, None])
    return Where(start, rows, tables, like.dtype, like.device, Tree(at[:1], at, seen))
