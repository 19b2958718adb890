"""What plain decoding would have taken for the tokens of an answer, by the plain passes that were run among its drafted rounds.

Nothing is kept from one answer to the next. Each plain pass is compared with the drafted rounds next to it, which ran at the same
load and behind the same context; where no plain pass stands, plain decoding is taken to follow the drafted rounds. A pass of `W`
rows is scaled to one row by the costs that the policy knows, so that rounds of different widths tell the same level. An error in
these costs cancels out, since it is on both sides of the comparison.

Letters: `W` rows of a pass, `z` seconds of a pass over its expected cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Protocol

from outrider.core.base.protocol import Speedup

BLOCK = 16  # rounds that are taken to run at one load
STALL = (1.3, 3.0)  # times the usual cost that a pass counts at most, on a quiet and on a busy machine
CHANCE = 7.5  # median differences from the usual cost that are chance: five standard deviations
ANOTHER = 2.0  # rounds that one more stall would take
MEMORY = 30.0  # seconds of decoding after which the stalls of earlier answers weigh a third
BORROWED = 4  # degrees of freedom that the spread of drafted passes lends to that of plain ones
ALONE = 0.1  # least share by which a single plain pass may differ from the usual one
FLOOR = 0.05  # share of the time that stays uncertain however many passes are compared: those among drafts find caches less warm


class Costs(Protocol):
    """What a pass is expected to cost."""

    def of(self, rows: int, context: int = 0) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True, slots=True)
class MeteredRound:
    """One round. `own`: seconds of the pass with sampling and text, without the drafter's; `total`: all seconds."""

    tokens: int  # that it brought, the end sign counted
    rows: int
    own: float
    total: float
    context: int  # tokens before it
    from_exit: bool = False  # as in `Round`

    @property
    def plain(self) -> bool:
        """Whether this is what plain decoding does."""
        return self.rows == 1 and not self.from_exit


@dataclass(slots=True)
class Stalls:
    """What stalls took of all seconds. They are too rare to be measured in one answer, and hit plain passes as well."""

    seconds: float = 0.0  # that were decoded
    lost: float = 0.0
    squares: float = 0.0  # of what each stall took

    def add(self, seconds: float, lost: Sequence[float]) -> Stalls:
        """These and those of further `seconds`; the older ones weigh less."""
        left = math.exp(-seconds / MEMORY)
        squares = sum(one * one for one in lost)
        return Stalls(self.seconds * left + seconds, self.lost * left + sum(lost), self.squares * left + squares)


class PlainMeter:
    """The rounds of one answer. `stalls`: those of the answers before it."""

    def __init__(self, costs: Costs, stalls: Stalls | None = None) -> None:
        self._costs = costs
        self._before = stalls or Stalls()
        self.stalls = self._before
        self._rounds: list[MeteredRound] = []

    def add(self, one: MeteredRound) -> None:
        """Count one round."""
        self._rounds.append(one)

    def seconds_per_token(self, newest: int) -> float:
        """What the `newest` rounds took for each token; 0 before the first."""
        rounds = self._rounds[-newest:]
        return sum(one.total for one in rounds) / max(1, sum(one.tokens for one in rounds))

    def estimate(self, newest: int | None = None) -> Speedup | None:
        """The speed-up over all rounds, or over the `newest` of them, whether it is sure or not.

        None where nothing was drafted, or where no plain pass ran beside drafted ones.
        """
        rounds = self._rounds if newest is None else self._rounds[-newest:]
        blocks = [_Block(rounds[at : at + BLOCK], self._costs) for at in range(0, len(rounds), BLOCK)]
        drafted = [block for block in blocks if block.drafted]
        most = _most(drafted)
        lost = [stall for block in drafted for stall in block.cut(most)]
        pairs = [pair for block in drafted for pair in block.pairs()]
        spent = sum(one.total for one in rounds)
        if not pairs or spent <= 0:
            return None
        usual = most * median(took / expected for took, expected in pairs)
        lost += [max(0.0, took - usual * expected) for took, expected in pairs]
        pairs = [(min(took, usual * expected), expected) for took, expected in pairs]
        scale = sum(took for took, _ in pairs) / sum(expected for _, expected in pairs)
        follows = [scale * block.level * block.worth for block in drafted]
        alone = sum(one.own for block in blocks if not block.drafted for one in block.plain)
        seconds = sum(follows) + sum(took for took, _ in pairs) + alone
        self.stalls = self._before.add(spent, lost)
        stalled = self.stalls.lost / (self.stalls.seconds - self.stalls.lost)
        another = ANOTHER * spent / len(rounds)
        errors = (
            sum(follows) * _relative(drafted, pairs, scale, follows),
            seconds * math.sqrt(self.stalls.squares + another**2) / self.stalls.seconds,
            seconds * _unsteady([block.level for block in drafted]),
            seconds * FLOOR,
        )
        return Speedup(seconds * (1 + stalled) / spent, math.hypot(*errors) * (1 + stalled) / spent, len(pairs))


