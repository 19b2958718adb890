"""What drafts stand on while they are trained: the target as it is, or a copy of it that learns with them.

Letters: `N` rows of a batch, `R` some of them, `d` width, `V` vocabulary, `n` words of the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.model import TargetModel

from . import export
from .decoder import Decoder, Residuals, of_target
from .draft_vocabulary import Words
from .parts import soft_loss, wide
from .recipe import Batch
from .sampled import engine
from .teacher import Teacher


class Frozen(nn.Module):
    """The target as it is. `kept`: numbers of the residuals that drafts read besides the last."""

    embedding: Tensor
    factor: Tensor

    def __init__(self, teacher: Teacher, words: Words, kept: Sequence[int] = ()) -> None:
        super().__init__()
        self.states = (*kept, teacher.info.layers)
        self.words = words
        self.register_buffer("embedding", teacher.embedding(), persistent=False)  # [V, d]
        self._norm = teacher.target.decoder.weights.norm
        factor = torch.ones(teacher.info.width) if self._norm.weight is None else self._norm.weight.clone()
        self.register_buffer("factor", factor, persistent=False)  # [d]

    def read(self, batch: Batch) -> Residuals:
        """The residuals [N, d] of a batch."""
        *kept, last = batch.states.to(self.embedding.dtype).unbind(1)
        return Residuals(last, tuple(kept))

    def embed(self, ids: Tensor) -> Tensor:
        """[R] -> [R, d]."""
        return self.embedding[ids]

    def normed(self, last: Tensor) -> Tensor:
        """[R, d] through the final norm; gradients pass."""
        x = wide(last)
        x = x - x.mean(-1, keepdim=True) if self._norm.centred else x
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._norm.eps) * self.factor

    def logits(self, x: Tensor) -> Tensor:
        """[R, d] behind a norm -> [R, n]."""
        return self.words(x)


class Joint(nn.Module):
    """A copy of the target that learns with the drafts; what it should say is what the target said before.

    Raises ModelError where the target cannot be trained.
    """

    def __init__(self, teacher: Teacher, words: Words, kept: Sequence[int] = ()) -> None:
        super().__init__()
        self._teacher, self._kept = teacher, tuple(kept)
        self.states = (teacher.info.layers,)
        self.words = words
        self.decoder = of_target(teacher)

    def read(self, batch: Batch) -> Residuals:
        """The residuals [N, d] of a batch; gradients pass."""
        return self.decoder(batch.ids, batch.texts, self._kept)

    def embed(self, ids: Tensor) -> Tensor:
        """[R] -> [R, d]."""
        return self.decoder.embed(ids)

    def normed(self, last: Tensor) -> Tensor:
        """[R, d] through the final norm; gradients pass it, whose weight belongs to the copy."""
        return self.decoder.model.norm(last)

    def logits(self, x: Tensor) -> Tensor:
        """[R, d] behind a norm -> [R, n], by the copy's own rows."""
        rows = self.decoder.table[self.words.words]
        return self._teacher.capped(F.linear(x.to(rows.dtype), rows) * self.decoder.spec.logit_scale)

    def loss(self, batch: Batch, last: Tensor) -> Tensor:
        """Mean cross-entropy of the copy with last residuals [N, d] against the target, over the whole vocabulary."""
        rows = answering(batch)
        return soft_loss(self.decoder.logits(last[rows]), law(self._teacher, batch, rows)).mean()

    def now(self) -> TargetModel:
        """The copy as the engine runs it."""
        return now(self.decoder, self._teacher)

    def save(self, folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        """As `publish`."""
        publish(self.decoder, self._teacher, folder, tensors, config)


def answering(batch: Batch) -> Tensor:
    """Rows of a batch from which a token of an answer is the next one, [R]."""
    rows = [row for rows in batch.rows() for row in rows]
    return torch.tensor(rows, dtype=torch.int64, device=batch.ids.device)


@torch.no_grad()
def law(teacher: Teacher, batch: Batch, rows: Tensor) -> Tensor:
    """What the target said at `rows` [R], by the last of the batch's states: [R, V]."""
    return teacher.logits(batch.states[rows, -1]).softmax(-1)


def now(decoder: Decoder, teacher: Teacher, config: Mapping[str, Any] | None = None) -> TargetModel:
    """A trained copy of the target as the engine runs it; `config`: what its own says besides."""
    made = engine(decoder, WeightFormat(teacher.dtype, teacher.device), teacher.longest)
    info = replace(teacher.info, config={**teacher.info.config, **(config or {})})
    return TargetModel(made, info, teacher.longest)


def publish(
    decoder: Decoder, teacher: Teacher, folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """Write a trained copy as a model is published, with the drafts' `tensors` in the same file. Raises OSError."""
    export.write(folder, {**decoder.state_dict(), **tensors}, {**decoder.config, **config}, torch.bfloat16)
    export.copy_text(Path(teacher.info.path), folder)
