"""What a policy says of the rounds to come, and what it learns of positions, of records and of rounds of several answers."""

from __future__ import annotations

import pytest

from outrider.core.policy.acceptance import DrafterRecord
from outrider.core.policy.costs import Costs
from outrider.core.policy.decisions import NONE, Candidate, Outcome, Share, SharedRound, UpcomingRound
from outrider.core.policy.drafting_pause import CALM
from outrider.core.policy.policy import OFFERED, PROBE_FIRST, Policy


def machine(per_row: float) -> Policy:
    """A plain pass takes a second."""
    made = Policy()
    for rows in (1, 2, 4, 8, 17, 33):
        made.calibrate(rows, 1.0 + per_row * (rows - 1))
    return made


def play(policy: Policy, right: bool, per_row: float, now: UpcomingRound | None = None) -> str:
    """A round of a lone drafter that is always right or always wrong; what it was."""
    choice = policy.choose(now or UpcomingRound(), lambda: (Candidate("d", 8),))
    drafted = choice.tokens
    policy.learn(Outcome("d" if drafted else NONE, drafted, drafted * right, 0.0, 1.0 + per_row * drafted))
    return choice.what


def test_who_rides_goes_on() -> None:
    policy = machine(0.02)
    assert Policy().next_round(0) is None, "what a pass costs is not known"
    for _ in range(60):
        known, probing = policy.next_round(0), policy.chosen.what == "probe"
        what = play(policy, True, 0.02)
        if known is not None and not probing:
            assert what in ("ride", "probe", "meter") and (policy.chosen.tokens > 0) == (known[1] > 0)
    known = policy.next_round(0)
    assert known is not None and known[0] == "d" and known[1] >= policy.chosen.tokens > 0


def test_a_pinned_length_is_known_beforehand() -> None:
    policy = machine(5.0)
    play(policy, False, 5.0, UpcomingRound(pinned=3))
    assert policy.next_round(0) == ("d", 3)


def test_plain_rounds_are_expected_after_some_and_no_probe_comes_unforeseen() -> None:
    policy, plain, waited, probes, waits = machine(0.5), 0, None, 0, set[int | None]()
    for _ in range(6 * PROBE_FIRST):
        expected = policy.next_round(0)
        what = play(policy, False, 0.5)
        if what == "probe":
            probes += 1
            assert expected is None and waited in (None, 1)
        elif expected is not None and expected[1] == 0:
            assert what != "ride" and plain + 1 >= CALM
        plain = 0 if policy.chosen.tokens else plain + 1
        waited = policy.wait if what == "parked" else None
        waits.add(waited)
    assert {1, 2, PROBE_FIRST - 1} <= waits, "it tells how long it waits"
    assert probes >= 2 and policy.next_round(0) is not None


def test_only_positions_that_were_reached_teach_what_a_confidence_means() -> None:
    sure = (0.9, 0.8, 0.7, 0.6)
    for accepted, kept, want in ((0, None, 1), (1, None, 2), (4, None, 4), (3, 1, 1), (1, 4, 2)):
        policy = machine(0.1)
        policy.learn(Outcome("d", 4, accepted, 0.0, 1.4, kept=kept, confidence=sure))
        assert policy.arm("d").confident == want


@pytest.mark.parametrize(("offered", "want"), [(0.0, OFFERED), (0.5, 0.5), (7.0, 1.0)])
def test_a_record_says_no_more_than_can_be(offered: float, want: float) -> None:
    policy = Policy()
    policy.remember("d", DrafterRecord(0.0, {}, confident=-4, offered=offered))
    assert (policy.arm("d").offered, policy.arm("d").confident) == (want, 0)


def test_a_round_of_several_answers() -> None:
    policy = machine(0.1)
    policy.batch_costs = Costs()
    shares = [
        Share("prose", 4, Outcome("d", 2, 1, 0.5, 0.0)),
        Share("code", 4, Outcome("silent", 0, 0, 0.25, 0.0)),
    ]
    for _ in range(3):
        policy.learn(SharedRound(9, 2.5, shares))
    assert policy.batch_costs.of(9) == pytest.approx(2.5)
    assert policy.batch_costs.drafting("d").of(2) == pytest.approx(0.5)
    assert policy.batch_costs.drafting("silent").of(0) == pytest.approx(0.25)
    assert policy.costs.drafting("d").n == 0, "it says nothing of single answers"
    one, silent = policy.arm("d"), policy.arm("silent")
    assert (one.acceptance.rounds, silent.acceptance.rounds, one.offered) == (3, 0, 1.0)
    assert silent.offered == pytest.approx((1 - OFFERED) ** 3)
    assert one.filled == pytest.approx(0.5 + 0.5 * (1 - OFFERED) ** 3), "half of what was asked for"
