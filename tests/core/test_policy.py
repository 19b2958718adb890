"""The policy on made-up costs: it drafts where that pays, parks where it loses, and looks again."""

from __future__ import annotations

import random

import pytest

from outrider.core.policy import LADDER, Plain, Policy


def simulate(
    rate: float, per_row: float, rounds: int = 600, draft_s: float = 0.0, seed: int = 0
) -> tuple[float, Policy]:
    """Tokens per second over those of plain decoding; a pass costs 1 + per_row * draft tokens."""
    policy, luck = Policy(), random.Random(seed)
    for rows in (1, 2, 4, 8, 17):
        policy.calibrate(rows, 1.0 + per_row * (rows - 1))
    tokens = seconds = 0.0
    for _ in range(rounds):
        k = policy.budget(("d",), LADDER[-1])
        accepted = 0
        while accepted < k and luck.random() < rate:
            accepted += 1
        cost = 1.0 + per_row * k
        policy.learn("d", k, k, accepted, (draft_s * k, cost))
        tokens += accepted + 1
        seconds += cost + draft_s * k
    return tokens / seconds, policy


@pytest.mark.parametrize("seed", range(3))
def test_flat_passes_and_good_guesses_pay(seed: int) -> None:
    assert simulate(0.8, 0.01, seed=seed)[0] > 3.0


@pytest.mark.parametrize("seed", range(3))
def test_a_losing_drafter_is_parked(seed: int) -> None:
    assert simulate(0.1, 0.5, seed=seed)[0] > 0.93


@pytest.mark.parametrize("seed", range(3))
def test_costly_rows_want_short_drafts(seed: int) -> None:
    _, policy = simulate(0.6, 0.2, seed=seed)
    lengths = [policy.budget(("d",), 16) for _ in range(5)]
    assert 1 <= max(lengths) <= 4


def test_a_pinned_length_is_taken_as_it_is() -> None:
    policy = Policy()
    assert policy.budget(("d",), 8) == 0  # what a plain pass costs must be known first
    assert [policy.budget(("d",), most, pinned=5) for most in (8, 3, 0)] == [5, 3, 0]


def test_plain_passes_are_interleaved_and_few() -> None:
    _, policy = simulate(0.9, 0.0, rounds=1000)
    assert 8 <= policy.plain.n <= 14


def test_parked_without_permission_rides_on() -> None:
    _, policy = simulate(0.05, 1.0)
    assert all(policy.budget(("d",), 8, park=False) >= 1 for _ in range(3))


def test_speedup_needs_eight_passes_and_tells_its_error() -> None:
    plain = Plain()
    for x in (1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.0):
        plain.add(x)
    assert plain.speedup(0.5) is None
    plain.add(1.0)
    measured = plain.speedup(0.5)
    assert measured is not None
    assert measured.value == pytest.approx(2.0)
    assert 0 < measured.error < 0.2
    assert measured.n == 8
