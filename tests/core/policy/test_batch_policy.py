"""The draft length of a round of many answers, against passes and drafters of known cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from toys import tree

from outrider.core.policy.batch_policy import FIRST, PROBE_FIRST, TRIED, BatchPolicy, width
from outrider.core.policy.decisions import Outcome, Share, SharedRound
from outrider.core.policy.policy import Policy

Cost = Callable[[int], float]


def free(rows: int) -> float:
    """A pass that is bound by reading weights, whatever its rows."""
    return 0.020


def dear(rows: int) -> float:
    """A pass that is bound by its rows."""
    return 0.001 * rows


def bent(rows: int) -> float:
    """Free up to 16 rows, dear from there on."""
    return 0.020 if rows <= 16 else 0.020 * rows / 16


def made(passes: dict[int, float]) -> tuple[Policy, BatchPolicy]:
    """A policy that knows what these passes cost, and what chooses by it."""
    policy = Policy()
    for rows, seconds in passes.items():
        policy.calibrate(rows, seconds)
    return policy, BatchPolicy(policy)


def share(asked: int, right: int, drafting: float = 0.0, sure: tuple[float, ...] | None = None) -> Share:
    """One answer's, with a draft of `asked` tokens."""
    return Share("prose", asked, Outcome("toy", asked, min(asked, right), drafting, 0.0, confidence=sure))


def lengths(
    cost: Cost,
    answers: int,
    right: int,
    rounds: int = 120,
    drafting: float = 0.0,
    both: tuple[Policy, BatchPolicy] | None = None,
) -> list[int]:
    """The lengths of that many rounds, with a drafter whose first `right` tokens are always accepted, and no further one."""
    (policy, pace), found = both or made({1: cost(1), 8: cost(8), 17: cost(17)}), []
    for _ in range(rounds):
        asked = pace.length([("toy", 16)] * answers)
        found.append(asked)
        rows = answers * (1 + asked)
        policy.learn(SharedRound(rows, cost(width(rows)), [share(asked, right, drafting)] * (answers if asked else 0)))
    return found


def test_nothing_is_drafted_where_nobody_drafts() -> None:
    assert made({1: 0.02})[1].length([("", 0), ("", 0)]) == 0


def test_the_first_drafts_are_short() -> None:
    assert lengths(free, 1, 16, rounds=TRIED) == [FIRST] * TRIED


def test_long_where_rows_are_free_and_drafts_are_right() -> None:
    assert lengths(free, 4, 16)[-20:] == [16] * 20


@pytest.mark.parametrize("answers", [1, 4])
def test_about_as_long_as_drafts_are_right(answers: int) -> None:
    """Tokens that are never accepted cost rows."""
    found = lengths(lambda rows: 0.020 + 0.0005 * rows, answers, 3)
    assert set(found[-40:]) == {3}


def test_none_where_rows_cost_as_much_as_tokens_bring() -> None:
    """Wrong drafts: a try now and then, ever rarer."""
    found = lengths(dear, 16, 0, rounds=400)
    tries = [at for at, length in enumerate(found) if length]
    assert tries[0] < TRIED and len(tries) < 20
    late = [later - sooner for sooner, later in pairwise(tries) if sooner > 40]
    assert late[0] > PROBE_FIRST and late == sorted(late)


def test_shorter_with_more_answers() -> None:
    """As long as rows are free, all that helps; with more answers the same rows are shared."""
    found = [lengths(bent, answers, 16)[-1] for answers in (1, 4, 16)]
    assert found[0] >= 12 and 2 <= found[1] <= 16
    assert sorted(found, reverse=True) == found


def test_none_where_drafting_takes_longer_than_it_saves() -> None:
    assert sum(lengths(free, 2, 1, drafting=0.050)[-60:]) < 60


def test_it_comes_back_when_drafts_are_right_again() -> None:
    both = made({1: 0.02, 17: 0.02 + 0.0005 * 16})
    cost: Cost = lambda rows: 0.020 + 0.0005 * rows  # noqa: E731
    assert lengths(cost, 4, 0, rounds=200, both=both)[-1] == 0
    assert lengths(cost, 4, 16, rounds=600, both=both)[-1] >= 8


def test_the_next_batch_knows_what_this_one_and_single_answers_have_taught() -> None:
    policy, _ = made({1: 0.02, 17: 0.02})
    assert lengths(free, 4, 16, both=(policy, BatchPolicy(policy)))[-1] == 16
    assert lengths(free, 4, 16, rounds=1, both=(policy, BatchPolicy(policy))) == [16]
    assert policy.arm("toy").acceptance.rates("prose", 1)[0] > 0.9
    for _ in range(20):
        policy.learn(Outcome("other", 4, 4, 0.0, 0.02))
    assert BatchPolicy(policy).length([("other", 16)]) > FIRST


def test_what_a_batch_took_says_nothing_of_single_answers() -> None:
    policy, _ = both = made({1: 0.02, 17: 0.02})
    lengths(lambda rows: 0.5, 4, 2, drafting=0.3, both=both)
    assert policy.costs.of(1) == policy.costs.of(17) == 0.02 and policy.costs.drafting("toy").n == 0


def judged(policy: Policy, right: int, sure: tuple[float, ...], times: int = 60) -> None:
    for _ in range(times):
        policy.learn(SharedRound(1, policy.costs.of(1), [share(len(sure), right, sure=sure)]))


def test_of_free_drafts_the_likeliest_tokens_are_verified() -> None:
    """One answer copies, the other does not: the rows go to the first."""
    policy, pace = made({1: 0.020, 17: 0.020 + 0.002 * 16})
    for _ in range(60):
        judged(policy, 4, (0.95,) * 4, 1)
        judged(policy, 0, (0.1,) * 4, 1)
    copied, new = tree([1] * 4, confidence=[0.95] * 4), tree([2] * 4, confidence=[0.1] * 4)
    assert pace.kept(2, [("toy", copied), ("toy", new)]) == [4, 0]
    assert pace.kept(2, [("toy", new), ("toy", copied)]) == [0, 4]


def test_free_drafts_are_whole_where_rows_are_free() -> None:
    _, pace = made({1: 0.02, 17: 0.02})
    assert pace.kept(2, [("toy", tree([1] * 8)), ("toy", tree([]))]) == [8, 0]


def test_of_a_tree_every_node_has_the_chance_of_its_branch() -> None:
    policy, pace = made({1: 0.020, 17: 0.020 + 0.004 * 16})
    judged(policy, 1, (0.9, 0.2))
    chances = pace._chances("toy", tree([1, 2, 3], [-1, -1, 0]))
    assert chances[0] == chances[1] > chances[2]


def test_free_drafts_that_do_not_pay_are_tried_ever_more_rarely() -> None:
    policy, pace = made({1: 0.001, 17: 0.017})
    judged(policy, 0, (0.5,) * 4)
    tries = [at for at in range(400) if pace.kept(8, [("toy", tree([1] * 8, confidence=[0.5] * 8))])[0]]
    late = [later - sooner for sooner, later in pairwise(tries)]
    assert tries[0] == PROBE_FIRST - 1 and late == sorted(late) and len(tries) < 8


def test_widths_grow() -> None:
    assert [width(rows) for rows in (1, 5, 16, 17, 49, 65, 300)] == [1, 6, 16, 24, 64, 128, 320]
