"""Every mixer's roll-back inside whole answers: scripted drafters on the golden checkpoints, rewinds and further turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import toys
from golden import NAMES, RECURRENT, SLIDING, Golden

from outrider.core.model.cache import layout
from outrider.core.session.chat_cache import ChatCache

QUICK = {
    "llama",
    "qwen3_moe",
    "qwen3_5",
    "gemma3",
    "gemma4_e",
    "gpt_oss",
    "deepseek_v3",
    "lfm2",
    "nemotron_h",
}  # every mixer
CASES = [*NAMES, *(f"{name}:tight" for name in sorted({*SLIDING, *RECURRENT}))]
PARAMS = [pytest.param(case, marks=() if case in QUICK else pytest.mark.thorough) for case in CASES]


@pytest.fixture(scope="module", params=PARAMS)
def told(request: pytest.FixtureRequest) -> Iterator[Golden]:
    name, _, tight = request.param.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # rings of 24 rows for a window of 16
            patch.setattr(layout, "SPAN", 8)
        yield Golden(name, tight=bool(tight))


def answer(told: Golden, cache: ChatCache, prompt: list[int], right: int | None, tokens: int = 5) -> list[int]:
    drafter = None
    if right is not None:
        known = told.text if prompt == told.prompt else []
        drafter = toys.guard(toys.Knows(len(prompt), known, right, vocab=256))
    report = toys.answer(cache, prompt, drafter, limit=len(told.text), tokens=tokens)
    if right == 99 and prompt == told.prompt:
        assert report.accepted == report.proposed > 0
    if right == 0:
        assert report.accepted == 0
    return report.token_ids


@pytest.mark.parametrize("right", [None, 99, 0, 1, 3], ids=["plain", "right", "wrong", "right-1", "right-3"])
def test_the_continuation_is_the_reference(told: Golden, right: int | None) -> None:
    assert answer(told, told.new_cache(), told.prompt, right) == told.text


def test_a_tree_whose_second_children_are_right(told: Golden) -> None:
    """Kept where trees are verified; where one line is, its first children, nothing is, and the text is the same."""
    cache = told.new_cache()
    tree = toys.Bushy(toys.Knows(len(told.prompt), told.text, vocab=256), turn=1)
    report = toys.answer(cache, told.prompt, toys.guard(tree), limit=len(told.text), tokens=6)
    assert report.token_ids == told.text
    if cache.target.trees:
        assert report.accepted * 2 == report.proposed > 0
    else:
        assert report.accepted == 0


def test_further_turns_and_edits(told: Golden) -> None:
    """The next turn goes on from a kept state, an edit goes back past it; both as if told afresh."""
    cache = told.new_cache()
    assert answer(told, cache, told.prompt, 2) == told.text
    longer = [*told.prompt, *told.text[:-1], 7]
    kept = cache.target.length
    first = answer(told, cache, longer, None)
    assert first == answer(told, told.new_cache(), longer, None)
    assert kept >= len(told.prompt)
    edited = [*told.prompt[:10], 3, 1, 4]
    assert answer(told, cache, edited, None) == answer(told, told.new_cache(), edited, None)
    assert answer(told, cache, told.prompt, 1) == told.text


def test_the_next_turn_is_no_full_prefill(told: Golden) -> None:
    cache = told.new_cache()
    answer(told, cache, told.prompt, 2)
    said = cache.tokens[: cache.target.length]
    assert cache.reuse([*said, 9, 9]) == len(said)
