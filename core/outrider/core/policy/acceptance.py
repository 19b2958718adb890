"""How likely a draft token is accepted: discounted counts for each drafter, phase of the text and depth.

A phase with few trials leans on the counts of all phases, those lean on what earlier sessions knew. Where acceptance turns
suddenly, old counts are forgotten at once instead of one by one.

Letters: `j` depth of a draft token, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

KEEP = 0.98  # discount of older counts, for each trial
PRIOR, WEIGHT = 0.5, 8.0  # what is believed before any trial, and how many trials that weighs
TRUST = 10  # trials from which a depth is trusted
QUICK = 0.125  # moving average that is compared with the counts
SURPRISE = 3.0  # standard deviations of it by which they may differ
LEFT = 4.0  # trials that are left of the counts when they differ by more
DEEPEST = 64  # depths that are remembered
MOST = 50.0  # trials that are remembered of a depth
ALL = ""  # the pool of all phases


class _Depth:
    """Trials of one depth."""

    __slots__ = ("accepted", "quick", "trials")

    def __init__(self, accepted: float = 0.0, trials: float = 0.0) -> None:
        self.accepted, self.trials = accepted, trials
        self.quick = accepted / trials if trials else PRIOR

    def copy(self) -> _Depth:
        made = _Depth(self.accepted, self.trials)
        made.quick = self.quick
        return made

    def learn(self, right: bool) -> bool:
        """Whether that was the end of what was known."""
        self.accepted = KEEP * self.accepted + right
        self.trials = KEEP * self.trials + 1
        if self.trials < TRUST:
            self.quick = self.accepted / self.trials
            return False
        self.quick += QUICK * (right - self.quick)
        mean = self.accepted / self.trials
        bound = SURPRISE * math.sqrt(max(mean * (1 - mean), 0.02) * QUICK / (2 - QUICK))
        if abs(self.quick - mean) <= bound:
            return False
        self.accepted, self.trials = LEFT * self.quick, LEFT
        return True

    def doubt(self) -> None:
        """What is known weighs little from now on."""
        if self.trials > LEFT:
            self.accepted, self.trials = LEFT * self.accepted / self.trials, LEFT


class Acceptance:
    """Of one drafter."""

    def __init__(self) -> None:
        self._phases: dict[str, list[_Depth]] = {ALL: []}
        self._before: dict[
            str, list[tuple[float, float]]
        ] = {}  # by phase: (rate, trials) by depth, of earlier sessions
        self._rates: dict[str, list[float]] = {}
        self.rounds = 0  # drafts that were learnt from

    def rates(self, phase: str, most: int) -> list[float]:
        """Probability that each depth, at most `most` of them or more, is accepted once it is reached.

        Depths with too few trials have the value of the deepest that has enough.
        """
        known = self._rates.get(phase)
        if known is None or len(known) < most:
            known, pooled = [], PRIOR
            for depth in range(max(most, 16)):
                if depth and not self._trusted(phase, depth):  # nor is any deeper one
                    known += known[-1:] * (max(most, 16) - depth)
                    break
                pooled = self._rate(ALL, depth, pooled)
                known.append(pooled if phase == ALL else self._rate(phase, depth, pooled))
            self._rates[phase] = known
        return known

    def copy(self) -> Acceptance:
        """The same counts, which go on apart from these."""
        made = Acceptance()
        made._phases = {phase: [depth.copy() for depth in depths] for phase, depths in self._phases.items()}
        made._before, made.rounds = dict(self._before), self.rounds
        return made

    @property
    def trials(self) -> float:
        """First tokens of drafts that were judged, those of earlier sessions counted; old ones weigh less."""
        before, depths = self._before.get(ALL, ()), self._phases.get(ALL, ())
        return (before[0][1] if before else 0.0) + (depths[0].trials if depths else 0.0)

    @property
    def phases(self) -> set[str]:
        """Phases of which something is known."""
        return {*self._phases, *self._before}

    def trusted(self, phase: str) -> int:
        """Depths with enough trials, in this phase or in all."""
        depth = 0
        while self._trusted(phase, depth):
            depth += 1
        return depth

    def learn(self, phase: str, offered: int, accepted: int) -> None:
        """`accepted` of `offered` tokens in a row were right; the next one, if there was one, was not."""
        self.rounds += 1
        for name in {ALL, phase}:
            depths = self._phases.setdefault(name, [])
            for depth in range(min(offered, accepted + 1)):
                if depth == len(depths):
                    depths.append(_Depth())
                if depths[depth].learn(depth < accepted):
                    for deeper in depths[depth + 1 :]:
                        deeper.doubt()
        self._rates.clear()

    def dump(self) -> dict[str, list[tuple[float, float]]]:
        """(rate, trials) by depth for each phase, for a later session."""
        found: dict[str, list[tuple[float, float]]] = {}
        for phase in {*self._phases, *self._before}:
            depths, before = self._phases.get(phase, ()), self._before.get(phase, ())
            rows, above = list[tuple[float, float]](), PRIOR
            for depth in range(max(len(depths), len(before))):
                above = self._rate(phase, depth, above)
                trials = depths[depth].trials if depth < len(depths) else 0.0
                rows.append((above, min(MOST, trials + (before[depth][1] if depth < len(before) else 0.0))))
            found[phase] = rows
        return found

    def remember(self, before: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """What `dump` gave in an earlier session; anything else is as good as nothing."""
        for phase, rows in before.items():
            if all(0 <= rate <= 1 and 0 <= trials <= MOST for rate, trials in rows):
                self._before[phase] = [(rate, trials) for rate, trials in rows[:DEEPEST]]
        self._rates.clear()

    def _rate(self, phase: str, depth: int, above: float) -> float:
        """By the counts of a phase; they lean on what earlier sessions knew of it, or on `above`."""
        before, depths = self._before.get(phase, ()), self._phases.get(phase, ())
        prior = before[depth][0] if depth < len(before) else above
        if depth >= len(depths):
            return prior
        return (depths[depth].accepted + WEIGHT * prior) / (depths[depth].trials + WEIGHT)

    def _trusted(self, phase: str, depth: int) -> bool:
        """Whether there are enough trials, of this phase or of all."""
        for name in (ALL, phase):
            before, depths = self._before.get(name, ()), self._phases.get(name, ())
            trials = (before[depth][1] if depth < len(before) else 0.0) + (
                depths[depth].trials if depth < len(depths) else 0.0
            )
            if trials >= TRUST:
                return True
        return False
