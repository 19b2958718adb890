"""How long the drafts of a round of several answers are: what gives most tokens for the time of the one pass that verifies all.

With many answers in a pass rows are no longer free, so drafts get shorter the more there are. What costs time to draft is
drafted up to one length by all answers of a round. What is free is drafted as far as it goes, and of all drafts of the round
those tokens are verified that are likeliest to be accepted, as many as pay. Where none pay, that is tried again now and then.

Letters: `K` draft tokens of an answer, `R` rows of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core.model.kernels.linear import MAX_DECODE_ROWS
from outrider.core.sampling.draft_tree import DraftTree

from .acceptance import ALL, Acceptance
from .confidence import Calibrated
from .costs import Costs
from .policy import LADDER

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # what passes of fewer rows than a whole one are counted as
FIRST, TRIED = 4, 4  # tokens of a drafter's first drafts, and how many of these there are
MARGIN = 1.03  # drafting must promise this much more than plain rounds
PROBE_FIRST, PROBE_LAST = 16, 256  # rounds between drafts that are made to see whether they pay again, doubling
OFFERED = 0.05  # moving average of how often a drafter proposes anything, and of how much of what was asked for


def width(rows: int) -> int:
    """What a number of rows is counted as."""
    return next((some for some in ROWS if some >= rows), -(-rows // MAX_DECODE_ROWS) * MAX_DECODE_ROWS)


@dataclass(slots=True)
class _Known:
    """Of one drafter, over all answers that it rides with."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    calibrated: Calibrated = field(default_factory=Calibrated)
    offered: float = 1.0  # how often it proposes anything
    filled: float = 1.0  # how much of what was asked for, if it does
    seconds: float = 0.0  # of one proposal
    rounds: int = 0


class BatchPolicy:
    """Chooses for each round, learns from each. `passes`: seconds by rows that are known beforehand."""

    def __init__(self, passes: dict[int, float]) -> None:
        self._costs = Costs(width)
        for rows, seconds in passes.items():
            self._costs.calibrate(rows, seconds)
        self._known: dict[str, _Known] = {}
        self._gap, self._wait = PROBE_FIRST, 0
        self._patience = [PROBE_FIRST, 0]  # the same of what is free

    def length(self, riding: Sequence[tuple[str, int]]) -> int:
        """Draft tokens of each answer in the next round; `riding`: who drafts for each, and how many would be of use, 0: none."""
        most = max((use for _, use in riding), default=0)
        if not most:
            return 0
        fresh = any(use and self._of(name).rounds < TRIED for name, use in riding)
        if fresh:
            return min(FIRST, most)
        plain = self._rate(riding, 0)
        best = max((k for k in (*LADDER, most) if k <= most), key=lambda k: self._rate(riding, k))
        if self._rate(riding, best) >= MARGIN * plain:
            self._gap, self._wait = PROBE_FIRST, 0
            return best
        self._wait += 1
        if self._wait < self._gap:
            return 0
        self._wait, self._gap = 0, min(2 * self._gap, PROBE_LAST)
        return min(FIRST, most)

    def kept(self, rows: int, drafts: Sequence[tuple[str, DraftTree]]) -> list[int]:
        """How many nodes of each draft are verified in a pass that has `rows` rows anyhow; `drafts` with who made them.

        The chance of a node is that of all above it as well, so the likeliest ones are beginnings of drafts.
        """
        found = sorted(
            ((chance, at) for at, draft in enumerate(drafts) for chance in self._chances(*draft)), reverse=True
        )
        best, most, sure = 0, rows / self._costs.of(rows), float(rows)
        for count, (chance, _) in enumerate(found, 1):
            sure += chance
            rate = sure / self._costs.of(rows + count)
            if rate > most:
                best, most = count, rate
        self._patience[1] += 1
        if best:
            self._patience = [PROBE_FIRST, 0]
        elif found and self._patience[1] >= self._patience[0]:
            self._patience = [min(2 * self._patience[0], PROBE_LAST), 0]
            return [min(FIRST, len(draft)) for _, draft in drafts]
        kept = [0] * len(drafts)
        for _, at in found[:best]:
            kept[at] += 1
        return kept

    def _chances(self, name: str, draft: DraftTree) -> list[float]:
        """Of each node of a draft, that it and all above it are accepted."""
        known, sure, chances = self._of(name), draft.confidences, list[float]()
        rates = known.acceptance.rates(ALL, len(draft))
        for node, (parent, depth) in enumerate(zip(draft.above, draft.depths, strict=True)):
            base = rates[depth]
            chance = base if sure is None else known.calibrated.believe(depth, sure[node], base)
            chances.append(chance * (chances[parent] if parent >= 0 else 1.0))
        return chances

    def judged(self, name: str, confidence: Sequence[float], accepted: int) -> None:
        """Of a verified draft, how sure its drafter was of each token, and how many were right. Comes before `drafted`."""
        known = self._of(name)
        reached = confidence[: accepted + 1]
        rates = list(known.acceptance.rates(ALL, len(reached)))
        for depth, (sure, base) in enumerate(zip(reached, rates, strict=False)):
            known.calibrated.learn(depth, sure, base, depth < accepted)

    def drafted(self, name: str, asked: int, proposed: int, accepted: int, seconds: float) -> None:
        """A drafter was asked for `asked` tokens and took so long; `accepted` of the `proposed` ones were right."""
        known = self._of(name)
        known.rounds += 1
        known.seconds += (seconds - known.seconds) / min(known.rounds, 1 / OFFERED)
        known.offered += OFFERED * ((proposed > 0) - known.offered)
        if proposed:
            known.filled += OFFERED * (min(1.0, proposed / asked) - known.filled)
            known.acceptance.learn(ALL, proposed, accepted)

    def passed(self, rows: int, seconds: float) -> None:
        """A pass of so many rows took so long."""
        self._costs.saw(rows, seconds, 0)

    def _of(self, name: str) -> _Known:
        return self._known.setdefault(name, _Known())

    def _rate(self, riding: Sequence[tuple[str, int]], length: int) -> float:
        """Tokens for each second of a round with drafts of that length."""
        tokens, rows, seconds = 0.0, 0.0, 0.0
        for name, use in riding:
            tokens, rows, k = tokens + 1, rows + 1, min(length, use)
            if k:
                known = self._of(name)
                made, survival = known.offered * known.filled * k, 1.0
                for rate in known.acceptance.rates(ALL, k)[: max(1, round(known.filled * k))]:
                    survival *= rate
                    tokens += known.offered * survival
                rows, seconds = rows + made, seconds + known.seconds
        return tokens / (self._costs.of(round(rows)) + seconds)