class _Block:
    """Some rounds in a row. `level`: mean `z` of the drafted ones; `worth`: expected cost of their tokens, made plainly."""

    def __init__(self, rounds: Sequence[MeteredRound], costs: Costs) -> None:
        self._costs = costs
        self.plain = [one for one in rounds if one.plain]
        self.drafted = [(one.own, costs.of(one.rows, one.context)) for one in rounds if not one.plain]
        self.worth = sum(one.tokens * costs.of(1, one.context) for one in rounds if not one.plain)
        self.usual = median(seconds / cost for seconds, cost in self.drafted) if self.drafted else 0.0
        self.level = 0.0

    def cut(self, most: float) -> list[float]:
        """Shorten drafted passes to so many times the usual one, and set the level; returns the seconds that were cut off."""
        whole = self.drafted
        self.drafted = [(min(seconds, most * self.usual * cost), cost) for seconds, cost in whole]
        self.level = sum(seconds for seconds, _ in self.drafted) / sum(cost for _, cost in self.drafted)
        return [long - short for (long, _), (short, _) in zip(whole, self.drafted, strict=True)]

    def pairs(self) -> Iterator[tuple[float, float]]:
        """Of each plain pass its seconds, and what the drafted rounds beside it let expect."""
        return ((one.own, self.level * self._costs.of(1, one.context)) for one in self.plain)

    def squares(self) -> float:
        """Of the shares by which drafted passes differ from their level, added up."""
        return sum((seconds / (self.level * cost) - 1) ** 2 for seconds, cost in self.drafted)


def _unsteady(levels: Sequence[float]) -> float:
    """Standard error of the mean level, as a share of it: where the load moved, plain decoding might have met another one."""
    return stdev(levels) / fmean(levels) / math.sqrt(len(levels)) if len(levels) > 1 else 0.0


def _most(drafted: Sequence[_Block]) -> float:
    """Times the usual cost from which a pass is a stall: what chance alone hardly makes, so that it may hit either side."""
    off = [abs(seconds / (block.usual * cost) - 1) for block in drafted for seconds, cost in block.drafted]
    return min(STALL[1], max(STALL[0], 1 + CHANCE * median(off))) if off else STALL[1]


def _relative(
    drafted: Sequence[_Block], pairs: Sequence[tuple[float, float]], scale: float, follows: Sequence[float]
) -> float:
    """Standard error of what follows from drafted rounds, as a share of it: the spread of both sides, widened for few pairs."""
    spread = sum(block.squares() for block in drafted) / max(1, sum(len(block.drafted) - 1 for block in drafted))
    free = len(pairs) - 1 + BORROWED
    off = sum((took / (scale * expected) - 1) ** 2 for took, expected in pairs)
    error = (off + BORROWED * max(spread, ALONE**2 / len(pairs))) / free / len(pairs)
    for block, seconds in zip(drafted, follows, strict=True):
        shares = (len(block.plain) / len(pairs)) ** 2 + (seconds / sum(follows)) ** 2
        error += shares * spread / len(block.drafted)
    return math.sqrt(error) * (1 + 1.21 / free + 1.44 / free**2)  # Student's t over the normal one
