"""Two drafters as one: whoever's measured rate wins drafts, both hear everything, and one may fail without the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import toys

from outrider.core.answer import Conversation
from outrider.core.composite import Composite
from outrider.core.drafting import Context, Draft, Stateless, Step
from outrider.core.policy import Policy
from outrider.core.registry import GuardedDrafter

PROMPT = [5, 9, 13, 9, 5, 9, 13]
LENGTH = 120


def policy() -> Policy:
    """A machine where rows are nearly free."""
    made = Policy()
    for rows in (1, 2, 4, 8, 17):
        made.calibrate(rows, 0.01 + 0.0001 * rows)
    return made


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return toys.answer(Conversation(toys.target()), PROMPT, limit=LENGTH).token_ids


class Silent(Stateless):
    """Never proposes."""


class Noted(Stateless):
    """Keeps what it is told of its drafts."""

    def __init__(self, inner: Stateless) -> None:
        self.inner, self.shape = inner, inner.shape
        self.proposed = self.named = self.heard = 0

    def propose(self, context: Context) -> Draft | None:
        draft = self.inner.propose(context)  # type: ignore[func-returns-value]
        self.proposed += draft is not None
        return draft

    def advance(self, step: Step) -> None:
        self.named += step.path.shape[0]
        self.heard += step.tokens.shape[0]


def guard(name: str, drafter: Stateless, notes: list[str] | None = None) -> GuardedDrafter:
    return GuardedDrafter(name, drafter, True, (notes if notes is not None else []).append)


def ride(cheap: Stateless, other: Stateless, notes: list[str] | None = None) -> tuple[list[int], Counter[str]]:
    made = policy()
    both = Composite(guard("cheap", cheap, notes), guard("other", other, notes), made)
    report = toys.answer(Conversation(toys.target()), PROMPT, both, limit=LENGTH, policy=made, tokens=None)
    return report.token_ids, Counter(report.drafters)


def test_the_better_one_rides(truth: list[int]) -> None:
    right, wrong = toys.Knows(len(PROMPT), truth), toys.Knows(len(PROMPT), truth, right=0)
    text, passes = ride(right, wrong)
    assert text == truth
    assert passes["cheap"] > 3 * passes["other"]
    text, passes = ride(wrong, right)
    assert text == truth
    assert passes["other"] > 3 * passes["cheap"] > 0  # it had its chance


def test_where_the_cheap_one_is_silent_the_other_drafts(truth: list[int]) -> None:
    text, passes = ride(Silent(), toys.Knows(len(PROMPT), truth))
    assert text == truth
    assert passes["other"] > 0 and "cheap" not in passes


def test_each_is_told_of_its_own_drafts(truth: list[int]) -> None:
    cheap, other = Noted(toys.Anything(seed=1)), Noted(toys.Knows(len(PROMPT), truth))
    text, _ = ride(cheap, other)
    assert text == truth
    assert cheap.proposed and other.proposed
    assert cheap.heard == other.heard > 0
    assert other.named > cheap.named


@pytest.mark.parametrize("who", ["cheap", "other"])
def test_one_may_fail_without_the_other(who: str, truth: list[int]) -> None:
    good, broken = toys.Knows(len(PROMPT), truth), toys.Broken("propose", 2)
    notes: list[str] = []
    text, passes = ride(*((broken, good) if who == "cheap" else (good, broken)), notes)
    assert text == truth
    assert len(notes) <= 1
    assert passes["other" if who == "cheap" else "cheap"] > 0


def test_rewind_and_close_reach_both() -> None:
    parts = [guard(name, Noted(toys.Anything())) for name in ("cheap", "other")]
    both = Composite(parts[0], parts[1], policy())
    toys.answer(Conversation(toys.target()), PROMPT, both, limit=8)
    both.rewind(3)
    assert [part.known for part in parts] == [3, 3] and both.known == 3
    both.close()
    assert both.failed
    assert both.parts == ()
    assert replace(both.needs) == both.needs
