"""What the engine checks and translates between a drafter and a round: flaws of a draft, and the numbers of its nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import lt

from outrider.core.sampling.draft_tree import DraftTree

from .contract import Committed, Shape


def renumbered(step: Committed, nodes: int, line: list[int] | None) -> Committed:
    """What became of a draft of so many nodes of which only the first ones were verified, or those of a `line`."""
    numbers = list(range(nodes)) if line is None else line
    path, choices = (
        step.path if line is None else step.path.new_tensor([line[n] for n in step.path.tolist()]),
        step.choices,
    )
    if choices is not None and choices.shape[0] != nodes + 1:
        whole = choices.new_full((nodes + 1,), -1)
        whole[0] = choices[0]
        whole[choices.new_tensor(numbers[: choices.shape[0] - 1]) + 1] = choices[1:]
        choices = whole
    return replace(step, path=path, choices=choices)


def flaw(draft: DraftTree, budget: int, shape: Shape, vocab: int) -> str | None:
    """What is wrong with a draft, as the end of a sentence; None if nothing is."""
    tokens = draft.tokens
    n = tokens.shape[0] if tokens.ndim == 1 else -1
    if n < 0 or tokens.is_floating_point():
        return "something that is no list of token ids"
    if n > min(budget, shape.nodes):
        return f"{n} tokens where {min(budget, shape.nodes)} were allowed"
    if n and not 0 <= min(draft.ids) <= max(draft.ids) < vocab:
        return "a token id outside the vocabulary"
    if draft.parents is not None:
        if draft.parents.is_floating_point() or draft.parents.shape != (n,):
            return "something that is no list of parents"
        if n and not (min(draft.above) >= -1 and all(map(lt, draft.above, range(n)))):
            return "a tree whose parents do not come before their children"
    if draft.probs is None and draft.confidence is None:
        return None
    return _flaw_of_chances(draft, n, vocab)


def _flaw_of_chances(draft: DraftTree, n: int, vocab: int) -> str | None:
    """As `flaw`, of `probs` and `confidence`."""
    if draft.probs is not None and n:
        probs = draft.probs
        if probs.shape != (n, vocab):
            return "probabilities of another shape than its tokens"
        sums = probs.double().sum(-1)
        fair = bool((probs >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
        if not fair or not bool((probs.gather(1, draft.tokens[:, None].long()) > 0).all()):
            return "probabilities that are none"
    if draft.confidence is not None:
        if draft.confidence.shape != (n,) or not draft.confidence.is_floating_point():
            return "a confidence of another shape than its tokens"
        chances = draft.confidences or [0.0]
        if math.isnan(sum(chances)) or not 0 <= min(chances) <= max(chances) <= 1:
            return "a confidence that is no chance"
    return None
