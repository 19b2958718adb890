"""States of the early layers, kept from drafting: LayerSkip verifies from its exit on (arXiv 2404.16710, section 3.3).

`TargetModel.early` keeps what it computes of the tokens behind the committed ones. Where the next pass verifies those very
tokens, the layers below the exit have run: their keys and values are written, and the pass goes on from the kept residuals.

A draft of n tokens takes n early steps, the first of them over the root, so the early layers of its last token run before the
pass goes on. Then n rows of early layers are saved, but their weights are read as often as for a whole pass. A draft that ended
because its next token was not worth picking has all n + 1 rows: there a reading of these weights is saved too.

Which tokens were drafted is compared, not trusted: any other pass begins at the first layer.

Letters: `n` tokens that are kept, `d` width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class EarlyStates(NamedTuple):
    """The first `layers` layers over `ids`, the tokens from the committed length on."""

    layers: int
    ids: list[int]  # [n]
    states: dict[int, Tensor]  # [n, d] by number: the residual after `layers`, and those below that drafters want

    def then(self, more: EarlyStates, rows: int) -> EarlyStates:
        """Its first `rows` tokens, and `more` after them, with the states that both have."""
        both = self.states.keys() & more.states.keys()
        states = {number: torch.cat((self.states[number][:rows], more.states[number])) for number in both}
        return EarlyStates(self.layers, self.ids[:rows] + more.ids, states)

    def first(self, rows: int) -> EarlyStates:
        """Its first `rows` tokens."""
        return EarlyStates(self.layers, self.ids[:rows], {number: part[:rows] for number, part in self.states.items()})

    def leads_to(self, ids: Sequence[int], states: Sequence[int]) -> bool:
        """Whether a pass over `ids` that exports `states` may go on from here: all tokens but the last are known."""
        rows = min(len(ids), len(self.ids))
        there = all(number in self.states for number in states if number < self.layers)
        return there and rows >= len(ids) - 1 and self.ids[:rows] == list(ids[:rows])
