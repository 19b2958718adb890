"""What is added to the logits of a slot once the token before it is known.

DSpark (arXiv 2607.05147): a low-rank Markov bias, and a confidence head that tells beforehand how likely the token is to
stay. DFlash2: of the best candidates of each slot a low-rank score chooses the one that follows.

Letters: `n` drafting slots, `d` width, `r` rank, `V` vocabulary of the target, `Vd` of the draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting.layers import Part

Follow = Callable[[int, Tensor], Tensor]  # (slot, id before it [1]) -> logits [Vd]


@dataclass(frozen=True, slots=True)
class Markov:
    """DSpark."""

    before: Part  # [V, r]
    bias: Part  # r -> Vd

    def follow(self, hidden: Tensor, logits: Tensor) -> Follow:
        """For slot states [n, d] and logits [n, Vd]."""
        return lambda slot, previous: logits[slot] + self.bias(self.before(previous))[0]


@dataclass(frozen=True, slots=True)
class Confidence:
    """DSpark: chance that a token will stay, told by its slot, and mostly the token before it, alone."""

    weight: Tensor  # [d] or [d + r]
    bias: Tensor | None  # [1]
    before: Part | None  # [V, r], where it looks at the previous token

    def logit(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """For the slot state [d] and the id before it [1]: [1]."""
        x = hidden if self.before is None else torch.cat((hidden, self.before(previous)[0]))
        y = (x @ self.weight).float().view(1)
        return y if self.bias is None else y + self.bias.float()

    def __call__(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """As `logit`, 0 to 1."""
        return self.logit(hidden, previous).sigmoid()


@dataclass(frozen=True, slots=True)
class Selector:
    """DFlash2."""

    before: Tensor  # [V, r]
    after: Tensor  # [V, r]
    query: Part  # d -> r
    count: int  # candidates of a slot

    def follow(self, hidden: Tensor, logits: Tensor) -> Follow:
        """For slot states [n, d] and logits [n, V]; all but the candidates get -inf."""
        best, ids = logits.topk(min(self.count, logits.shape[-1]), -1)  # each [n, candidates]
        queries, after = self.query(hidden), self.after[ids]  # [n, r], [n, candidates, r]

        def row(slot: int, previous: Tensor) -> Tensor:
            scores = best[slot] + after[slot] @ (self.before[previous] * queries[slot])[0]
            return torch.full_like(logits[slot], -torch.inf).scatter_(0, ids[slot], scores)

        return row
