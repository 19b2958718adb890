"""How likely a draft token is accepted: discounted counts for each drafter, phase of the text and depth.

A phase with few trials leans on the counts of all phases, those lean on what earlier sessions knew. Where acceptance turns
suddenly, old counts are forgotten at once instead of one by one.

Letters: `j` depth of a draft token, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

KEEP = 0.98  # discount of older counts, for each trial
PRIOR, WEIGHT = 0.5, 8.0  # what is believed before any trial, and how many trials that weighs
TRUST = 10  # trials from which a depth is trusted
QUICK = 0.125  # moving average that is compared with the counts
SURPRISE = 3.0  # standard deviations of it by which they may differ
LEFT = 4.0  # trials that are left of the counts when they differ by more
DEEPEST = 64  # depths that are remembered
MOST = 50.0  # trials that are remembered of a depth
ALL = ""  # the pool of all phases


class DrafterRecord(msgspec.Struct):
    """How a drafter did, for later sessions."""

    used: float  # seconds since 1970
    acceptance: dict[str, list[tuple[float, float]]]  # as `Acceptance.dump`
    calibrated: list[float] = []  # as `Calibrated.state`
    confident: int = 0  # positions that this is made of
    offered: float = 1.0  # how often it proposed anything
    ridden: tuple[float, float, float] = (
        0.0,
        0.0,
        0.0,
    )  # newest rounds it drafted in: rounds, tokens, plain passes' time


class _Depth:
    """Trials of one depth."""

    __slots__ = ("accepted", "quick", "trials")

    def __init__(self, accepted: float = 0.0, trials: float = 0.0) -> None:
        self.accepted, self.trials = accepted, trials
        self.quick = accepted / trials if trials else PRIOR

    def copy(self) -> _Depth:
        copy = _Depth(self.accepted, self.trials)
        copy.quick = self.quick
        return copy


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
            size = max(most, 16)
            count = min(size, self.trusted(phase, 1))
            known = self._leaning(ALL, count)
            if phase != ALL:
                known = self._leaning(phase, count, known)
            known += known[-1:] * (size - count)
            self._rates[phase] = known
        return known

    def copy(self) -> Acceptance:
        """The same counts, which go on apart from these."""
        copy = Acceptance()
        copy._phases = {phase: [depth.copy() for depth in depths] for phase, depths in self._phases.items()}
        copy._before, copy.rounds = dict(self._before), self.rounds
        return copy

    @property
    def trials(self) -> float:
        """First tokens of drafts that were judged, those of earlier sessions counted; old ones weigh less."""
        before, depths = self._before.get(ALL, ()), self._phases.get(ALL, ())
        return (before[0][1] if before else 0.0) + (depths[0].trials if depths else 0.0)

    @property
    def phases(self) -> set[str]:
        """Phases of which something is known."""
        return {*self._phases, *self._before}

    def trusted(self, phase: str, depth: int = 0) -> int:
        """The first depth, from `depth` on, with too few trials both in this phase and in all."""
        earlier, now = self._before, self._phases
        counts = (earlier.get(ALL, ()), now.get(ALL, ())), (earlier.get(phase, ()), now.get(phase, ()))
        while True:
            for before, depths in counts:
                trials = before[depth][1] if depth < len(before) else 0.0
                if trials + (depths[depth].trials if depth < len(depths) else 0.0) >= TRUST:
                    break
            else:
                return depth
            depth += 1

    def learn(self, phase: str, offered: int, accepted: int) -> None:
        """`accepted` of `offered` tokens in a row were right; the next one, if there was one, was not."""
        self.rounds += 1
        for name in {ALL, phase}:
            depths = self._phases.setdefault(name, [])
            for depth in range(min(offered, accepted + 1)):
                if depth == len(depths):
                    depths.append(_Depth())
                one, right = depths[depth], depth < accepted
                one.accepted = KEEP * one.accepted + right
                one.trials = KEEP * one.trials + 1
                mean = one.accepted / one.trials
                if one.trials < TRUST:
                    one.quick = mean
                    continue
                one.quick += QUICK * (right - one.quick)
                bound = SURPRISE * math.sqrt(max(mean * (1 - mean), 0.02) * QUICK / (2 - QUICK))
                if abs(one.quick - mean) > bound:  # that was the end of what was known
                    one.accepted, one.trials = LEFT * one.quick, LEFT
                    for deeper in depths[depth + 1 :]:
                        if deeper.trials > LEFT:
                            deeper.accepted, deeper.trials = LEFT * deeper.accepted / deeper.trials, LEFT
        self._rates.clear()

    def dump(self) -> dict[str, list[tuple[float, float]]]:
        """(rate, trials) by depth for each phase, for a later session."""
        records: dict[str, list[tuple[float, float]]] = {}
        for phase in {*self._phases, *self._before}:
            depths, before = self._phases.get(phase, ()), self._before.get(phase, ())
            rows = list[tuple[float, float]]()
            for depth, rate in enumerate(self._leaning(phase, max(len(depths), len(before)))):
                trials = depths[depth].trials if depth < len(depths) else 0.0
                rows.append((rate, min(MOST, trials + (before[depth][1] if depth < len(before) else 0.0))))
            records[phase] = rows
        return records

    def remember(self, before: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """What `dump` gave in an earlier session; anything else is as good as nothing."""
        for phase, rows in before.items():
            if all(0 <= rate <= 1 and 0 <= trials <= MOST for rate, trials in rows):
                self._before[phase] = [(rate, trials) for rate, trials in rows[:DEEPEST]]
        self._rates.clear()

    def _leaning(self, phase: str, count: int, pooled: Sequence[float] = ()) -> list[float]:
        """Rates of the first depths by the counts of a phase.

        Each leans on what earlier sessions knew of it, or on that of all phases (`pooled`), or on the rate of the depth above.
        """
        before, depths, rates, above = self._before.get(phase, ()), self._phases.get(phase, ()), list[float](), PRIOR
        for depth in range(count):
            above = before[depth][0] if depth < len(before) else pooled[depth] if pooled else above
            if depth < len(depths):
                above = (depths[depth].accepted + WEIGHT * above) / (depths[depth].trials + WEIGHT)
            rates.append(above)
        return rates
