"""Plays a policy over recorded or made-up texts, without a model: what every drafter would have offered where, and what it costs.

A trace knows for each token of a text what each drafter offers there and how many of it are right. Time is made of a table of
pass costs, the drafters' own costs and noise.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from toys import tree

from outrider.core.policy.decisions import Candidate, Choice, Drafted, Judged, Outcome, UpcomingRound
from outrider.core.policy.policy import ALONE, LADDER, Policy
from outrider.core.policy.unverified import Scored
from outrider.core.session.pool import OPEN, WATCHED

Noise = Callable[[random.Random], float]
Level = Callable[[int], float]


@dataclass(frozen=True)
class Offered:
    """What a drafter offers at a place: tokens, how many of them are right, how sure it is of each."""

    tokens: int
    right: int
    confidence: tuple[float, ...] | None = None


@dataclass
class Trace:
    """One text. `offers[name][p]`: what the drafter offers for the tokens from p on."""

    name: str
    phases: list[str]
    offers: dict[str, list[Offered]]

    @property
    def length(self) -> int:
        return len(self.phases)


@dataclass(frozen=True)
class Machine:
    """Seconds. `passes`: by rows, straight lines between; `drafters`: (c0, c1) of those that are not free."""

    passes: dict[int, float]
    drafters: dict[str, tuple[float, float]] = field(default_factory=dict)
    ask: float = 0.0  # of asking one free drafter
    block: bool = False  # the others make all tokens at once

    def cost(self, rows: int) -> float:
        known = sorted(self.passes)
        for low, high in pairwise(known):
            if low <= rows <= high:
                share = (rows - low) / (high - low)
                return self.passes[low] + share * (self.passes[high] - self.passes[low])
        return self.passes[known[-1]] * (1 if rows <= known[-1] else rows / known[-1])

    def draft(self, name: str, tokens: int) -> float:
        first, each = self.drafters.get(name, (0.0, 0.0))
        return first + each * tokens if tokens else 0.0


def even(luck: random.Random) -> float:
    """Noise of a quiet machine."""
    return luck.lognormvariate(-0.0008, 0.04)


def heavy(luck: random.Random) -> float:
    """Now and then a pass takes much longer; the mean is 1."""
    return luck.paretovariate(2.2) / (2.2 / 1.2)


def level(place: int) -> float:
    """Costs stay as they are."""
    return 1.0


def jumping(at: int, by: float) -> Level:
    """All costs change by that factor at token `at`."""
    return lambda place: by if place >= at else 1.0


@dataclass
class Play:
    """Seconds and tokens, and what was chosen in each round."""

    seconds: float = 0.0
    tokens: int = 0
    choices: list[Choice] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # tokens of each round

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def calibrated(machine: Machine, noise: Noise = even, seed: int = 0) -> Policy:
    """A policy as it stands behind a load."""
    policy, luck = Policy(), random.Random(seed)
    for rows in (1, 8, 17, 2, 4, 33):
        policy.calibrate(rows, machine.cost(rows) * median(noise(luck) for _ in range(5)))
    return policy


class Player:
    """A policy through texts one behind the other. It sees noisy times; what counts are the times without noise."""

    def __init__(self, machine: Machine, noise: Noise = even, level: Level = level, seed: int = 0) -> None:
        self.machine, self.noise, self.level = machine, noise, level
        self.policy = calibrated(machine, noise, seed)
        self.luck = random.Random(seed)
        self.at = 0  # tokens so far

    def play(self, trace: Trace) -> Play:
        """One answer."""
        done, place = Play(), 0
        shadows: list[tuple[str, int, Offered]] = []
        while place < trace.length:
            most = min(trace.length - place - 1, LADDER[-1])
            seconds, accepted, choice = self._round(trace, place, most, shadows)
            done.seconds += seconds
            done.tokens += accepted + 1
            done.choices.append(choice)
            done.steps.append(accepted + 1)
            place += accepted + 1
            self._settle(shadows, place)
        self.policy.answered(done.tokens)
        self.at += trace.length
        return done

    def _round(
        self, trace: Trace, place: int, most: int, shadows: list[tuple[str, int, Offered]]
    ) -> tuple[float, int, Choice]:
        policy, machine = self.policy, self.machine
        asked = 0
        now = UpcomingRound(trace.phases[place], place)
        choice = policy.choose(now, lambda: self._candidates(trace, place, most))
        if choice.what not in ALONE and most:
            free = [name for name in trace.offers if name not in machine.drafters]
            asked = len(free)
            for name in free:
                one = trace.offers[name][place]
                waiting = sum(name == other for other, *_ in shadows)
                if waiting < OPEN and one.tokens and not (choice.tokens and choice.name == name):
                    shadows.append(
                        (name, place, Offered(min(one.tokens, WATCHED), min(one.right, WATCHED), one.confidence))
                    )
        offered = trace.offers[choice.name][place] if choice.tokens else Offered(0, 0)
        proposed = min(choice.tokens, offered.tokens, most)
        accepted = min(proposed, offered.right)
        true = self.level(self.at + place)
        factor = true * self.noise(self.luck)
        own, rows = machine.draft(choice.name, choice.tokens), machine.cost(proposed + 1)
        drafting, rest = own * factor, rows * factor
        if choice.name in machine.drafters and proposed:
            policy.learn(Drafted(choice.name, proposed, drafting))
        sure = offered.confidence[:proposed] if offered.confidence else None
        made = Outcome(
            choice.name if choice.tokens else "none", proposed, accepted, drafting, rest, place, confidence=sure
        )
        policy.learn(made)
        return (own + rows) * true + asked * machine.ask, accepted, choice

    def _candidates(self, trace: Trace, place: int, most: int) -> list[Candidate]:
        found = []
        for name, offers in trace.offers.items():
            one = offers[place]
            if name in self.machine.drafters:
                found.append(Candidate(name, most, block=self.machine.block))
            elif one.tokens and most:
                offer = tree(range(min(one.tokens, most)), confidence=one.confidence and one.confidence[:most])
                found.append(Candidate(name, min(most, one.tokens), offer))
        return found

    def _settle(self, shadows: list[tuple[str, int, Offered]], place: int) -> None:
        for waiting in list(shadows):
            name, at, one = waiting
            if place > at + one.right or place >= at + one.tokens:
                self.policy.learn(Judged(name, Scored(one.tokens, one.right), one.confidence))
                shadows.remove(waiting)


def plain(trace: Trace, machine: Machine, level: Level = level) -> Play:
    """Nothing is drafted."""
    return Play(sum(machine.cost(1) * level(place) for place in range(trace.length)), trace.length)


def fixed(trace: Trace, machine: Machine, name: str, tokens: int, level: Level = level) -> Play:
    """One drafter with one length, always."""
    done, place = Play(), 0
    while place < trace.length:
        one = trace.offers[name][place]
        proposed = min(tokens, one.tokens, trace.length - place - 1)
        asked = machine.ask if name not in machine.drafters else 0.0
        done.seconds += (machine.cost(proposed + 1) + machine.draft(name, proposed)) * level(place) + asked
        step = min(proposed, one.right) + 1
        place, done.tokens = place + step, done.tokens + step
    return done


def best_fixed(traces: Sequence[Trace], machine: Machine, level: Level = level) -> tuple[float, str, int]:
    """The highest rate of any (drafter, K) over all texts, plain decoding included, and which it is."""
    found = [(_rate([plain(trace, machine, level) for trace in traces]), "none", 0)]
    for name in traces[0].offers:
        for tokens in LADDER:
            found.append((_rate([fixed(trace, machine, name, tokens, level) for trace in traces]), name, tokens))
    return max(found)


def oracle(trace: Trace, machine: Machine) -> Play:
    """The least time that any choices could have taken."""
    length = trace.length
    least = [0.0] * (length + 1)
    for place in range(length - 1, -1, -1):
        best = machine.cost(1) + least[place + 1]
        for name, offers in trace.offers.items():
            one = offers[place]
            for tokens in {min(k, one.tokens, length - place - 1) for k in (*LADDER, one.right) if k}:
                if tokens > 0:
                    step = min(tokens, one.right) + 1
                    best = min(best, machine.cost(tokens + 1) + machine.draft(name, tokens) + least[place + step])
        least[place] = best
    return Play(least[0], length)


def _rate(plays: Sequence[Play]) -> float:
    return sum(play.tokens for play in plays) / sum(play.seconds for play in plays)


rate = _rate


# ---------------------------------------------------------------------------------------------------- made-up texts


def steady(name: str, chance: Callable[[int], float], length: int = 600, tokens: int = 32, seed: int = 0) -> Trace:
    """One drafter whose tokens are right by independent chances that change with the place."""
    luck = random.Random(seed)
    right = [luck.random() < chance(place) for place in range(length + tokens)]
    offers = []
    for place in range(length):
        run = 0
        while run < tokens and right[place + run]:
            run += 1
        offers.append(Offered(tokens, run))
    return Trace(name, ["prose"] * length, {name: offers})


# ---------------------------------------------------------------------------------------------------- files


def dump(traces: Sequence[Trace], path: Path) -> None:
    """One text a line, packed by gzip; confidences in percent."""
    lines = []
    for trace in traces:
        offers = {
            name: [[one.tokens, one.right, *(round(100 * sure) for sure in one.confidence or ())] for one in found]
            for name, found in trace.offers.items()
        }
        lines.append(
            json.dumps({"name": trace.name, "phases": _runs(trace.phases), "offers": offers}, separators=(",", ":"))
        )
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def load(path: Path) -> list[Trace]:
    """What `dump` wrote."""
    traces = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        row = json.loads(line)
        phases = [phase for phase, count in row["phases"] for _ in range(count)]
        offers = {
            name: [Offered(one[0], one[1], tuple(x / 100 for x in one[2:]) or None) for one in found]
            for name, found in row["offers"].items()
        }
        traces.append(Trace(row["name"], phases, offers))
    return traces


def _runs(phases: Sequence[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for phase in phases:
        if runs and runs[-1][0] == phase:
            runs[-1] = (phase, runs[-1][1] + 1)
        else:
            runs.append((phase, 1))
    return runs


# Passes as they were measured: the starter as stored and in bf16 on two cores, a model of 1.5B there, and rows that cost
# nearly nothing, as on a GPU.
MACHINES = {
    "starter": Machine(
        {1: 0.0103, 2: 0.0104, 4: 0.0114, 7: 0.0135, 9: 0.0139, 13: 0.0152, 17: 0.0190, 33: 0.0283}, ask=3e-5
    ),
    "steep": Machine({1: 0.020, 2: 0.026, 4: 0.034, 8: 0.056, 17: 0.110, 33: 0.210}, ask=3e-5),
    "large": Machine({1: 0.080, 2: 0.083, 4: 0.095, 8: 0.130, 17: 0.190, 33: 0.310}, ask=3e-5),
    "flat": Machine({1: 0.0042, 4: 0.00425, 8: 0.00435, 17: 0.0046, 33: 0.0050}, ask=3e-5),
}
