"""The words that a drafter knows, and what the target says about them.

Letters: `N` rows of a batch, `R` some of them, `V` vocabulary, `n` words, `d` width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .chunked_loss import Asked, Law, ask, likeliest, rows_of
from .parts import wide
from .recipe import Batch, Group
from .teacher import Teacher

SLOW = 0.1  # of the rate, for output rows: they are good already


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
    def law(self, last: Tensor) -> Law:
        """What the target says behind last states [R, d], over the words."""
        parts = list[tuple[Tensor, Tensor, Tensor]]()
        for some in last.split(rows_of(last)):
            logits = self._teacher.norm(some).to(self.output.dtype) @ self.output.t()  # [r, V]
            words = logits[:, self.words] if self.reduced else logits
            held = words.amax(-1) >= logits.amax(-1)
            parts.append((*likeliest(self._teacher.capped(wide(words))), held))
        return Law(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def ask(self, x: Tensor, law: Law, weights: Tensor) -> Asked:
        """Rows [R, d] against the laws of as many places, each times its weight [R]."""
        return ask(x, self.rows, law, weights, self._teacher.spec.logit_cap)

    def tables(self, *, whole: bool) -> dict[str, Tensor]:
        """What a container holds of it: rows that are not the target's (or all, if `whole`), the tables of a reduced head."""
        tensors: dict[str, Tensor] = {}
        if whole or self.learnt:
            tensors["lm_head.weight"] = self.rows.detach().to(torch.bfloat16).contiguous()
        if self.reduced:
            tensors["d2t"] = self.words - torch.arange(len(self.words))
            tensors["t2d"] = self.known.clone()
        return tensors


def groups(drafter: nn.Module, head: Words) -> list[Group]:
    """What is trained of a drafter whose module `head` is `head`: all else as fresh, and its own output rows slowly."""
    rest = [part for name, part in drafter.named_parameters() if not name.startswith("head.")]
    return [Group(rest, fresh=True), *([Group([head.rows], SLOW)] if isinstance(head.rows, nn.Parameter) else [])]


class Said(NamedTuple):
    """What the target said behind some rows."""

    rows: Tensor  # [R] rows of the batch that are asked
    law: Law

    def loss(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of logits [R, n], of the rows that are held."""
        return (self.law.loss(logits) * self.law.weights).sum()

    def right(self, logits: Tensor) -> float:
        """Share of the rows for which the target's best token is the likeliest word of logits [R, n]."""
        return float(self.law.right(logits).float().mean()) if len(self.rows) else 0.0


class Sayings:
    """The target's laws at all places of a batch from which a token of an answer is the next one, made once for guesses that
    are made one token ahead, two, and so on. `last`: its last states [N, d]."""

    def __init__(self, batch: Batch, words: Words, last: Tensor) -> None:
        self._texts = batch.texts
        places = torch.tensor([row for rows in batch.rows() for row in rows], dtype=torch.int64, device=last.device)
        self._law = words.law(last[places])
        self._number = torch.full((last.shape[0],), -1, device=last.device)  # [N] of the place
        self._number[places] = torch.arange(len(places), device=last.device)

    def ahead(self, distance: int) -> Said:
        """For rows of which each is asked what the target said `distance` rows further."""
        rows = [row for text in self._texts for row in range(text.start, text.end - 1 - distance)]
        asked = torch.tensor(rows, dtype=torch.int64, device=self._number.device)
        number = self._number[asked + distance]
        known = number >= 0
        return Said(asked[known], self._law.at(number[known]))
