"""How likely a draft token is to be accepted, from how sure its drafter was of it: calibrated while drafts are verified.

A logistic model on the drafter's own confidence and on the plain rate of its depth, corrected with every position that was
verified. It is believed only while it says more than the plain rate does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

LEVELS = 4  # depths with an offset of their own; the last one is that of all deeper ones
FIRST, LAST, SHRINK = 0.2, 0.03, 0.995  # step of a correction, over the squared length of what it is made from
FAR = 6.0  # log-odds beyond which nothing is distinguished
LOW, HIGH = 1.0 / (1.0 + math.exp(FAR)), 1.0 / (1.0 + math.exp(-FAR))  # chances of these
CHECKED = 500  # positions between two looks at who says more


class Calibrated:
    """One drafter's. `state`: what `state` of an earlier one gave; anything else begins anew."""

    def __init__(self, state: Sequence[float] = ()) -> None:
        fits = len(state) == LEVELS + 3 and all(math.isfinite(number) for number in state)
        self._rate = LAST if fits else FIRST
        if not fits:
            state = (*(0.0,) * LEVELS, 0.0, 1.0, 1.0)  # the plain rate as it is
        *self._weights, believed = map(float, state)
        self._believed = believed > 0
        self._seen = 0
        self._missed = self._plain_missed = 0.0  # Brier sums since the last look

    def copy(self) -> Calibrated:
        """The same corrections, which go on apart from these."""
        other = copy(self)
        other._weights = list(self._weights)
        return other

    @property
    def state(self) -> list[float]:
        """Offsets by depth, the weights of confidence and plain rate, and 1 where it is believed, else 0."""
        return [*self._weights, float(self._believed)]

    def believe(self, depth: int, confidence: float, base: float) -> float:
        """Chance that a token at `depth` (from 0) is accepted once it is reached.

        `confidence`: what its drafter held of its best token, `base`: the plain rate of that depth.
        """
        if not self._believed:
            return base
        own, plain, weights = min(HIGH, max(LOW, confidence)), min(HIGH, max(LOW, base)), self._weights
        own, plain = math.log(own / (1.0 - own)), math.log(plain / (1.0 - plain))
        odds = weights[min(depth, LEVELS - 1)] + weights[LEVELS] * own + weights[LEVELS + 1] * plain
        return 1.0 / (1.0 + math.exp(-max(-FAR, min(FAR, odds))))

    def learn(self, depth: int, confidence: float, base: float, accepted: bool) -> None:
        """A position was verified, with what `believe` got for it earlier."""
        own, plain, weights = min(HIGH, max(LOW, confidence)), min(HIGH, max(LOW, base)), self._weights
        own, plain = math.log(own / (1.0 - own)), math.log(plain / (1.0 - plain))
        odds = weights[min(depth, LEVELS - 1)] + weights[LEVELS] * own + weights[LEVELS + 1] * plain
        miss = accepted - 1.0 / (1.0 + math.exp(-max(-FAR, min(FAR, odds))))
        self._seen += 1
        self._missed += miss * miss
        self._plain_missed += (accepted - base) ** 2
        if self._seen == CHECKED:
            self._believed = self._missed <= self._plain_missed
            self._seen = 0
            self._missed = self._plain_missed = 0.0
        step = self._rate * miss / (1.0 + own * own + plain * plain)
        self._rate = max(LAST, SHRINK * self._rate)
        weights[min(depth, LEVELS - 1)] += step
        weights[LEVELS] += step * own
        weights[LEVELS + 1] += step * plain
