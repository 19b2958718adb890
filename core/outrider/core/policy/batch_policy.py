"""How long the drafts of a round of several answers are: what gives most tokens for the time of the one pass that verifies all.

With many answers in a pass rows are no longer free, so drafts get shorter the more there are. What costs time to draft is
drafted up to one length by all answers of a round. What is free is drafted as far as it goes, and of all drafts of the round
those tokens are verified that are likeliest to be accepted, as many as pay. Where none pay, that is tried again now and then.

What is known of drafters and costs is the policy's, which learns from these rounds as from those of a single answer.

Letters: `K` draft tokens of an answer, `R` rows of a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outrider.core.model.kernels.linear import MAX_DECODE_ROWS
from outrider.core.sampling.draft_tree import DraftTree

from .acceptance import ALL
from .costs import Costs
from .policy import LADDER, Policy

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # what passes of fewer rows than a whole one are counted as
FIRST, TRIED = 4, 4  # tokens of a drafter's first drafts, and how many of these there are
MARGIN = 1.03  # drafting must promise this much more than plain rounds
PROBE_FIRST, PROBE_LAST = 16, 256  # rounds between drafts that are made to see whether they pay again, doubling


def width(rows: int) -> int:
    """What a number of rows is counted as."""
    return next((some for some in ROWS if some >= rows), -(-rows // MAX_DECODE_ROWS) * MAX_DECODE_ROWS)


class BatchPolicy:
    """Chooses for each round of one batch."""

    def __init__(self, policy: Policy) -> None:
        if policy.batch_costs is None:
            policy.batch_costs = Costs(width)
            for rows, seconds in policy.costs.passes.items():
                policy.batch_costs.calibrate(rows, seconds)
        self._policy, self._costs = policy, policy.batch_costs
        self._asked: Counter[str] = Counter()  # drafts that were asked for, by drafter
        self._gap, self._wait = PROBE_FIRST, 0
        self._patience = [PROBE_FIRST, 0]  # the same of what is free

    def length(self, active: Sequence[tuple[str, int]]) -> int:
        """Draft tokens of each answer in the next round; `active`: who drafts for each, and how many would be of use, 0: none."""
        most = max((use for _, use in active), default=0)
        length = self._length(active, most) if most else 0
        if length:
            self._asked.update(name for name, use in active if use)
        return length

    def _length(self, active: Sequence[tuple[str, int]], most: int) -> int:
        if any(use and self._unknown(name) for name, use in active):
            return min(FIRST, most)
        plain = self._rate(active, 0)
        best = max((k for k in (*LADDER, most) if k <= most), key=lambda k: self._rate(active, k))
        if self._rate(active, best) >= MARGIN * plain:
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
        nodes = sorted(
            ((chance, at) for at, draft in enumerate(drafts) for chance in self._chances(*draft)), reverse=True
        )
        best, most, sure = 0, rows / self._costs.of(rows), float(rows)
        for count, (chance, _) in enumerate(nodes, 1):
            sure += chance
            rate = sure / self._costs.of(rows + count)
            if rate > most:
                best, most = count, rate
        self._patience[1] += 1
        if best:
            self._patience = [PROBE_FIRST, 0]
        elif nodes and self._patience[1] >= self._patience[0]:
            self._patience = [min(2 * self._patience[0], PROBE_LAST), 0]
            return [min(FIRST, len(draft)) for _, draft in drafts]
        counts = [0] * len(drafts)
        for _, at in nodes[:best]:
            counts[at] += 1
        return counts

    def _chances(self, name: str, draft: DraftTree) -> list[float]:
        """Of each node of a draft, that it and all above it are accepted."""
        known, sure, chances = self._policy.arm(name), draft.confidences, list[float]()
        rates = known.acceptance.rates(ALL, len(draft))
        for node, (parent, depth) in enumerate(zip(draft.above, draft.depths, strict=True)):
            base = rates[depth]
            chance = base if sure is None else known.calibrated.believe(depth, sure[node], base)
            chances.append(chance * (chances[parent] if parent >= 0 else 1.0))
        return chances

    def _unknown(self, name: str) -> bool:
        """Whether too little is known of a drafter to choose a length."""
        return self._asked[name] < TRIED and self._policy.arm(name).acceptance.trials < TRIED

    def _rate(self, active: Sequence[tuple[str, int]], length: int) -> float:
        """Tokens for each second of a round with drafts of that length."""
        tokens, rows, seconds = 0.0, 0.0, 0.0
        for name, use in active:
            tokens, rows, k = tokens + 1, rows + 1, min(length, use)
            if k:
                known = self._policy.arm(name)
                made, survival = known.offered * known.filled * k, 1.0
                for rate in known.acceptance.rates(ALL, k)[: max(1, round(known.filled * k))]:
                    survival *= rate
                    tokens += known.offered * survival
                rows, seconds = rows + made, seconds + self._costs.drafting(name).of(k)
        return tokens / (self._costs.of(round(rows)) + seconds)
