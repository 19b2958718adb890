"""Whoever is learnt from: the target, and others beside it where that is wanted, as one law.

Several teachers: the weighted mean of their laws. Its logarithm stands for the logits wherever those of one teacher would, so
that temperature and labels mean the same.

Letters: `R` rows, `S` tokens of a text, `d` width, `V` vocabulary, `k` labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.base.errors import UsageError
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.library.library import resolve
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.train.recipe import Batch, Labels
from outrider.core.train.teacher import Teacher


class Teachers:
    """`others`: names or paths of models with the target's tokenizer. `shares`: of the law, the target's first; none: alike."""

    def __init__(self, target: Teacher, others: Sequence[str] = (), shares: Sequence[float] = ()) -> None:
        if shares and len(shares) != len(others) + 1:
            raise UsageError(
                f"{len(shares)} shares are given for {len(others) + 1} teachers.",
                "Give the target's first, then one each.",
            )
        self.target = target
        self._all = [target, *(_opened(name, target) for name in others)]
        given = list(shares) or [1.0] * len(self._all)
        self._shares = [share / sum(given) for share in given]

    @property
    def several(self) -> bool:
        """Whether the target is not alone."""
        return len(self._all) > 1

    def lasts(self, batch: Batch, own: Tensor | None = None) -> list[Tensor]:
        """Last states [R, d] of each teacher at `batch.rows()`; `own`: those of the target, if they are known."""
        rows = [range(rows.start - text.start, rows.stop - text.start) for rows, text in _pairs(batch)]
        texts = [batch.ids[text.start : text.end].tolist() for text in batch.texts]
        states = [] if own is None else [own]
        for teacher in self._all[len(states) :]:
            last = (teacher.info.layers,)
            made = [teacher.read(ids, last)[some.start : some.stop, 0] for ids, some in zip(texts, rows, strict=True)]
            states.append(torch.cat(made))
        return states

    def logits(self, lasts: Sequence[Tensor]) -> Tensor:
        """What they say after last states [R, d] of each: [R, V]."""
        if not self.several:
            return self.target.logits(lasts[0])
        vocab, laws = self.target.info.vocab, list[Tensor]()
        for teacher, share, last in zip(self._all, self._shares, lasts, strict=True):
            logits = teacher.logits(last)[:, :vocab]  # rows beyond the tokenizer may be more or fewer
            missing = vocab - logits.shape[1]
            logits = torch.nn.functional.pad(logits, (0, missing), value=-math.inf)
            laws.append(logits.log_softmax(-1) + math.log(share))
        return torch.stack(laws).logsumexp(0)

    def labels(self, batch: Batch, top: int, temperature: float) -> Labels:
        """The `top` likeliest tokens at `batch.rows()`, by laws at that temperature."""
        logs = (self.logits(self.lasts(batch)) / temperature).log_softmax(-1)
        best = logs.topk(min(top, logs.shape[-1]), -1)
        return Labels(best.indices, best.values)


def _pairs(batch: Batch):
    return zip(batch.rows(), batch.texts, strict=True)


def _opened(name: str, target: Teacher) -> Teacher:
    """A further teacher. Raises ModelError, UsageError."""
    checkpoint = open_checkpoint(resolve(name))
    try:
        known = info(checkpoint)
        if not known.tokenizer or known.tokenizer != target.info.tokenizer:
            raise UsageError(
                f"{name} has another tokenizer than {target.info.name} and cannot teach beside it.",
                "Take teachers of one family.",
            )
        decoder = load_decoder(checkpoint, WeightFormat(target.dtype, target.device), target.longest + MAX_DRAFT_ROWS)
    finally:
        checkpoint.close()
    return Teacher(TargetModel(decoder, known, target.longest), target.longest)
