"""Calibrated confidence: it learns what a drafter's confidence is worth, and gives way to the plain rate if that is nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from outrider.core.policy.confidence import CHECKED, LEVELS, Calibrated

BASE = 0.6


def taught(chance: Callable[[float], float], n: int = 4 * CHECKED, seed: int = 1) -> tuple[Calibrated, list[float]]:
    """After `n` positions that were accepted by `chance(log-odds of the confidence)`, and Brier scores of the last 1000:
    believed, plain, and the best that there could be."""
    luck, model, sums = random.Random(seed), Calibrated(), [0.0] * 3
    for position in range(n):
        odds = luck.gauss(0.5, 2)
        confidence, true = 1 / (1 + math.exp(-odds)), chance(odds)
        accepted, depth = luck.random() < true, position % 3
        if position >= n - 1000:
            told = (model.believe(depth, confidence, BASE), BASE, true)
            sums = [total + (accepted - said) ** 2 / 1000 for total, said in zip(sums, told, strict=True)]
        model.learn(depth, confidence, BASE, accepted)
    return model, sums


def logistic(offset: float, slope: float) -> Callable[[float], float]:
    return lambda odds: 1 / (1 + math.exp(-(offset + slope * odds)))


def test_untaught_it_is_the_plain_rate() -> None:
    assert Calibrated().believe(2, 0.99, 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(("offset", "slope"), [(0.0, 1.0), (-1.5, 0.5), (1.0, 0.3)])
def test_it_finds_what_a_confidence_means(offset: float, slope: float) -> None:
    model, (own, plain, best) = taught(logistic(offset, slope))
    assert own < best + 0.02 < plain
    assert model.believe(0, 0.95, BASE) > model.believe(0, 0.4, BASE) + 0.1


def test_a_drafter_that_is_surest_where_it_is_wrong() -> None:
    model, (own, _, best) = taught(logistic(0.5, -1.0))
    assert own < best + 0.02
    assert model.believe(1, 0.99, BASE) < 0.2


def gone_wrong() -> Calibrated:
    """Taught that confidence means much, until it means the opposite: what it says is worse than the plain rate."""
    model, _ = taught(logistic(0.0, 1.0))
    luck = random.Random(2)
    for number in range(CHECKED):
        model.learn(0, (0.05, 0.95)[number % 2], BASE, luck.random() < (0.9, 0.3)[number % 2])
    return model


def test_what_is_worse_than_the_plain_rate_is_not_believed() -> None:
    model = gone_wrong()
    assert model.believe(0, 0.999, BASE) == model.believe(0, 0.001, BASE) == BASE


def test_it_is_believed_again_once_it_says_more() -> None:
    model = gone_wrong()
    luck = random.Random(3)
    for _ in range(3 * CHECKED):
        sure = luck.random() < BASE
        model.learn(0, 0.95 if sure else 0.2, BASE, sure)
    assert model.believe(0, 0.95, BASE) > 0.8 > 0.4 > model.believe(0, 0.2, BASE)


def test_confidence_that_says_nothing_costs_next_to_nothing() -> None:
    _, (own, plain, _) = taught(lambda odds: BASE)
    assert own < plain + 0.003


def test_depths_have_offsets_of_their_own() -> None:
    luck, model = random.Random(3), Calibrated()
    for _ in range(3000):
        for depth, chance in ((0, 0.9), (LEVELS - 1, 0.3), (LEVELS + 3, 0.3)):
            model.learn(depth, 0.7, BASE, luck.random() < chance)
    assert model.believe(0, 0.7, BASE) > 0.75
    assert model.believe(LEVELS - 1, 0.7, BASE) == model.believe(LEVELS + 9, 0.7, BASE) < 0.45


def test_its_state_is_a_list_of_numbers() -> None:
    model, _ = taught(logistic(0.0, 1.0))
    again = Calibrated(model.state)
    assert again.state == model.state
    assert again.believe(1, 0.8, 0.5) == model.believe(1, 0.8, 0.5)
    assert Calibrated(gone_wrong().state).believe(0, 0.999, BASE) == BASE


@pytest.mark.parametrize("state", [[], [1.0], [math.nan] * (LEVELS + 3), [0.0] * 40], ids=str)
def test_a_state_that_is_none_begins_anew(state: list[float]) -> None:
    assert Calibrated(state).state == Calibrated().state


@pytest.mark.parametrize("confidence", [0.0, 1.0])
@pytest.mark.parametrize("base", [0.0, 1.0])
def test_certainty_stays_a_chance(confidence: float, base: float) -> None:
    model = Calibrated()
    for number in range(600):
        model.learn(0, confidence, base, number % 2 == 0)
        assert 0 <= model.believe(0, confidence, base) <= 1
