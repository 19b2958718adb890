"""Counts that are copied, carried into a later session and left behind by a sudden turn; what a plain rate is worth."""

from __future__ import annotations

import random

import pytest

from outrider.core.policy.acceptance import ALL, LEFT, MOST, Acceptance
from outrider.core.policy.confidence import LEVELS, Calibrated


def taught(made: Acceptance, *rounds: tuple[int, int]) -> Acceptance:
    for offered, accepted in rounds:
        made.learn("prose", offered, accepted)
    return made


def test_after_a_turn_little_is_left_of_any_depth() -> None:
    made = taught(Acceptance(), *[(4, 4)] * 100)
    assert made.dump()[ALL][3][1] > 40
    rates = made.rates(ALL, 4)[:4]
    for _ in range(8):
        taught(made, (4, 0))
        now = made.rates(ALL, 4)[:4]
        assert now[0] < rates[0] <= 1.0
        rates = now
    (_, first), *deeper = made.dump()[ALL]
    assert first < 2 * LEFT + 4 and all(trials == pytest.approx(LEFT) for _, trials in deeper)
    assert rates == sorted(rates), "deeper ones were right when they were last reached"


def test_counts_of_earlier_sessions_are_added_up_to_the_most() -> None:
    made = Acceptance()
    made.remember({ALL: [(0.9, MOST), (0.8, 20.0)]})
    assert made.trials == MOST and made.dump()[ALL] == [(0.9, MOST), (0.8, 20.0)]
    taught(made, (2, 2))
    assert [trials for _, trials in made.dump()[ALL]] == [MOST, 21.0]
    later = Acceptance()
    later.remember(made.dump())
    assert later.dump() == made.dump()
    later.remember({ALL: [(0.5, MOST + 1)], "code": [(1.1, 5.0)]})
    assert later.dump() == made.dump(), "these are no counts"


def test_a_copy_goes_on_as_the_original_would_and_apart_from_it() -> None:
    luck = random.Random(3)
    for cut in (5, 12, 30, 60):
        made = taught(Acceptance(), *[(4, luck.choice((0, 3, 4, 4))) for _ in range(cut)])
        made.remember({"code": [(0.5, 10.0)]})
        before, other = made.dump(), made.copy()
        later = [(4, luck.choice((0, 0, 0, 1))) for _ in range(20)]
        taught(other, *later)
        assert made.dump() == before and other.rounds == made.rounds + 20
        assert taught(made, *later).dump() == other.dump()


def test_untaught_a_confidence_is_the_plain_rate_at_every_depth() -> None:
    fresh = Calibrated()
    assert fresh.state == [*[0.0] * (LEVELS + 1), 1.0, 1.0]
    for depth in range(2 * LEVELS):
        for confidence in (0.01, 0.5, 0.99):
            assert fresh.believe(depth, confidence, 0.3) == pytest.approx(0.3)


def test_it_learns_that_a_plain_rate_says_too_little() -> None:
    """Of 0.2 and 0.8 the truth is 0.06 and 0.94, twice the log-odds; the confidence is always the same."""
    luck, model = random.Random(2), Calibrated()
    for _ in range(1500):
        base, true = luck.choice(((0.2, 1 / 17), (0.8, 16 / 17)))
        model.learn(0, 0.5, base, luck.random() < true)
    assert 1.5 < model.state[LEVELS + 1] < 2.5
    assert model.state[1:LEVELS] == [0.0] * (LEVELS - 1), "deeper ones were never seen"
    assert model.believe(0, 0.5, 0.8) > 0.88 and model.believe(0, 0.5, 0.2) < 0.12


def test_a_copy_of_corrections_is_apart_from_them() -> None:
    model = Calibrated()
    model.learn(0, 0.9, 0.5, False)
    other, before = model.copy(), model.state
    other.learn(1, 0.9, 0.5, False)
    assert model.state == before != other.state
