"""A loaded target as one to learn from: its states over known texts, its embedding, its output layer.

Nothing here lets gradients through, whatever form the weights are kept in.

Letters: `S` tokens, `P` states, `d` width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.base.model_info import ModelInfo
from outrider.core.model.cache.states import Cache
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel

from .parts import wide

SLICE = 1024  # rows that are asked for at a time


class Teacher:
    """What a recipe may ask of the target."""

    def __init__(self, target: TargetModel, longest: int | None = None) -> None:
        """`longest`: tokens of a text that is read; None: the whole context."""
        self.target = target
        self.longest = min(target.context, longest or target.context)
        self._cache: Cache | None = None  # its own, so that no conversation is disturbed

    @property
    def info(self) -> ModelInfo:
        """What every method sees of it."""
        return self.target.info

    @property
    def spec(self) -> TargetSpec:
        """Its decoder."""
        return self.target.decoder.spec

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes."""
        return self.target.dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.target.device

    def read(self, ids: Sequence[int], states: Sequence[int]) -> Tensor:
        """States [S, P, d] after each token of a text; nothing is computed where none is asked for."""
        if not states:
            return torch.empty(len(ids), 0, self.info.width, dtype=self.dtype, device=self.device)
        if self._cache is None:
            self._cache = self.target.decoder.new_cache(self.longest + MAX_DRAFT_ROWS)
        self._cache.rewind(0)
        with self.target.using(self._cache):
            hidden = self.target.forward(torch.tensor(list(ids)), last=True, states=tuple(states))
        assert hidden.hidden is not None
        return hidden.hidden.clone()

    @torch.no_grad()
    def embedding(self) -> Tensor:
        """[V, d] as the first layer sees the tokens, with the target's own scale."""
        vocab = self.info.vocab
        parts = [
            self.target.embed(torch.arange(at, min(at + SLICE, vocab), device=self.device))
            for at in range(0, vocab, SLICE)
        ]
        return torch.cat(parts).clone()

    @torch.no_grad()
    def output(self, words: Tensor | None = None) -> Tensor:
        """Rows [n, d] of the output layer, of all tokens or of `words` [n], with the multiplier and without the cap."""
        ids = torch.arange(self.info.vocab) if words is None else words
        return self.target.rows(ids.to(self.device)).clone()

    @torch.no_grad()
    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm of [S, d]."""
        return self.target.norm(hidden.to(self.device, self.dtype)).clone()

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """What it says behind last states [S, d]: [S, V] in fp32 at least."""
        return wide(self.target.head(self.norm(last)).clone())

    def capped(self, logits: Tensor) -> Tensor:
        """The target's cap on logits, where it has one; gradients pass."""
        cap = self.spec.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap
