"""The words that a drafter knows, and what the target says about them.

Letters: `R` rows, `V` vocabulary, `n` words, `d` width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .parts import wide
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
