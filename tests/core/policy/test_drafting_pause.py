"""When asking drafters costs more than it brings, nobody is asked for a while."""

import random

import pytest
from toys import tree

from outrider.core.policy.decisions import Candidate, Outcome, UpcomingRound
from outrider.core.policy.drafting_pause import KNOWN, LOOK, NAP, STALE, DraftingPause
from outrider.core.policy.policy import ALONE, Policy

PLAIN = 0.010


def rested(tokens: float, seconds: float, rounds: int = 200) -> int:
    """Rounds of rest among so many, where a round in which drafters are asked gives `tokens` in `seconds`."""
    one, naps = DraftingPause(), 0
    for _ in range(KNOWN):
        one.alone(PLAIN)
    for _ in range(rounds):
        if one.begins():
            naps += 1
            one.alone(PLAIN)
        else:
            one.asked(int(tokens), seconds)
    return naps


def test_a_loss_is_rested_from() -> None:
    assert rested(1, 1.08 * PLAIN) == sum(1 for at in range(200) if at % (LOOK + NAP) >= LOOK)


def test_a_gain_is_not() -> None:
    assert rested(2, 1.5 * PLAIN) == 0


def test_noise_is_not() -> None:
    assert rested(1, 1.01 * PLAIN) == 0


def test_nor_is_the_noise_of_a_machine() -> None:
    """Plain passes scatter too, so that their mean of late is off by a part of that."""
    luck, one, naps = random.Random(0), DraftingPause(), 0
    for at in range(4000):
        if at % 16 == 0:
            one.alone(PLAIN * luck.lognormvariate(0, 0.08))
        elif one.begins():
            naps += 1
            one.alone(PLAIN * luck.lognormvariate(0, 0.08))
        else:
            one.asked(1, PLAIN * luck.lognormvariate(0, 0.08))
        if at % 200 == 0:
            one.wake()
    assert naps < 0.25 * 4000


@pytest.mark.parametrize("rounds", [STALE + 1, 4 * STALE])
def test_plain_passes_of_a_quieter_time_park_nobody(rounds: int) -> None:
    """All has become twice as slow since the last plain pass: that says nothing of drafting."""
    one = DraftingPause()
    for _ in range(50):
        one.alone(PLAIN)
    for _ in range(rounds):
        one.asked(1, 1.01 * PLAIN)
    for _ in range(rounds):
        one.asked(2, 2.5 * PLAIN)  # worth 4 of 2.5 now
        assert not one.begins()


def test_nothing_is_said_before_plain_passes_are_known() -> None:
    one = DraftingPause()
    for _ in range(10 * LOOK):
        one.asked(1, 9.0)
        assert not one.begins()


def test_another_text_wakes() -> None:
    one = DraftingPause()
    for _ in range(KNOWN):
        one.alone(PLAIN)
    for _ in range(LOOK):
        one.asked(1, 2 * PLAIN)
    assert one.begins()
    assert one.left == NAP - 1
    one.wake()
    assert not one.begins()


def losing(policy: Policy, phase: str, rounds: int, *, park: bool = True) -> list[str]:
    """What a policy chose while a silent drafter made every round a tenth longer."""
    chosen = []
    for _ in range(rounds):
        now = UpcomingRound(phase, 100, park=park)
        choice = policy.choose(now, lambda: (Candidate("suffix", 4, tree(range(4))),))
        chosen.append(choice.what)
        drafted, asked = choice.tokens, choice.what not in ALONE
        policy.learn(Outcome("suffix" if drafted else "none", drafted, 0, 0.001 * asked, PLAIN))
    return chosen


def test_a_policy_rests_and_looks_again() -> None:
    policy = Policy()
    policy.calibrate(1, PLAIN)
    policy.calibrate(8, 2 * PLAIN)
    for _ in range(KNOWN):
        policy.choose(UpcomingRound(), None)
        policy.learn(Outcome("none", 0, 0, 0.0, PLAIN))
    chosen = losing(policy, "prose", 200)
    assert chosen.count("rest") > 100
    assert chosen[-2 * (NAP + LOOK) :].count("rest") < 2 * NAP + LOOK, "it never looks again"
    assert "rest" not in losing(policy, "code", LOOK), "another phase wakes it"
    assert losing(policy, "code", LOOK)[-1] == "rest"
    policy.answered(100)
    assert "rest" not in losing(policy, "code", LOOK), "another answer wakes it"


def test_who_was_named_does_not_rest() -> None:
    policy = Policy()
    policy.calibrate(1, PLAIN)
    for _ in range(KNOWN):
        policy.choose(UpcomingRound(), None)
        policy.learn(Outcome("none", 0, 0, 0.0, PLAIN))
    assert "rest" not in losing(policy, "prose", 200, park=False)
