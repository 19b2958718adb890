"""What the policy is asked before a round, what it answers, and what it learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.core.sampling.draft_tree import DraftTree

from .unverified import Scored

NONE = "none"
What = Literal["ride", "pinned", "probe", "parked", "silent", "meter", "first", "rest", "off"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One drafter that might draft this round, at most `most` tokens."""

    name: str
    most: int
    offer: DraftTree | None = None  # what a free one proposes; None: it has to be asked first
    block: bool = False  # makes all tokens of a draft at once
    behind: int = 0  # tokens that it did not get yet
    line: int | None = None  # tokens up to which its drafts are chains, where longer ones are trees


@dataclass(frozen=True, slots=True)
class Choice:
    """Who drafts and how many. Without tokens it is a plain pass, and `name` the one that came nearest."""

    what: What
    name: str = NONE
    tokens: int = 0
    expected: float = 1.0  # tokens of the pass
    seconds: float = 0.0
    gain: float = 1.0  # rate over that of plain decoding

    @property
    def cost(self) -> float:
        """Time of the pass with its drafting over that of a plain one."""
        return self.expected / self.gain


@dataclass(frozen=True, slots=True)
class UpcomingRound:
    """The round at hand. `pinned`: the user's own length, taken as it is; without `park` a losing drafter goes on drafting."""

    phase: str = "prose"
    context: int = 0
    pinned: int | None = None
    park: bool = True


@dataclass(frozen=True, slots=True)
class Drafted:
    """A drafter was asked: `tokens` it proposed in `seconds`, 0 for none; before that it got `behind` tokens."""

    drafter: str
    tokens: int
    seconds: float
    behind: int = 0
    catching_up: float = 0.0  # seconds


@dataclass(frozen=True, slots=True)
class Judged:
    """What a free drafter had offered is judged by the text that came."""

    drafter: str
    scored: Scored
    confidence: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round gave. `depth`: of the draft, `proposed` where it was a chain; seconds of drafting and of all the rest."""

    drafter: str  # who made the draft
    proposed: int
    accepted: int
    drafting: float
    rest: float
    context: int = 0  # tokens after the root
    depth: int | None = None
    kept: int | None = None  # tokens up to the answer's end, where it ended in this round
    confidence: Sequence[float] | None = None  # of the draft's nodes, where it was a chain
    from_exit: bool = False  # as in `RoundResult`
    host: float = 0.0  # seconds of the rest in which nothing had to wait for the device


@dataclass(frozen=True, slots=True)
class Share:
    """What a round of several answers gave to one of them, whose drafter was asked for `asked` tokens; `rest` says nothing."""

    phase: str
    asked: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SharedRound:
    """A round of several answers: its pass of so many rows took `seconds`; those of its answers whose drafter was asked."""

    rows: int
    seconds: float
    shares: Sequence[Share]
