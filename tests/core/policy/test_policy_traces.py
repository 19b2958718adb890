"""The policy against plain decoding, every fixed choice and what could have been, on recorded texts and on nasty ones.

A recording says what the free drafters would have offered at each token of answers that the starter gave to the bundled prompts;
made-up texts have a drafter with costs of its own. Nothing here measures time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import riding
from riding import MACHINES, Machine, Player, Trace, steady

DATA = Path(__file__).parents[2] / "data" / "traces"
RECORDED = sorted(DATA.glob("*.gz"))
LENGTH = 600
STARTER = MACHINES["starter"].passes
FAST = Machine(STARTER, {"d": (0.0002, 0.0001)})
OTHERS = {
    "fast": FAST,
    "usual": Machine(STARTER, {"d": (0.001, 0.002)}),
    "slow": Machine(STARTER, {"d": (0.03, 0.005)}),
    "block": Machine(STARTER, {"d": (0.003, 0.0)}, block=True),
    "steep": Machine(MACHINES["steep"].passes, {"d": (0.001, 0.001)}),
    "flat": Machine(MACHINES["flat"].passes, {"d": (0.0005, 0.0004)}),
}
NASTY: dict[str, Callable[[int], float]] = {
    "never right": lambda place: 0.0,
    "seldom right": lambda place: 0.2,
    "half right": lambda place: 0.5,
    "collapses": lambda place: 0.9 if place < LENGTH // 2 else 0.05,
    "rises": lambda place: 0.05 if place < LENGTH // 2 else 0.9,
    "flips every 20": lambda place: 0.95 if place // 20 % 2 else 0.05,
    "flips every 60": lambda place: 0.95 if place // 60 % 2 else 0.05,
}


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def traces(request: pytest.FixtureRequest) -> list[Trace]:
    return riding.load(request.param)


def over_plain(player: Player, trace: Trace) -> float:
    return player.play(trace).rate / riding.plain(trace, player.machine, player.level).rate


# ---------------------------------------------------------------------------------------------------- recorded


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_recorded_answers_in_a_row(traces: list[Trace], machine: Machine) -> None:
    player = Player(machine)
    plays = [player.play(trace) for trace in traces]
    assert riding.rate(plays) >= 0.95 * riding.best_fixed(traces, machine)[0]
    for trace, done in zip(traces, plays, strict=True):
        assert done.rate >= 0.97 * riding.plain(trace, machine).rate, trace.name


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_each_recorded_answer_as_the_first(traces: list[Trace], machine: Machine) -> None:
    for trace in traces:
        assert over_plain(Player(machine, seed=1), trace) >= 0.97, trace.name


def test_a_drafter_with_costs_beside_the_free_ones(traces: list[Trace]) -> None:
    """One that is right more often in prose, for a price, and one that is worth nothing."""
    machine = Machine(STARTER, {"good": (0.001, 0.0008), "bad": (0.004, 0.004)}, ask=3e-5)
    luck = random.Random(0)
    told = []
    for trace in traces:
        right = [luck.random() < 0.75 for _ in range(trace.length + 32)]
        good = [riding.Offered(32, _run(right, place)) for place in range(trace.length)]
        bad = [riding.Offered(32, 0)] * trace.length
        told.append(Trace(trace.name, trace.phases, {**trace.offers, "good": good, "bad": bad}))
    player = Player(machine)
    plays = [player.play(trace) for trace in told]
    assert riding.rate(plays) >= 0.97 * riding.best_fixed(told, machine)[0]
    ridden = {choice.name for done in plays for choice in done.choices if choice.what == "ride"}
    assert {"good", "suffix"} <= ridden


def _run(right: list[bool], place: int) -> int:
    run = 0
    while run < 32 and right[place + run]:
        run += 1
    return run


# ---------------------------------------------------------------------------------------------------- nasty


@pytest.mark.parametrize("machine", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("chance", NASTY.values(), ids=NASTY)
def test_never_slower_than_plain(chance: Callable[[int], float], machine: Machine) -> None:
    for noise in (riding.even, riding.heavy):
        assert over_plain(Player(machine, noise), steady("d", chance, LENGTH)) >= 0.97


@pytest.mark.parametrize("machine", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("by", [0.5, 2.0])
def test_never_slower_than_plain_where_all_costs_jump(by: float, machine: Machine) -> None:
    player = Player(machine, level=riding.jumping(LENGTH // 3, by))
    assert over_plain(player, steady("d", NASTY["half right"], LENGTH)) >= 0.97


def test_free_offers_that_are_always_wrong_cost_nothing() -> None:
    trace = steady("free", NASTY["never right"], LENGTH)
    assert over_plain(Player(MACHINES["steep"]), trace) >= 0.98


@pytest.mark.parametrize("chance", [0.5, 0.8])
def test_a_steady_drafter_gets_nearly_its_best_length(chance: float) -> None:
    trace = steady("d", lambda place: chance, LENGTH)
    assert Player(FAST).play(trace).rate >= 0.95 * riding.best_fixed([trace], FAST)[0]


# ---------------------------------------------------------------------------------------------------- adapting


def test_a_free_drafter_that_gets_better_is_taken_up_within_30_rounds() -> None:
    half = 300
    trace = steady("free", lambda place: 0.0 if place < half else 0.9, 2 * half)
    done, place, waited = Player(MACHINES["starter"]).play(trace), 0, 0
    for choice, tokens in zip(done.choices, done.steps, strict=True):
        if place >= half:
            if choice.tokens >= 4:
                break
            waited += 1
        place += tokens
    assert waited <= 30


@pytest.mark.parametrize(
    "machine", [OTHERS["usual"], OTHERS["block"], MACHINES["steep"]], ids=["usual", "block", "free"]
)
def test_a_drafter_that_gets_worse_is_parked_within_30_rounds(machine: Machine) -> None:
    half = 300
    trace = steady("d", lambda place: 0.9 if place < half else 0.0, 2 * half)
    done, place, ridden = Player(machine).play(trace), 0, 0
    for choice, tokens in zip(done.choices, done.steps, strict=True):
        if place >= half and choice.what == "ride":
            ridden += 1
        place += tokens
    assert ridden <= 30


def test_another_best_drafter_is_found_within_30_rounds() -> None:
    half = 300
    first = steady("a", lambda place: 0.9 if place < half else 0.1, 2 * half)
    second = steady("b", lambda place: 0.1 if place < half else 0.9, 2 * half, seed=1)
    trace = Trace("swap", first.phases, {**first.offers, **second.offers})
    done, place, behind = Player(MACHINES["starter"]).play(trace), 0, []
    for choice, tokens in zip(done.choices, done.steps, strict=True):
        if place >= half:
            behind.append(choice.name if choice.tokens else "")
        place += tokens
    assert behind[:30].count("b") >= 5
    assert behind[30:].count("b") >= 0.7 * len(behind[30:])
