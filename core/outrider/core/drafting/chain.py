"""A drafter's chain, token by token: drawn from its rows of logits, and ended where another token does not pay."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.core.sampling.sample import certainty

from .contract import Context, Draft


class ChainSampler:
    """The tokens of one chain of at most `count`, picked one after the other from a drafter's rows of logits.

    They are coupled to the target's own noise or, where `probs` are wanted, drawn from the private stream with their laws
    told. How sure the drafter is of a token is known before it is picked, and `context.worth_drafting` may end the chain by that,
    `context.worth_extending` behind a token that was picked.
    `weighs` False: it is not looked at, so that passes which were captured ask the device for no more than they must.
    """

    def __init__(self, context: Context, count: int, *, weighs: bool = True) -> None:
        self._context, self._count, self._weighs = context, count, weighs
        self._laws: list[Tensor] = []
        self._held: list[float] = []
        self.path: list[int] = []
        self.broken = False  # a row was no numbers

    def add(self, logits: Tensor, own: Tensor | None = None, sure: float | None = None) -> bool:
        """Pick the next token by `logits` [V]; whether one more is wanted. Nothing is picked by a row that is no numbers.

        `own`: the same row in a shorter vocabulary [Vd], if the drafter has one; `sure`: what it holds of its best token, if
        it knows better than the row.
        """
        context, depth, row = self._context, len(self.path), logits if own is None else own
        confidence = float(certainty(row) if self._weighs else row.max())
        self.broken = not math.isfinite(confidence)
        confidence = confidence if sure is None else sure
        if self.broken or (
            self._weighs and context.worth_drafting is not None and not context.worth_drafting(depth, confidence)
        ):
            return False
        position = len(context.tokens) + depth
        if context.probs:
            law = context.to_probs(logits, self.path)
            self._laws.append(law)
            self.path.append(context.rng(position).draw(law))
        else:
            self.path.append(int(context.sample(logits[None], position, self.path)[0]))
        self._held.append(confidence)
        return len(self.path) < self._count and self._more(context)

    def _more(self, context: Context) -> bool:
        asks = self._weighs and context.worth_drafting is not None
        return not asks or context.worth_extending is None or context.worth_extending(len(self.path))

    def draft(self) -> Draft | None:
        """What was picked."""
        if not self.path:
            return None
        probs = torch.stack(self._laws) if self._laws else None
        confidence = torch.tensor(self._held) if self._weighs else None
        tokens = torch.tensor(self.path, device=None if probs is None else probs.device)
        return Draft(tokens, probs=probs, confidence=confidence)
