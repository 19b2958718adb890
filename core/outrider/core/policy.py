"""Which drafter rides and how many tokens it may guess, from measured pass cost and measured acceptance.

The rate of a choice is expected tokens over expected seconds: E(K) = 1 + sum of survival to depth j, T(K) = one pass of
K + 1 rows + drafting. "No drafting" is always one of the choices. State is pooled across the answers of one engine.

Letters: `K` draft tokens, `j` depth, `W` = K + 1 rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from .protocol import Speedup

LADDER = (1, 2, 3, 4, 6, 8, 12, 16)
MARGIN = 1.03  # drafting must promise this much more than plain decoding
KEEP = 0.98  # discount of older acceptance, per observation
PRIOR, PRIOR_WEIGHT = 0.5, 4.0
COST_STEP, COST_CLAMP = 0.3, 0.25  # moving average of pass costs; a single sample moves it by at most the clamp
PROBE_FIRST, PROBE_LAST = 16, 512  # rounds between probes while parked, doubling


@dataclass(slots=True)
class _Mean:
    """Moving average with clamped innovations, plus count."""

    value: float = 0.0
    n: int = 0

    def add(self, x: float) -> None:
        self.n += 1
        if self.n == 1:
            self.value = x
            return
        step = COST_STEP * (x - self.value)
        bound = COST_CLAMP * self.value
        self.value += max(-bound, min(bound, step))


class Plain:
    """Seconds of the newest plain passes, for the measured speed-up. Medians: one stall must not pass for a speed-up."""

    def __init__(self) -> None:
        self.n = 0
        self._newest: deque[float] = deque(maxlen=128)

    def add(self, x: float) -> None:
        """Count one pass of `x` seconds."""
        self.n += 1
        self._newest.append(x)

    def speedup(self, seconds_per_token: float) -> Speedup | None:
        """Median plain pass over `seconds_per_token`, with the median's standard error; None below 8 passes."""
        if self.n < 8 or seconds_per_token <= 0:
            return None
        middle = median(self._newest)
        spread = 1.4826 * median(abs(x - middle) for x in self._newest)  # of a normal law, from the median deviation
        error = 1.2533 * spread / math.sqrt(len(self._newest))
        return Speedup(middle / seconds_per_token, error / seconds_per_token, len(self._newest))


@dataclass(slots=True)
class _Arm:
    """What is known of one drafter."""

    accepted: list[float] = field(default_factory=list)  # discounted successes by depth
    reached: list[float] = field(default_factory=list)  # discounted trials by depth
    offered: float = 1.0  # how often it proposes anything when asked
    per_draft: _Mean = field(default_factory=_Mean)  # seconds of one proposal
    rounds: int = 0
    gap: int = PROBE_FIRST
    wait: int = 0

    def rate(self, depth: int) -> float:
        """Probability that depth j (from 0) is accepted once reached."""
        if depth < len(self.reached):
            return (self.accepted[depth] + PRIOR * PRIOR_WEIGHT) / (self.reached[depth] + PRIOR_WEIGHT)
        return self.rate(depth - 1) if depth else PRIOR

    def learn(self, proposed: int, accepted: int) -> None:
        """One verified draft: depths up to the first rejection were reached."""
        for depth in range(min(proposed, accepted + 1)):
            if depth == len(self.reached):
                self.reached.append(0.0)
                self.accepted.append(0.0)
            self.reached[depth] = KEEP * self.reached[depth] + 1
            self.accepted[depth] = KEEP * self.accepted[depth] + (depth < accepted)


class Policy:
    """Chooses per round; learns from every round. One for each loaded target."""

    def __init__(self) -> None:
        self.plain = Plain()
        self._passes: dict[int, _Mean] = {}  # seconds by rows
        self._arms: dict[str, _Arm] = {}
        self._drafted = 0

    def calibrate(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows was measured at load."""
        self._passes.setdefault(rows, _Mean()).add(seconds)

    def best(self, name: str, most: int) -> tuple[int, float]:
        """The draft length with the best rate for a drafter, at most `most`, and that rate over plain decoding's."""
        return self._best(self._arms.setdefault(name, _Arm()), most)

    def gain(self, name: str, length: int) -> float:
        """The rate of drafts of that length over plain decoding's."""
        *_, (_, found) = self._gains(self._arms.setdefault(name, _Arm()), length)
        return found

    def budget(self, names: Sequence[str], most: int, *, pinned: int | None = None, park: bool = True) -> int:
        """Draft tokens for the next round of a drafter, or of several that compete, at most `most`; 0 = a plain pass.

        `pinned` is the user's own length and is taken as it is; without `park` a losing drafter rides on.
        """
        if most <= 0:
            return 0
        if pinned is not None:
            return min(pinned, most)
        if 1 not in self._passes or self._plain_due():
            return 0
        chances = [(*self.best(name, most), self._arms[name]) for name in names]
        best = max(length for length, _, _ in chances)
        arm = max(chances, key=lambda chance: chance[1])[2]
        if not park or any(some.rounds < 4 or gain >= MARGIN for _, gain, some in chances):
            arm.gap, arm.wait = PROBE_FIRST, 0
            return best
        arm.wait += 1
        if arm.wait < arm.gap:
            return 0
        arm.wait, arm.gap = 0, min(arm.gap * 2, PROBE_LAST)
        return min(best, most)

    def learn(self, name: str, asked: int, proposed: int, accepted: int, seconds: tuple[float, float]) -> None:
        """One round: `asked` for that many tokens (0 = plain on purpose), `seconds` of drafting and of the rest."""
        drafting, rest = seconds
        if proposed == 0:
            self.plain.add(rest)
        self._passes.setdefault(proposed + 1, _Mean()).add(rest)
        if asked == 0:
            return
        arm = self._arms.setdefault(name, _Arm())
        arm.rounds += 1
        arm.offered += 0.05 * ((proposed > 0) - arm.offered)
        arm.per_draft.add(drafting)
        if proposed:
            self._drafted += 1
            arm.learn(proposed, accepted)

    def _plain_due(self) -> bool:
        """Interleaved plain passes: 8 within the first 128 drafted rounds, then 1 in 256."""
        if self._drafted < 128:
            return self.plain.n < min(8, self._drafted // 16)
        return self.plain.n < 8 + (self._drafted - 128) // 256

    def _best(self, arm: _Arm, most: int) -> tuple[int, float]:
        """The length with the best rate and its rate over that of plain decoding; shorter of equal ones."""
        chances = [(k, gain) for k, gain in self._gains(arm, most) if k in LADDER or k == most]
        return max(chances, key=lambda chance: chance[1])

    def _gains(self, arm: _Arm, most: int) -> Iterator[tuple[int, float]]:
        """Every length up to `most` with its rate over that of plain decoding."""
        plain = self._cost(1)
        survival, expected = 1.0, 1.0
        for k in range(1, most + 1):
            survival *= arm.rate(k - 1)
            expected += survival
            yield k, expected * plain / (self._cost(k + 1) + arm.per_draft.value)

    def _cost(self, rows: int) -> float:
        """Seconds of a pass of `rows`: measured, or between the nearest measured ones, never less than fewer rows cost."""
        known = sorted(self._passes)
        if not known:
            return 1.0
        below = [r for r in known if r <= rows]
        above = [r for r in known if r >= rows]
        if not below:
            return self._passes[above[0]].value
        low = max(self._passes[r].value for r in below)
        if not above or above[0] == below[-1]:
            return low
        share = (rows - below[-1]) / (above[0] - below[-1])
        return low + share * max(0.0, self._passes[above[0]].value - low)
