"""What a pass of the target costs by its rows and the context after it, and what drafting costs.

Calibration at load gives the first figures, every round corrects them. Robust against stalls: a sample moves the mean by a
bounded step, and by half of it where the round before had another width (then caches and kernels are cold; but offers of all
lengths may come in turns, so that a width seldom follows itself).

Letters: `K` draft tokens, `W` = K + 1 rows of a pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

STEP, CLAMP = 0.3, 0.25  # of a moving average, and the share of its value by which a sample may differ at most
CALM, MOVING = 0.1, 0.12  # step while samples go to both sides, and the mean difference from which they do not
COLD = 0.5  # weight of a sample whose width was not that of the previous round
HEAVY = 16  # samples that weigh as much as any number of them
STEADY, TURNED = 0.95, 0.8  # discount of what is known of drafting costs, for each sample; the second while it is wrong
WRONG = 0.5  # mean share by which the newest samples differ from what is known where it is wrong
FIRM = 50  # drafts of an earlier session from which its costs weigh half of what they did there
FADE = 0.9  # of the drafts of an earlier session that still count in the next one
GUESS = 0.25  # samples that a guess of drafting costs weighs
DUMPED = 7  # numbers of a drafter's costs
WILD = 4.0  # a drafting time so many times the expected one is cut to that


@dataclass(slots=True)
class _Width:
    """Seconds of a pass of one width at context 0."""

    value: float
    n: int = 1
    drift: float = 0.0  # mean share by which the newest samples differed

    def add(self, seconds: float, weight: float) -> None:
        """A sample; a single wild one moves little, several to one side more."""
        off = max(-CLAMP, min(CLAMP, seconds / self.value - 1))
        self.drift += STEP * (off - self.drift)
        self.n += 1
        self.value *= 1 + weight * off * max(STEP if abs(self.drift) > MOVING else CALM, min(STEP, 1 / self.n))


class Costs:
    """Seconds. `width`: the rows that a pass really takes for so many, where only a few widths exist."""

    def __init__(self, width: Callable[[int], int] | None = None) -> None:
        self._width = width or int  # as it is
        self._passes: dict[int, _Width] = {}
        self._slopes = (0.0, 0.0)  # seconds for each token of context: of one row, and more for each further row
        self._drafting: dict[str, Drafting] = {}
        self._last = 0
        self._curve: tuple[list[int], list[float]] | None = None
        self._table: dict[int, float] = {}  # seconds by rows, of what was asked before

    @property
    def known(self) -> bool:
        """Whether anything is known of a plain pass."""
        return 1 in self._passes

    @property
    def passes(self) -> dict[int, float]:
        """Seconds by rows, of the widths that were measured."""
        return {rows: one.value for rows, one in sorted(self._passes.items())}

    @property
    def slopes(self) -> tuple[float, float]:
        """Seconds for each token of context: of one row, and more for each further row."""
        return self._slopes

    def calibrate(self, rows: int, seconds: float) -> None:
        """A pass was measured in an empty context."""
        self._passes[self._width(rows)] = _Width(seconds, 3)
        self._curve = None

    def lean(self, context: int, one: float, wide: tuple[int, float]) -> None:
        """The same passes behind `context` tokens: of one row, and of `wide` (rows, seconds)."""
        rows, seconds = wide
        first = max(0.0, one - self.of(1)) / context
        second = max(0.0, seconds - self.of(rows)) / context
        self._slopes = first, max(0.0, second - first) / max(1, rows - 1)

    def saw(self, rows: int, seconds: float, context: int) -> None:
        """A pass took so long, as part of an answer."""
        rows, (first, more) = self._width(rows), self._slopes
        same, self._last = rows == self._last, rows
        known = self._passes.get(rows)
        seconds = max(seconds - context * (first + more * (rows - 1)), 1e-9)
        if known is None:
            if same:
                self._passes[rows] = _Width(seconds)
                self._curve = None
            return
        known.add(seconds, 1.0 if same else COLD)
        self._curve = None

    def credit(self, name: str, tokens: int, seconds: float, context: int) -> None:
        """The pass over the newest draft of `tokens` took so long; what drafting saved it is taken off the drafter's cost."""
        self.drafting(name).credit(tokens, self.of(1 + tokens, context) - seconds)

    def of(self, rows: int, context: int = 0) -> float:
        """Seconds of a pass: measured, between the nearest measured ones, or beyond them; never less than fewer rows cost."""
        if self._curve is None:
            self._curve, self._table = _rising(self._passes), {}
        value = self._table.get(rows)
        if value is None:
            value = self._table[rows] = _between(*self._curve, self._width(rows))
        first, more = self._slopes
        return value + context * (first + more * (rows - 1)) if context else value

    def lean_by(self, first: float, more: float) -> None:
        """Set `slopes`."""
        self._slopes = max(0.0, first), max(0.0, more)

    def dump(self) -> dict[str, list[float]]:
        """What is known of drafters, as plain numbers."""
        return {name: one.dump() for name, one in self._drafting.items() if one.n}

    def remember(self, name: str, numbers: list[float], scale: float = 1.0) -> None:
        """What `dump` gave of a drafter in an earlier session; anything else is as good as nothing.

        `scale`: how much longer a plain pass takes now than it did then.
        """
        if len(numbers) == DUMPED and all(0 <= number < math.inf for number in numbers):
            self._drafting[name] = Drafting.load(numbers, scale)

    def drafting(self, name: str) -> Drafting:
        """What is known of a drafter's own time."""
        known = self._drafting.get(name)
        if known is None:
            known = self._drafting[name] = Drafting()
        return known


