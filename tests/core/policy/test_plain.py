"""The speed-up of an answer on made-up machines whose load changes: the claim against the truth, which is known here."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import pytest

from outrider.core.base.protocol import PlainTime, Speedup
from outrider.core.base.values import SURE
from outrider.core.policy.costs import Costs
from outrider.core.policy.metering import LEAST, MeterSchedule
from outrider.core.policy.plain import MeteredRound, PlainMeter, Stalls

ROWS = {1: 0.0103, 2: 0.0104, 4: 0.0114, 7: 0.0135, 9: 0.0139, 13: 0.0152, 17: 0.0190}
ANSWERS = 50


def expected(rows: int, context: int) -> float:
    """Seconds of a pass on the quiet machine."""
    (low, high) = next((a, b) for a, b in pairwise(ROWS) if rows <= b)
    first = ROWS[low] + (rows - low) / (high - low) * (ROWS[high] - ROWS[low])
    return first + context * (2e-6 + 1e-7 * (rows - 1))


@dataclass
class Machine:
    """`spread` of a pass, `stall`: how often one takes many times as long, `step`: by what other work slows it down."""

    spread: float = 0.04
    stall: float = 0.0
    step: float = 1.0
    drift: float = 0.0
    skew: float = 1.0  # by which drafted passes cost more than the policy believes
    now: float = 0.0
    _until: float = 0.0
    _busy: bool = False

    def level(self, luck: random.Random) -> float:
        """How slow it is now."""
        while self.now >= self._until:
            self._busy = not self._busy
            self._until += luck.expovariate(1 / 2.0)
        return (self.step if self._busy else 1.0) * (1 + self.drift * math.sin(self.now / 3))

    def noise(self, luck: random.Random) -> float:
        """Of one pass; its mean is `mean`."""
        usual = luck.lognormvariate(-(self.spread**2) / 2, self.spread)
        return usual * luck.uniform(2, 8) if luck.random() < self.stall else usual

    @property
    def mean(self) -> float:
        return 1 + 4 * self.stall


@dataclass
class Told:
    """One answer: what is claimed of it, and what is so."""

    made: Speedup | None
    true: float
    tokens: int
    cost: float  # of plain passes for the meter, as a share of its time


def play(machine: Machine, luck: random.Random, costs: Costs, stalls: Stalls) -> tuple[Told, Stalls]:
    """One answer: drafts of one drafter, of which some are silent, and plain passes where the schedule wants them."""
    meter, schedule = PlainMeter(costs, stalls), MeterSchedule()
    right, longest, silent = luck.uniform(0.2, 0.9), luck.choice((1, 2, 3, 4, 6, 8)), luck.choice((0.0, 0.0, 0.3))
    drafting, start, tokens = luck.choice((2e-4, 1e-3, 2e-3)), luck.randint(30, 1500), luck.randint(100, 300)
    got, true, spent, lost = 0, 0.0, 0.0, 0.0
    while got < tokens:
        context, level = start + got, machine.level(luck)
        share = max(0.0, 1 - spent / true) if true else 1.0  # of a plain pass that drafting saves
        due = schedule.due(share * costs.of(1, context), context)
        draft = 0 if due or luck.random() < silent else luck.randint(1, longest)
        brought = 1
        while brought <= draft and luck.random() < right:
            brought += 1
        own = expected(1 + draft, context) * level * machine.noise(luck) * (machine.skew if draft else 1.0)
        whole = own + (drafting * (1 + draft) * level if draft else 0.0)
        plain = expected(1, context) * level * machine.mean
        true, spent, machine.now = true + brought * plain, spent + whole, machine.now + whole
        if draft:
            schedule.drafted("d", whole)
        else:
            schedule.plain(whole, context, share * whole if due else 0.0)
            lost += plain if due else 0.0
        meter.add(MeteredRound(brought, 1 + draft, own, whole, context))
        costs.saw(1 + draft, own, context)
        got += brought
    metered = lost * (1 - 1 / max(1.0, true / spent)) / spent
    return Told(meter.estimate(), true / spent, tokens, metered), meter.stalls


def answers(machine: Machine, count: int = ANSWERS, seed: int = 0) -> list[Told]:
    """Answers in a row, with pauses."""
    machine = replace(machine)  # each test begins with a fresh one, in whatever order they run
    luck, costs, stalls = random.Random(seed), Costs(), Stalls()
    for rows in (1, 2, 4, 8, 17):
        costs.calibrate(rows, expected(rows, 0))
    costs.lean_by(1.5e-6, 1e-7)  # nearly right
    told = []
    for _ in range(count):
        machine.now += luck.expovariate(1 / 3)
        one, stalls = play(machine, luck, costs, stalls)
        told.append(one)
    return told


MACHINES = {
    "quiet": Machine(),
    "stalls": Machine(stall=0.02),
    "drifts": Machine(drift=0.3),
    "steps": Machine(step=2.0, stall=0.01),
    "noisy": Machine(spread=0.15, stall=0.02),
    "busy": Machine(spread=0.3, stall=0.05, step=2.0),
    "all": Machine(spread=0.1, stall=0.02, step=2.0, drift=0.3),
    "skewed": Machine(spread=0.1, stall=0.02, step=2.0, skew=1.3),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_claimed_interval_holds_the_truth(name: str) -> None:
    told = [one for one in answers(MACHINES[name]) if one.made is not None]
    claimed = [(one, one.made) for one in told if one.made is not None and one.made.sure]
    assert len(told) >= 0.9 * ANSWERS and len(claimed) >= (0.15 if name == "skewed" else 0.2) * ANSWERS
    for some in (claimed, [(one, one.made) for one in told if one.made is not None]):
        held = [abs(made.value - one.true) <= SURE * made.error for one, made in some]
        assert sum(held) >= 0.9 * len(held), f"{sum(held)} of {len(held)}"
    widest = {"busy": 0.2, "quiet": 0.06}.get(name, 0.15)
    assert median(made.error / made.value for _, made in claimed) < widest


@pytest.mark.parametrize("name", ["quiet", "stalls", "drifts"])
def test_clear_gains_of_answers_that_are_not_short_have_a_figure(name: str) -> None:
    clear = [one for one in answers(MACHINES[name], 50, seed=1) if one.tokens >= 150 and one.true >= 1.3]
    shown = sum(one.made is not None and one.made.sure for one in clear)
    assert len(clear) > 12 and shown >= 0.8 * len(clear)


@pytest.mark.parametrize("name", MACHINES)
def test_plain_passes_for_the_meter_cost_little(name: str) -> None:
    costs = [one.cost for one in answers(MACHINES[name], 25, seed=2)]
    assert max(costs) <= 0.03 and sum(costs) <= 0.025 * len(costs)


def test_nothing_is_said_of_answers_without_drafts_or_without_plain_passes() -> None:
    costs = Costs()
    costs.calibrate(1, 1.0)
    alone, drafted = PlainMeter(costs), PlainMeter(costs)
    assert alone.estimate() is None and alone.seconds_per_token(8) == 0
    for at in range(50):
        alone.add(MeteredRound(1, 1, 1.0, 1.1, at))
        drafted.add(MeteredRound(3, 4, 1.0, 1.1, at))
    assert alone.estimate() is None and drafted.estimate() is None


def test_a_silent_round_whose_pass_was_begun_counts_as_drafted() -> None:
    """Its layers ran in two parts; of plain decoding the whole passes alone tell."""
    costs = Costs()
    for rows in (1, 4):
        costs.calibrate(rows, 1.0)
    meters = PlainMeter(costs), PlainMeter(costs)
    for begun, meter in zip((False, True), meters, strict=True):
        for at in range(160):
            rows = 1 if at % 4 == 0 else 4
            quick = begun and at % 8 == 0
            meter.add(MeteredRound(rows, rows, 0.5 if quick else 1.0, 1.0, at, quick))
    want, got = (meter.estimate() for meter in meters)
    assert want is not None and got is not None and (want.n, got.n) == (40, 20)
    assert got.value == pytest.approx(want.value, rel=0.1)


def test_what_ran_long_ago_does_not_count() -> None:
    """Plain passes at another load say nothing of the drafted rounds that run now."""
    luck, costs = random.Random(0), Costs()
    for rows in (1, 4):
        costs.calibrate(rows, 1.0)
    meter = PlainMeter(costs)
    for at in range(160):
        level, rows = (1.0 if at < 80 else 3.0), (1 if at % 8 == 0 else 4)
        own = level * luck.lognormvariate(0, 0.03)
        meter.add(MeteredRound(1 if rows == 1 else 2, rows, own, own, at))
    made = meter.estimate()
    assert made is not None and made.value == pytest.approx(1 + 7 / 8, rel=0.03) and made.error < 0.4 and made.sure


@pytest.mark.parametrize(("seconds", "sure"), [(1.05, False), (1.3, True), (0.7, True), (0.97, False)])
def test_a_figure_is_told_only_where_its_interval_leaves_out_1(seconds: float, sure: bool) -> None:
    assert (PlainTime(seconds, 0.1, LEAST).speedup(1.0) is not None) == sure
    assert PlainTime(seconds, 0.1, LEAST).speedup(0.0) is None
