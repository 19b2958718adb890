"""Offers of free drafters against the text that came: over rounds, at its end, and where it is cut."""

from __future__ import annotations

import random

import pytest

from outrider.core.policy.unverified import Scored, UnverifiedDraft


def score(offer: list[int], *rounds: list[int]) -> list[Scored]:
    """What becomes of an offer at position 10 while rounds of tokens come."""
    shadow, at, found = UnverifiedDraft("x"), 10, []
    shadow.offer(at, offer)
    for tokens in rounds:
        found += shadow.score(at, tokens)
        at += len(tokens)
    assert shadow.wants == bool(found)
    return found


@pytest.mark.parametrize(
    ("offer", "rounds", "want"),
    [
        ([1, 2, 3], [[1, 2, 3, 4]], [Scored(3, 3)]),
        ([1, 2, 3], [[1], [2], [3]], [Scored(3, 3)]),
        ([1, 2, 3], [[1, 9]], [Scored(3, 1)]),
        ([1, 2, 3], [[9, 2, 3]], [Scored(3, 0)]),
        ([1, 2, 3], [[1], [9]], [Scored(3, 1)]),
        ([1, 2, 3], [[1], [2]], []),
        ([], [[5]], [Scored(0, 0)]),
    ],
)
def test_an_offer_is_scored_by_what_came(offer: list[int], rounds: list[list[int]], want: list[Scored]) -> None:
    assert score(offer, *rounds) == want


def test_one_offer_at_a_time() -> None:
    shadow = UnverifiedDraft("x")
    assert shadow.wants
    shadow.offer(3, [1, 2])
    assert not shadow.wants
    shadow.offer(4, [7])  # too early: ignored
    assert shadow.score(3, [1]) == []
    assert shadow.score(4, [2]) == [Scored(2, 2)]
    assert shadow.score(5, [2]) == []


@pytest.mark.parametrize("start", [9, 11])
def test_text_that_does_not_go_on_from_it_drops_an_offer(start: int) -> None:
    """A rewind, or tokens that were not told."""
    shadow = UnverifiedDraft("x")
    shadow.offer(9, [1, 2, 3])
    assert shadow.score(9, [1]) == []
    assert shadow.score(start, [1, 2, 3]) == []
    assert shadow.wants
    shadow.offer(10, [5])
    assert shadow.score(10, [5]) == [Scored(1, 1)]


def test_it_counts_as_verification_would_have() -> None:
    """Random offers and text: the score is the number of tokens that agree from the first on, whatever the rounds."""
    luck = random.Random(1)
    text = [luck.randrange(2) for _ in range(400)]
    shadow, at, want, found = UnverifiedDraft("x"), 0, [], []
    while at < 380:
        if shadow.wants:
            offer = [luck.randrange(2) for _ in range(luck.randrange(6))]
            shadow.offer(at, offer)
            wrong = (i for i, token in enumerate(offer) if token != text[at + i])
            want.append(Scored(len(offer), next(wrong, len(offer))))
        count = luck.randrange(1, 5)
        found += shadow.score(at, text[at : at + count])
        at += count
    assert found == want[: len(found)] and len(found) > 100
