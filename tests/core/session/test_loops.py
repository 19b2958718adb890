"""Answers that run in circles are told from those that only have long passages in common."""

from __future__ import annotations

import random

import pytest

from outrider.core.session.loops import SIZE, TIMES, loops

PROSE = random.Random(5).choices(range(2000), k=2000)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 19, 20, 21, 60])
def test_a_passage_said_over_and_over_is_a_loop(period: int) -> None:
    whole = SIZE * TIMES if period <= SIZE else period * (TIMES - 1) + SIZE
    rounds = -(-max(whole, SIZE + period) // period) + SIZE // period + TIMES
    assert loops([*PROSE[:50], *list(range(5000, 5000 + period)) * rounds])


@pytest.mark.parametrize("ids", [[], PROSE[:19], PROSE, PROSE[:500] * (TIMES - 1)])
def test_other_text_is_none(ids: list[int]) -> None:
    assert not loops(ids)


def test_a_ruler_of_one_token_is_no_loop_before_it_is_four_passages_long() -> None:
    """Tables and headings hold such lines; overlapping occurrences count once."""
    assert not loops([7] * (SIZE * TIMES - 1))
    assert loops([7] * (SIZE * TIMES))


def test_what_stands_between_does_not_matter() -> None:
    passage, other = list(range(100, 100 + SIZE)), iter(PROSE)
    apart = [token for _ in range(TIMES) for token in (*passage, next(other))]
    assert loops(apart)
    assert not loops(apart[: -SIZE - 1])
