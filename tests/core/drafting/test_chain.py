"""A drafter's chain, token by token: coupled or with its laws, how sure it is of each, and where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.core.drafting import Context
from outrider.core.drafting.chain import ChainSampler
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings, certainty

WARM = Settings(temperature=1.0, top_p=1.0)
ROWS = torch.tensor([[0.0, 3.0, 1.0, 0.0], [2.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 9.0]])


def context(settings: Settings = WARM, *, probs: bool = False, worth_drafting=None) -> Context:
    sampler = Sampler(settings, Noise(3))
    return Context([7, 7], 3, probs, sampler.chain, sampler.distribution, sampler.noise.draft_stream, worth_drafting)


def picked(ask: Context, rows: Tensor = ROWS, *, weighs: bool = True) -> tuple[ChainSampler, list[bool]]:
    picks = ChainSampler(ask, len(rows), weighs=weighs)
    wanted: list[bool] = []
    for row in rows:
        wanted.append(picks.add(row))
        if not wanted[-1]:
            break
    return picks, wanted


def test_certainty_is_the_share_of_the_best() -> None:
    torch.testing.assert_close(certainty(ROWS), ROWS.softmax(-1).max(-1).values)
    assert certainty(ROWS[0].half()).item() == pytest.approx(certainty(ROWS[0]).item(), abs=1e-3)
    for bad in (torch.nan, torch.inf):
        row = ROWS[0].clone()
        row[2] = bad
        assert not certainty(row).isfinite()
    assert not certainty(torch.full((4,), -torch.inf)).isfinite()
    assert certainty(torch.tensor([1.0, -torch.inf])).item() == 1.0  # a word that is never drafted


@pytest.mark.parametrize("settings", [WARM, Settings(temperature=0)])
@pytest.mark.parametrize("probs", [False, True])
def test_tokens_are_those_of_the_stream_that_is_asked_for(settings: Settings, probs: bool) -> None:
    ask = context(settings, probs=probs)
    picks, wanted = picked(ask)
    draft = picks.draft()
    assert wanted == [True, True, False] and draft is not None
    for depth, token in enumerate(draft.tokens.tolist()):
        path = draft.tokens.tolist()[:depth]
        law = ask.to_probs(ROWS[depth], path)
        want = ask.rng(2 + depth).draw(law) if probs else int(ask.sample(ROWS[depth][None], 2 + depth, path)[0])
        assert token == want
        assert draft.probs is None or torch.equal(draft.probs[depth], law)
    assert (draft.probs is not None) == probs
    torch.testing.assert_close(draft.confidence, certainty(ROWS))


@pytest.mark.parametrize("end", [0, 1, 2, 3])
def test_it_ends_at_the_first_no(end: int) -> None:
    asked: list[int] = []
    picks, _ = picked(context(probs=True, worth_drafting=lambda depth, held: not asked.append(depth) and depth < end))
    draft = picks.draft()
    assert asked == list(range(min(end + 1, 3)))
    assert not picks.broken
    assert len(picks.path) == (0 if draft is None else len(draft.tokens)) == end


@pytest.mark.parametrize("end", [1, 2, 3])
def test_nothing_is_looked_for_that_is_not_worth_the_time(end: int) -> None:
    asked: list[int] = []
    whole = context(worth_drafting=lambda depth, held: True)
    picks, wanted = picked(replace(whole, worth_extending=lambda depth: not asked.append(depth) and depth < end))
    assert asked == list(range(1, min(end, 2) + 1)) and len(picks.path) == end
    assert wanted == [True] * (end - 1) + [False]
    picks, _ = picked(replace(whole, worth_drafting=None, worth_extending=lambda depth: False))  # all is there already
    assert len(picks.path) == 3


def test_it_is_asked_with_what_is_known_before_the_draw() -> None:
    heard: list[float] = []
    picked(context(worth_drafting=lambda depth, held: not heard.append(held)))
    assert heard == certainty(ROWS).tolist()
    heard.clear()
    picks = ChainSampler(context(worth_drafting=lambda depth, held: not heard.append(held)), 2)
    picks.add(ROWS[0], own=torch.tensor([1.0, 1.0]))  # the shorter row is looked at, the whole one drawn from
    picks.add(ROWS[0], sure=0.125)
    assert heard == [0.5, 0.125]


@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_no_numbers_picks_nothing(bad: float, weighs: bool) -> None:
    rows = ROWS.clone()
    rows[1, 2] = bad
    picks, wanted = picked(context(), rows, weighs=weighs)
    assert picks.broken and wanted == [True, False] and len(picks.path) == 1
    picks, _ = picked(context(), rows[1:], weighs=weighs)
    assert picks.broken and picks.draft() is None


def test_unweighed_it_asks_nobody_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("outrider.core.drafting.chain.certainty")
    picks, _ = picked(context(worth_drafting=lambda depth, held: False), weighs=False)
    draft = picks.draft()
    assert draft is not None and len(draft.tokens) == 3 and draft.confidence is None
