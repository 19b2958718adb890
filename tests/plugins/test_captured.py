"""Drafters whose steps are recorded once and replayed: every draft is the one that is made without, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import golden
import pytest
import torch
import toys
from replay import Replay
from torch import Tensor

from outrider.core.answer import Conversation
from outrider.core.drafting import Context, Draft, Drafter
from outrider.core.sample import Settings
from outrider.core.target.model import SLACK, TargetModel
from outrider.drafters import draft_model

PROMPT = [5, 9, 13, 9, 5, 9, 13]
FILTERED = Settings(temperature=0.9, top_p=0.95)


class Heard:
    """A drafter whose drafts are written down: the conversation, the draft, and all logits [V] that it was drawn from."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.needs, self.shape = inner, inner.needs, inner.shape
        self.reset, self.rewind, self.close, self.fork = inner.reset, inner.rewind, inner.close, inner.fork
        self.advance = inner.advance
        self.rounds: list[tuple[list[int], Draft | None, Tensor]] = []

    def propose(self, context: Context) -> Draft | None:
        rows = [torch.empty(0)]

        def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
            rows.extend(logits.clone())
            return context.sample(logits, position, path)

        def to_probs(logits: Tensor, path: Sequence[int]) -> Tensor:
            rows.append(logits.clone())
            return context.to_probs(logits, path)

        draft = self.inner.propose(replace(context, sample=sample, to_probs=to_probs))
        self.rounds.append((list(context.tokens), draft, torch.cat(rows)))
        return draft


def answers(target: TargetModel, drafter: Heard, prompts: Sequence[Sequence[int]], turns: int) -> Iterator[list[int]]:
    """One conversation: prompts under each rule and temperature, then turns behind what was said."""
    talk, guarded = Conversation(target), toys.guard(drafter)
    for number, prompt in enumerate(prompts):
        settings, rule = ((toys.GREEDY, "match"), (FILTERED, "match"), (FILTERED, "rejection"))[number % 3]
        ids = list(prompt)
        for turn in range(turns):
            told = toys.answer(talk, ids, guarded, settings=settings, rule=rule, limit=12, tokens=(4, 6, 1)[turn % 3])
            assert not guarded.failed
            yield told.token_ids
            ids = [*ids, *told.token_ids[: 9 - turn], 4, turn]


def same_rounds(want: Heard, got: Heard, least: int) -> None:
    """Tokens, parents, laws and logits of all drafts."""
    assert len(got.rounds) == len(want.rounds)
    some = 0
    for (tokens, plain, rows), (tokens_too, made, rows_too) in zip(want.rounds, got.rounds, strict=True):
        assert tokens_too == tokens
        assert (made is None) == (plain is None)
        torch.testing.assert_close(rows_too, rows, atol=1e-4, rtol=1e-4)
        if plain is None or made is None:
            continue
        some += 1
        assert made.tokens.tolist() == plain.tokens.tolist()
        assert (made.parents is None) == (plain.parents is None)
        if plain.parents is not None and made.parents is not None:
            assert made.parents.tolist() == plain.parents.tolist()
        if plain.probs is not None and made.probs is not None:
            torch.testing.assert_close(made.probs, plain.probs, atol=1e-4, rtol=1e-4)
    assert some >= least


def same(
    target: TargetModel,
    make: Callable[[TargetModel], Drafter],
    prompts: Sequence[Sequence[int]] = (PROMPT, [5, 9, 13, 2, 40], [7]),
    turns: int = 2,
    least: int = 20,
) -> None:
    """Drafts with and without graphs: several answers, turns that go on from a part of what was said, edited prompts.

    The same once more needs no more captures, a fork has its own, and both draft as they should.
    """
    capture = Replay()
    plain, quick = Heard(make(target)), Heard(make(TargetModel(target.decoder, target.info, target.context, capture)))
    want = list(answers(target, plain, prompts, turns))
    assert list(answers(target, quick, prompts, turns)) == want
    same_rounds(plain, quick, least)
    captured = capture.count
    assert captured > 0
    quick.reset()
    copy = Heard(quick.fork())
    assert list(answers(target, quick, prompts[-1:], 2)) == want[-turns:][:2] or len(prompts) > 1
    assert capture.count == captured
    again = list(answers(target, copy, prompts[:1], 2))
    assert again == want[:2]
    assert capture.count > captured


def tight(decoder: Callable[[int], TargetModel], make: Callable[[TargetModel], Drafter]) -> None:
    """At the end of a context, with drafts that reach beyond it."""
    for context in (24, 40):
        target = decoder(context)
        plain, quick = Heard(make(target)), Heard(make(TargetModel(target.decoder, target.info, context, Replay())))
        told = [
            toys.answer(Conversation(target), PROMPT, toys.guard(drafter), limit=None, tokens=16)
            for drafter in (plain, quick)
        ]
        assert told[0].token_ids == told[1].token_ids
        assert len(told[0].token_ids) == context - len(PROMPT)
        same_rounds(plain, quick, 1)


def draft_of(target: TargetModel, seed: int, sharp: float = 1.0) -> draft_model.Rider:
    capacity = target.context + SLACK
    decoder = toys.decoder(seed, context=target.context, sharp=sharp)
    return draft_model.Rider(decoder, capacity, 48, graphs=target.graphs)


@pytest.mark.parametrize("seed", [0, 1])
def test_draft_model(seed: int) -> None:
    same(toys.target(), lambda target: draft_of(target, seed, 0.8))


def test_draft_model_at_the_brim() -> None:
    tight(lambda context: toys.target(context=context), lambda target: draft_of(target, 1))


@pytest.mark.skipif(not golden.NAMES, reason=golden.REASON)
@pytest.mark.parametrize(
    "family", ["qwen3_5", *(pytest.param(name, marks=pytest.mark.thorough) for name in golden.NAMES)]
)
def test_draft_model_of_every_family(family: str) -> None:
    """States that cannot be cut, rings, latents, experts."""
    decoder = golden.decoder(golden.FOLDER / family, torch.float32, 256 + SLACK)

    def make(target: TargetModel) -> Drafter:
        return draft_model.Rider(decoder, 256 + SLACK, 48, graphs=target.graphs)

    same(toys.target(), make, prompts=(PROMPT,), turns=2, least=8)
