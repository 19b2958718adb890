"""Which characters of a reply came from where: run lengths of kinds, passes and chances, and the modes that show them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from outrider.core.base.protocol import Kind

V = TypeVar("V")

UNKNOWN = -1  # a chance that nobody told
ACCEPTED, CORRECTION = "mark-accepted", "mark-correction"  # names of styles
PASS_A, PASS_B = "mark-pass-a", "mark-pass-b"
LOW, LOWEST = "mark-low", "mark-lowest"
_LOW, _LOWEST = 5, 2  # tenths below which a chance is low


class Marks(Enum):
    """What is marked in the transcript."""

    ACCEPTED = "accepted"
    PASSES = "passes"
    CORRECTIONS = "corrections"
    CONFIDENCE = "confidence"
    OFF = "off"


class Run(NamedTuple, Generic[V]):
    """Neighbouring characters that have something in common."""

    start: int
    end: int
    kind: V


class Runs(Generic[V]):
    """Run lengths over a text that only grows."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._kinds: list[V] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Run[V]]:
        return self.between(0, len(self))

    @property
    def last(self) -> V:
        """The kind of the last character."""
        return self._kinds[-1]

    def add(self, kind: V, length: int) -> None:
        """Append `length` characters of one kind."""
        if length <= 0:
            return
        end = len(self) + length
        if self._kinds and self._kinds[-1] == kind:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._kinds.append(kind)

    def between(self, start: int, end: int) -> Iterator[Run[V]]:
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


def tenth(p: float | None) -> int:
    """A chance as its tenth, 0 to 9; `UNKNOWN` for None."""
    return UNKNOWN if p is None else max(0, min(9, int(10 * p)))


class Layers:
    """All that is known of the characters of one growing text. Kinds cover all of it, the others what is known."""

    def __init__(self) -> None:
        self.kinds: Runs[Kind] = Runs()
        self.passes: Runs[int] = Runs()  # numbered from 0; those that brought no character have no number
        self.chances: Runs[int] = Runs()  # tenths
        self._pass = 0

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, kind: Kind, length: int, chance: int = UNKNOWN) -> None:
        """Append the characters of one token."""
        self.kinds.add(kind, length)
        self.passes.add(self._pass, length)
        self.chances.add(chance, length)

    def end_pass(self) -> None:
        """What comes next is another pass's."""
        if len(self.passes) and self.passes.last == self._pass:
            self._pass += 1

    def add_pass(self, length: int) -> None:
        """Append a pass of so many characters, whose kinds and chances are told elsewhere."""
        self.passes.add(self._pass, length)
        self.end_pass()

    def cut(self, length: int) -> None:
        """Forget everything after the first `length` characters."""
        for runs in (self.kinds, self.passes, self.chances):
            runs.cut(length)

    def clear(self) -> None:
        """Forget everything."""
        self.cut(0)
        self._pass = 0

    @property
    def knows_chances(self) -> bool:
        """Whether the chance of any token is known."""
        return any(run.kind != UNKNOWN for run in self.chances)

    @property
    def accepted(self) -> float:
        """Share of accepted characters, 0 to 1."""
        return sum(run.end - run.start for run in self.kinds if run.kind == "A") / max(1, len(self))

    def marks(self, mode: Marks, start: int, end: int) -> Iterator[Run[str]]:
        """What is marked inside `start:end`: runs with the name of their style."""
        if mode is Marks.ACCEPTED:
            found = ((run, ACCEPTED if run.kind == "A" else "") for run in self.kinds.between(start, end))
        elif mode is Marks.CORRECTIONS:
            found = ((run, CORRECTION if run.kind == "C" else "") for run in self.kinds.between(start, end))
        elif mode is Marks.PASSES:
            found = ((run, PASS_B if run.kind % 2 else PASS_A) for run in self.passes.between(start, end))
        elif mode is Marks.CONFIDENCE:
            found = ((run, _chance_name(run.kind)) for run in self.chances.between(start, end))
        else:
            return
        for run, name in found:
            if name:
                yield Run(run.start, run.end, name)


def _chance_name(chance: int) -> str:
    if chance == UNKNOWN or chance >= _LOW:
        return ""
    return LOWEST if chance < _LOWEST else LOW


def project(runs: Iterator[Run[V]], offsets: Sequence[int]) -> list[Run[V]]:
    """Runs over a rendered text whose character i came from `offsets[i]` of what `runs` cover.

    Characters with offset -1 came from nowhere: they take the kind of what is around them if it is the same on both
    sides, so that a mark does not break at a space, and none otherwise.
    """
    marks: list[Run[V]] = []
    start, last = 0, None
    for index, kind in enumerate([*_kinds_of(runs, offsets), None]):
        if kind != last:
            if last is not None:
                marks.append(Run(start, index, last))
            start, last = index, kind
    return marks


def _kinds_of(runs: Iterator[Run[V]], offsets: Sequence[int]) -> list[V | None]:
    known = [offset for offset in offsets if offset >= 0]
    if not known:
        return [None] * len(offsets)
    low, high = min(known), max(known) + 1
    table: list[V | None] = [None] * (high - low)
    for run in runs:
        begin, end = max(run.start, low), min(run.end, high)
        if begin < end:
            table[begin - low : end - low] = [run.kind] * (end - begin)
    kinds: list[V | None] = [table[offset - low] if offset >= 0 else None for offset in offsets]
    for index in range(1, len(kinds) - 1):
        if offsets[index] < 0 and kinds[index - 1] == kinds[index + 1]:
            kinds[index] = kinds[index - 1]
    return kinds


def extent(offsets: Sequence[int]) -> tuple[int, int]:
    """Where what is rendered begins and ends in its source; an empty range if it came from nowhere."""
    known = [offset for offset in offsets if offset >= 0]
    return (min(known), max(known) + 1) if known else (0, 0)
