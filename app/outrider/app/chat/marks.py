"""Which characters of a reply came from where: run lengths of token kinds, and the modes that show them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from outrider.core.protocol import Kind


class Marks(Enum):
    """What is marked in the transcript."""

    ACCEPTED = "accepted"
    OFF = "off"


class Run(NamedTuple):
    """Neighbouring characters of one kind."""

    start: int
    end: int
    kind: Kind


class Runs:
    """Run lengths over a text that only grows; every character has a kind."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._kinds: list[Kind] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Run]:
        return self.between(0, len(self))

    def add(self, kind: Kind, length: int) -> None:
        """Append `length` characters of one kind."""
        if length <= 0:
            return
        end = len(self) + length
        if self._kinds and self._kinds[-1] == kind:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._kinds.append(kind)

    def between(self, start: int, end: int) -> Iterator[Run]:
        """The runs inside `start:end`, cut to it, in order."""
        index = bisect_right(self._ends, start)
        while start < end and index < len(self._ends):
            stop = min(self._ends[index], end)
            yield Run(start, stop, self._kinds[index])
            start, index = stop, index + 1

    def cut(self, length: int) -> None:
        """Forget everything after the first `length` characters."""
        while self._ends and self._ends[-1] > length:
            before = self._ends[-2] if len(self._ends) > 1 else 0
            if before >= length:
                self._ends.pop()
                self._kinds.pop()
            else:
                self._ends[-1] = length

    def encode(self) -> str:
        """As text, such as `P3A12C2`."""
        return "".join(f"{run.kind}{run.end - run.start}" for run in self)


def project(runs: Runs, offsets: list[int], start: int) -> list[Run]:
    """Runs over a rendered text whose character i came from `offsets[i]` of a source that begins at `start`.

    Characters with offset -1 came from nowhere: they take the kind of what is around them if it is the same on both
    sides, so that a mark does not break at a space, and none otherwise.
    """
    kinds = _kinds_of(runs, offsets, start)
    marks: list[Run] = []
    for index, kind in enumerate(kinds):
        if kind is None:
            continue
        if marks and marks[-1].kind == kind and marks[-1].end == index:
            marks[-1] = marks[-1]._replace(end=index + 1)
        else:
            marks.append(Run(index, index + 1, kind))
    return marks


def _kinds_of(runs: Runs, offsets: list[int], start: int) -> list[Kind | None]:
    known = [offset for offset in offsets if offset >= 0]
    if not known:
        return [None] * len(offsets)
    low, high = min(known), max(known) + 1
    table: list[Kind | None] = [None] * (high - low)
    for run in runs.between(max(0, start + low), start + high):
        for place in range(run.start - start - low, run.end - start - low):
            table[place] = run.kind
    kinds: list[Kind | None] = [table[offset - low] if offset >= 0 else None for offset in offsets]
    for index in range(1, len(kinds) - 1):
        if offsets[index] < 0 and kinds[index - 1] == kinds[index + 1]:
            kinds[index] = kinds[index - 1]
    return kinds
