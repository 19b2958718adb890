"""The words that a drafter knows, and what the target says about them.

Letters: `N` rows of a batch, `R` some of them, `V` vocabulary, `n` words, `d` width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .parts import soft_loss, wide
from .recipe import Batch
from .teacher import Teacher


def frequent(counts: Tensor, size: int) -> Tensor:
    """The ids that `counts` [V] finds most often, `size` of them or all for 0, in ascending order."""
    size = min(size or counts.shape[0], counts.shape[0])
    return counts.argsort(descending=True, stable=True)[:size].sort().values


class Words(nn.Module):
    """Output rows of the words, frozen unless they are to be `learnt`; everything else of it is the target's."""

    output: Tensor
    words: Tensor
    known: Tensor
    rows: Tensor

    def __init__(self, teacher: Teacher, words: Tensor, *, learnt: bool = False) -> None:
        super().__init__()
        self._teacher = teacher
        self.register_buffer("output", teacher.output(), persistent=False)  # [V, d]
        self.register_buffer("words", words, persistent=False)  # [n]
        known = torch.zeros(teacher.info.vocab, dtype=torch.bool)
        known[words] = True
        self.register_buffer("known", known, persistent=False)  # [V]
        rows = self.output[words]  # [n, d]
        if learnt:
            self.rows = nn.Parameter(rows.float())
        else:
            self.register_buffer("rows", rows, persistent=False)

    @property
    def learnt(self) -> bool:
        """Whether its rows are trained."""
        return isinstance(self.rows, nn.Parameter)

    @property
    def reduced(self) -> bool:
        """Whether there are tokens that it does not know."""
        return len(self.words) < self._teacher.info.vocab

    def forward(self, x: Tensor) -> Tensor:
        """[R, d] -> logits [R, n]."""
        return self._teacher.capped(x.to(self.rows.dtype) @ self.rows.t())

    @torch.no_grad()
    def law(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Last states [R, d] -> the target's law over the words [R, n], and whether its best token is one of them [R]."""
        logits = self._teacher.norm(last).to(self.output.dtype) @ self.output.t()  # [R, V]
        logits = self._teacher.capped(wide(logits))
        return logits[:, self.words].softmax(-1), self.known[logits.argmax(-1)]

    def tables(self, *, whole: bool) -> dict[str, Tensor]:
        """What a container holds of it: rows that are not the target's (or all, if `whole`), the tables of a reduced head."""
        made: dict[str, Tensor] = {}
        if whole or self.learnt:
            made["lm_head.weight"] = self.rows.detach().to(torch.bfloat16).contiguous()
        if self.reduced:
            made["d2t"] = self.words - torch.arange(len(self.words))
            made["t2d"] = self.known.clone()
        return made


class Said(NamedTuple):
    """What the target said behind some rows, as laws over the words."""

    rows: Tensor  # [R] rows of the batch that are asked
    laws: Tensor  # [R, n]
    held: Tensor  # [R] whether the target's best token is one of the words

    def loss(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of logits [R, n], of the rows that are held."""
        return (soft_loss(logits, self.laws) * self.held).sum() / self.held.sum().clamp(min=1)

    def right(self, logits: Tensor) -> float:
        """Share of the rows whose best word is the target's best token."""
        best = logits.detach().argmax(-1) == self.laws.argmax(-1)
        return float((best & self.held).float().mean()) if len(self.rows) else 0.0


class Sayings:
    """The target's laws at all places of a batch from which a token of an answer is the next one, made once for guesses that
    are made one token ahead, two, and so on. `last`: its last states [N, d]."""

    def __init__(self, batch: Batch, words: Words, last: Tensor) -> None:
        self._texts = batch.texts
        places = torch.tensor([row for rows in batch.rows() for row in rows], dtype=torch.int64, device=last.device)
        self._laws, self._held = words.law(last[places])
        self._number = torch.full((last.shape[0],), -1, device=last.device)  # [N] of the place
        self._number[places] = torch.arange(len(places), device=last.device)

    def ahead(self, distance: int) -> Said:
        """For rows of which each is asked what the target said `distance` rows further."""
        rows = [row for text in self._texts for row in range(text.start, text.end - 1 - distance)]
        asked = torch.tensor(rows, dtype=torch.int64, device=self._number.device)
        number = self._number[asked + distance]
        known = number >= 0
        return Said(asked[known], self._laws[number[known]], self._held[number[known]])
