"""When a round is a plain pass on purpose, so that the speed-up of an answer can be measured, and what such passes cost.

Each answer has its own: some soon, so that short answers have a figure too, then a few as the context grows.
"""

from __future__ import annotations

LEAST, LEARNING = 8, 128  # plain passes among the first so many drafted rounds
SOON = 48  # drafted rounds among which they are where they cost little
EVERY = 256  # drafted rounds after those, of which one is plain
MOVED = 96  # tokens of context by which what was measured is of another place
SHARE = 0.027  # of an answer's time that plain passes may cost: at most 3 % with what is mistaken in it
LITTLE = 0.0125  # of it that they cost where they come soon, or because the context has grown


class MeterSchedule:
    """Of one policy. Whoever drafts has its own count."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another answer begins."""
        self.lost = self._decoded = 0.0  # seconds that plain passes cost in this answer, and all of it
        self._drafted: dict[str, int] = {}
        self._plain: dict[str, int] = {}
        self._name = ""  # who made the last draft
        self._context: int | None = None  # where the answer began, or after which the last plain pass ran

    def due(self, cost: float, context: int) -> bool:
        """Whether the next round is to be plain; `cost`: seconds that this takes longer than its token would."""
        drafted, plain = self._drafted.get(self._name, 0), self._plain.get(self._name, 0)
        if self._context is None:
            self._context = context
        moved = context >= self._context + MOVED
        later = max(0, drafted - LEARNING) // EVERY
        needed = plain < min(LEAST, drafted * LEAST // LEARNING) + later or (moved and drafted > 0 and not plain)
        useful = plain < min(LEAST, drafted * LEAST // SOON) or (moved and plain >= LEAST)
        share = (self.lost + cost) / self._decoded if self._decoded else 1.0
        return (needed and share <= SHARE) or (useful and share <= LITTLE)

    def drafted(self, name: str, seconds: float) -> None:
        """A round with a draft."""
        self._decoded += seconds
        self._name = name
        self._drafted[name] = self._drafted.get(name, 0) + 1

    def plain(self, seconds: float, context: int, cost: float = 0.0) -> None:
        """A plain pass, whatever for; `cost` as in `due`, if it was made for the meter."""
        self._decoded += seconds
        self.lost += cost
        self._context = context
        if self._name:
            self._plain[self._name] = self._plain.get(self._name, 0) + 1
