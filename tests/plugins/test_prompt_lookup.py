"""Prompt lookup against a naive scan of the whole context, with rewinds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
import toys

from outrider.core.drafting import Committed, Context, Fit, ModelInfo
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler
from outrider.drafters.prompt_lookup import LONGEST, SHORTEST, Lookup, PromptLookup

NONE = torch.empty(0, dtype=torch.int64)


def context(tokens: Sequence[int], nodes: int = 6) -> Context:
    sampler = Sampler(toys.GREEDY, Noise(0))
    return Context(tokens, nodes, False, sampler.chain, sampler.distribution, sampler.noise.draft_stream)


def naive(tokens: Sequence[int], nodes: int) -> list[int] | None:
    end = len(tokens)
    for n in range(min(LONGEST, end), SHORTEST - 1, -1):
        gram = list(tokens[end - n :])
        for at in range(end - 1, n - 1, -1):  # newest continuation first
            if list(tokens[at - n : at]) == gram:
                text = list(tokens)
                for i in range(nodes):
                    text.append(text[at + i])
                return text[end:]
    return None


def guess(drafter: Lookup, tokens: Sequence[int], nodes: int = 6) -> list[int] | None:
    draft = drafter.propose(context(tokens, nodes))
    return None if draft is None else draft.tokens.tolist()


@pytest.mark.parametrize("letters", [2, 4, 9])
def test_equals_a_scan_of_everything(letters: int) -> None:
    luck = random.Random(letters)
    drafter, tokens = Lookup(), []
    for _ in range(300):
        if tokens and luck.random() < 0.15:
            length = luck.randrange(len(tokens))
            del tokens[length:]
            drafter.rewind(length)
        fresh = [luck.randrange(letters) for _ in range(luck.randrange(1, 5))]
        drafter.advance(Committed(len(tokens), torch.tensor(fresh), NONE))
        tokens += fresh
        assert guess(drafter, tokens) == naive(tokens, 6)


def test_rewind_to_nothing_is_a_reset() -> None:
    drafter = Lookup()
    drafter.advance(Committed(0, torch.tensor([1, 2, 3, 1, 2]), NONE))
    assert guess(drafter, [1, 2, 3, 1, 2], 3) == [3, 1, 2]
    drafter.rewind(0)
    assert (drafter._index, drafter._undo, drafter._tokens) == ({}, [], [])


def test_a_fork_goes_its_own_way() -> None:
    drafter = Lookup()
    drafter.advance(Committed(0, torch.tensor([1, 2, 3, 1, 2]), NONE))
    copy = drafter.fork()
    copy.advance(Committed(5, torch.tensor([4, 1, 2]), NONE))
    assert guess(copy, [1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]
    assert guess(drafter, [1, 2, 3, 1, 2], 1) == [3]


def test_a_loop_is_continued() -> None:
    drafter = Lookup()
    drafter.advance(Committed(0, torch.tensor([7, 8, 7, 8, 7, 8]), NONE))
    assert guess(drafter, [7, 8, 7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]


def test_fits_every_model_without_torch_or_weights() -> None:
    match = PromptLookup().matches(ModelInfo("any", "mamba", 5, 5, 5, "x"))
    assert match.fit == Fit.ANY
    assert match.ready
    assert match.weights is None