class Drafting:
    """c0 + c1 K of one drafter by discounted least squares, and what hearing of a token costs it that it missed."""

    def __init__(self) -> None:
        self.n = 0
        self.behind = 0.0  # seconds for each token to catch up
        self._sums = [0.0] * 5  # of 1, K, K², seconds, K seconds
        self._drift = 0.0  # mean share by which the newest samples differed

    def saw(self, tokens: int, seconds: float) -> None:
        """A draft of `tokens` took so long."""
        expected = self.of(tokens)
        if self.n >= 4 and expected > 0:
            seconds = min(seconds, WILD * expected)
            self._drift += STEP * (min(1.0, seconds / expected - 1) - self._drift)
        keep = STEADY if abs(self._drift) < WRONG else TURNED
        sample = (1.0, tokens, tokens * tokens, seconds, tokens * seconds)
        self._sums = [keep * old + new for old, new in zip(self._sums, sample, strict=True)]
        self.n += 1

    def credit(self, tokens: int, seconds: float) -> None:
        """The newest draft, of `tokens`, cost so much less than reported, at most all of it."""
        seconds = min(seconds, self._sums[3])
        self._sums[3] -= seconds
        self._sums[4] -= tokens * seconds

    def expect(self, each: float) -> None:
        """Seconds of a token by a guess, until one is measured."""
        if not self.n:
            self._sums = [GUESS, GUESS, GUESS, GUESS * each, GUESS * each]

    def caught_up(self, tokens: int, seconds: float) -> None:
        """It got `tokens` that others had drafted."""
        each = seconds / tokens
        self.behind = each if not self.behind else self.behind + STEP * (each - self.behind)

    def line(self) -> tuple[float, float]:
        """c0 and c1; with one length only, all of it counts for each token, since nothing shows how it is shared."""
        one, k, kk, s, ks = self._sums
        if not one or not k:
            return (s / one if one else 0.0), 0.0
        spread = kk - k * k / one
        slope = (ks - k * s / one) / spread if spread > 0.05 * one else s / k
        slope = max(0.0, min(slope, s / k))
        return max(0.0, (s - slope * k) / one), slope

    def of(self, tokens: int) -> float:
        """Seconds of a draft of so many tokens; nothing before the first."""
        first, each = self.line()
        return first + each * tokens

    def dump(self) -> list[float]:
        """As plain numbers."""
        return [float(self.n), self.behind, *self._sums]

    @staticmethod
    def load(numbers: list[float], scale: float = 1.0) -> Drafting:
        """What `dump` gave, with seconds that count `scale` times; few drafts weigh little beside those to come."""
        drafting = Drafting()
        n, drafting.behind = numbers[0], scale * numbers[1]
        drafting.n, weight = int(FADE * n), n / (n + FIRM)
        one, k, kk, s, ks = (weight * number for number in numbers[2:])
        drafting._sums = [one, k, kk, scale * s, scale * ks]
        return drafting


def _rising(passes: dict[int, _Width]) -> tuple[list[int], list[float]]:
    """Rows and seconds, where neighbours that fall are made equal: their mean by weight (isotonic regression)."""
    blocks: list[tuple[float, float, int]] = []  # seconds, weight, widths
    rows, seconds = sorted(passes), list[float]()
    for width in rows:
        one = passes[width]
        blocks.append((one.value, float(min(one.n, HEAVY)), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    for value, _, count in blocks:
        seconds += [value] * count
    return rows, seconds


def _between(known: list[int], seconds: list[float], rows: int) -> float:
    """Seconds of a pass: on the line between the nearest measured ones, or by the last slope beyond them."""
    if not known:
        return 1.0
    at = bisect_left(known, rows)
    if at == 0 or len(known) == 1:
        return seconds[min(at, len(known) - 1)]
    at = min(at, len(known) - 1)
    slope = (seconds[at] - seconds[at - 1]) / (known[at] - known[at - 1])
    return seconds[at] + slope * (rows - known[at])
