"""Sums over the reports that the store has kept. Knows no widgets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.app.chat.meter import Compared, main_drafter
from outrider.app.store.records import Kept

WEEK = 7 * 86400.0  # seconds
WEEKS = 12  # that a trend shows


@dataclass(slots=True)
class Sum:
    """Some replies added up."""

    replies: int = 0
    tokens: int = 0  # of decode passes
    passes: int = 0
    proposed: int = 0
    accepted: int = 0
    compared: Compared = field(default_factory=Compared)

    def add(self, kept: Kept) -> None:
        """Count one reply; of one that runs in circles no figure."""
        report = kept.report
        self.replies += 1
        if report.loops:
            return
        if report.passes > 0:
            self.tokens += max(0, kept.tokens - 1 + (report.finish == "stop"))
            self.passes += report.passes
        self.proposed += report.proposed
        self.accepted += report.accepted
        self.compared.add(report)

    @property
    def tokens_per_pass(self) -> float:
        """0 without passes."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def accepted_share(self) -> float | None:
        """Of the draft tokens that were checked."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def times(self) -> float | None:
        """Plain decoding; None where that is not sure."""
        made = self.compared.speedup
        return made.value if made is not None else None


@dataclass(slots=True)
class Past:
    """How one drafter did on one model. Versions and weeks with the oldest first."""

    model: str
    drafter: str
    whole: Sum = field(default_factory=Sum)
    weeks: dict[int, Sum] = field(default_factory=dict)
    versions: dict[str, Sum] = field(default_factory=dict)
    last: float = 0.0  # when a reply was made last

    def trend(self) -> list[float]:
        """Tokens for each pass in the newest weeks; 0 where there was no reply."""
        newest = max(self.weeks, default=0)
        oldest = max(min(self.weeks, default=0), newest - WEEKS + 1)
        return [self.weeks[week].tokens_per_pass if week in self.weeks else 0.0 for week in range(oldest, newest + 1)]


def past(replies: Iterable[Kept]) -> list[Past]:
    """Model by model, on each the drafter with most replies first."""
    found: dict[tuple[str, str], Past] = {}
    for one in sorted(replies, key=lambda kept: kept.created):
        report = one.report
        drafter = main_drafter(report)
        row = found.setdefault((report.model, drafter), Past(report.model, drafter))
        row.whole.add(one)
        row.weeks.setdefault(int(one.created // WEEK), Sum()).add(one)
        if one.outrider:
            row.versions.setdefault(one.outrider, Sum()).add(one)
        row.last = max(row.last, one.created)
    newest = {model: max(row.last for row in found.values() if row.model == model) for model, _ in found}
    return sorted(found.values(), key=lambda row: (-newest[row.model], row.model, -row.whole.replies, row.drafter))
