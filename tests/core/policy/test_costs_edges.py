"""Costs before anything is measured, by a guess, behind a context and of drafters that are silent; when a plain pass is due."""

from __future__ import annotations

import math

import pytest

from outrider.core.policy.costs import Costs, Drafting
from outrider.core.policy.metering import LEAST, LITTLE, MOVED, SHARE, MeterSchedule


def test_before_anything_is_measured_all_passes_cost_the_same() -> None:
    costs = Costs()
    assert (costs.of(1), costs.of(9), costs.known, costs.slopes) == (1.0, 1.0, False, (0.0, 0.0))


def test_context_costs_each_row_what_was_measured() -> None:
    costs = Costs()
    costs.calibrate(1, 1.0)
    costs.calibrate(5, 1.2)
    costs.lean(100, 1.5, (5, 2.6))
    assert costs.slopes == pytest.approx((0.005, 0.00225))
    assert (costs.of(1, 100), costs.of(5, 100), costs.of(1, 200)) == pytest.approx((1.5, 2.6, 2.0))
    costs.lean(100, 0.9, (5, 0.9))
    assert costs.slopes == (0.0, 0.0), "a context never makes a pass cheaper"
    costs.lean_by(-1.0, 0.5)
    assert costs.slopes == (0.0, 0.5)


def test_a_guess_of_drafting_gives_way_to_the_first_sample() -> None:
    drafting = Drafting()
    drafting.expect(10.0)
    assert drafting.of(1) == pytest.approx(10.0) and drafting.of(3) == pytest.approx(30.0)
    drafting.saw(1, 1.0)
    assert drafting.of(1) < 4.0
    drafting.expect(10.0)
    assert drafting.of(1) < 4.0, "a guess is no longer wanted"


def test_asking_a_silent_drafter_costs_what_it_takes() -> None:
    drafting = Drafting()
    drafting.saw(0, 2.0)
    drafting.saw(0, 2.0)
    assert drafting.line() == pytest.approx((2.0, 0.0))
    assert Drafting().line() == (0.0, 0.0)


def test_catching_up_is_told_for_each_token() -> None:
    drafting = Drafting()
    drafting.caught_up(2, 1.0)
    assert drafting.behind == 0.5
    drafting.caught_up(1, 1.5)
    assert 0.5 < drafting.behind < 1.0
    for _ in range(40):
        drafting.caught_up(2, 3.0)
    assert drafting.behind == pytest.approx(1.5, rel=1e-3)


def test_only_what_was_measured_is_kept_and_only_numbers_are_believed() -> None:
    costs = Costs()
    costs.drafting("guessed").expect(1.0)
    costs.drafting("measured").saw(2, 1.0)
    kept = costs.dump()
    assert list(kept) == ["measured"]
    for wrong in (math.inf, math.nan, -1.0):
        for place in range(len(kept["measured"])):
            numbers = list(kept["measured"])
            numbers[place] = wrong
            costs.remember("wrong", numbers)
    costs.remember("wrong", kept["measured"][:-1])
    assert costs.drafting("wrong").n == 0 and costs.drafting("wrong").of(3) == 0.0
    costs.remember("right", [100.0, *kept["measured"][1:]])
    assert costs.drafting("right").n > 0


def test_a_drafter_of_few_drafts_is_compared_once_the_context_has_grown() -> None:
    meter = MeterSchedule()
    assert not meter.due(0.0, 10)
    for _ in range(4):
        meter.drafted("d", 1.0)
    assert not meter.due(0.0, 10 + MOVED - 1)
    assert meter.due(0.0, 10 + MOVED)
    assert not meter.due(1.001 * SHARE * 4.0, 10 + MOVED), "it costs too much"
    meter.plain(1.0, 10 + MOVED)
    assert not meter.due(0.0, 10 + 3 * MOVED), "it has one"


def test_all_that_were_due_are_followed_by_one_for_each_move_of_the_context_where_that_costs_little() -> None:
    meter = MeterSchedule()
    assert not meter.due(0.0, 0)
    for _ in range(60):
        meter.drafted("d", 1.0)
    for _ in range(LEAST):
        assert meter.due(0.0, 5)
        meter.plain(1.0, 5)
    assert not meter.due(0.0, 5 + MOVED - 1) and meter.due(0.0, 5 + MOVED)
    spent = 60.0 + LEAST
    assert meter.due(0.999 * LITTLE * spent, 5 + MOVED) and not meter.due(1.001 * LITTLE * spent, 5 + MOVED)
