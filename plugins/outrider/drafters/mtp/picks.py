"""From rows of logits to a draft: coupled to the target's own noise, or drawn from the private stream with its laws told.

Letters: `V` vocabulary of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.drafting import Context, Draft


class Picks:
    """The tokens of one chain, picked one after the other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._laws: list[Tensor] = []
        self.path: list[int] = []

    def add(self, logits: Tensor) -> bool:
        """Pick the next token by `logits` [V]; False, and nothing is picked, where they are no numbers."""
        if not bool(logits.max().isfinite()):
            return False
        context, position = self._context, len(self._context.tokens) + len(self.path)
        if context.probs:
            law = context.to_probs(logits, self.path)
            self._laws.append(law)
            self.path.append(context.rng(position).draw(law))
        else:
            self.path.append(int(context.sample(logits[None], position, self.path)[0]))
        return True

    def draft(self) -> Draft | None:
        """What was picked."""
        if not self.path:
            return None
        return Draft(torch.tensor(self.path), probs=torch.stack(self._laws) if self._laws else None)
