"""Training a model to exit early (LayerSkip, arXiv 2404.16710): what comes out is another model, whose first layers draft for it.

Layers are left out by chance, for each text anew, the deeper the oftener: layer l of L by most * (exp(l ln 2 / (L - 1)) - 1).
Loss: cross-entropy after the shared norm and head against what the model said before, at the last layer in every step and
after one layer in `every`, which ones by chance; weights grow with depth: l (l + 1) / 2 times `early`, and for the last layer
L - 1 + `early` (L - 1) (L - 2) / 2, all over their sum. Exits are gone through one after another, so that the logits of one are
in memory.

Letters: `N` rows of a batch, `R` of them that are asked, `d` width, `L` layers, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from outrider.core.base.errors import UsageError
from outrider.core.model.model import TargetModel
from outrider.core.train import lean
from outrider.core.train.decoder import Along, Layer, of_target
from outrider.core.train.parts import soft_loss
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import answering, law, now, publish

from .keys import KEYS

RATE = 0.1  # of the rate: the model is good already


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    exit: int | None = None  # layers that draft; None: a quarter of them
    most: float = 0.1  # chance that the last layer is left out
    early: float = 0.2  # weight of early exits
    every: int = 4  # of so many layers one exits in a step
    rate: float = RATE  # of the rate

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1 or self.early <= 0 or self.every < 1 or self.rate <= 0:
            raise ValueError("most must be from 0 to below 1, early and rate above 0, every at least 1")


class LayerSkipTrainee(nn.Module):
    """A copy of the target."""

    joint = True

    def __init__(self, teacher: Teacher, settings: Settings) -> None:
        super().__init__()
        count = teacher.info.layers
        self.settings, self._teacher = settings, teacher
        self.exit = settings.exit or max(1, round(count / 4))
        if not 1 <= self.exit < count:
            raise UsageError(
                f"The option exit is {self.exit}; {teacher.info.name} has {count} layers.",
                f"Use a number from 1 to {count - 1}.",
            )
        self.states = (count,)
        self.decoder = of_target(teacher)

    def groups(self) -> list[Group]:
        """All of the model."""
        return [Group(list(self.parameters()), self.settings.rate)]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`: one pass with layers left out, then an exit at a time."""
        exits = self.exits(luck)
        rows = answering(batch)
        read = self.residuals(batch, self.left_out(len(batch.texts), luck), [*exits, self._last], rows)
        wanted = law(self._teacher, batch, rows)
        figures: dict[str, float] = {}
        weights = [self.weight(number) for number in (*exits, self._last)]

        def each(states: list[Tensor]) -> Iterator[Tensor]:
            for number, weight, state in zip((*exits, self._last), weights, states, strict=True):
                logits = self.decoder.logits(state)  # [R, V]
                if number in (self.exit - 1, self._last):
                    right = logits.detach().argmax(-1) == wanted.argmax(-1)
                    figures["right_exit" if number != self._last else "right"] = float(right.float().mean())
                yield soft_loss(logits, wanted).mean() * (weight / sum(weights))

        return {"loss": lean.backward(read, each)} | figures

    @property
    def _last(self) -> int:
        return len(self.decoder.model.layers) - 1

    def exits(self, luck: torch.Generator) -> list[int]:
        """Numbers of the layers, from 0, after which this step exits early; never that of the last."""
        first = int(torch.randint(self.settings.every, (), generator=luck))
        return [number for number in range(first, self._last, self.settings.every) if self.weight(number) > 0]

    def weight(self, number: int) -> float:
        """Of the loss after layer `number`, from 0."""
        early = self.settings.early
        if number < self._last:
            return early * number * (number + 1) / 2
        return number + early * number * (number - 1) / 2

    def left_out(self, texts: int, luck: torch.Generator) -> Tensor:
        """Which layers are left out for which text, [L, texts]."""
        last = max(1, self._last)
        chances = [self.settings.most * (math.exp(layer * math.log(2) / last) - 1) for layer in range(last + 1)]
        return torch.rand(last + 1, texts, generator=luck) < torch.tensor(chances)[:, None]

    def residuals(self, batch: Batch, left_out: Tensor, numbers: list[int], rows: Tensor) -> list[Tensor]:
        """Behind the layers of these numbers, of `rows` [R]: [R, d] each."""
        along = Along(batch.texts, batch.ids.device)
        lengths = torch.tensor([text.end - text.start for text in batch.texts])
        x, found = self.decoder.embed(batch.ids), list[Tensor]()
        for number, layer in enumerate(self.decoder.model.layers):
            assert isinstance(layer, Layer)
            skipped = left_out[number]
            if not bool(skipped.all()):
                made = layer(x, along)
                without = skipped.repeat_interleave(lengths).to(x.device)[:, None]  # [N, 1]
                x = torch.where(without, x, made)
            if number in numbers:
                found.append(x[rows])
        return found

    def target_now(self) -> TargetModel:
        """The model with what it has learnt."""
        return now(self.decoder, self._teacher, {KEYS[0]: self.exit})

    def save(self, folder: Path, *, whole: bool) -> None:
        """An ordinary checkpoint, whose config names the exit."""
        publish(self.decoder, self._teacher, folder, {}, {KEYS[0]: self.exit})


class LayerSkipRecipe:
    """Makes models that exit early out of models."""

    settings = Settings
    gradients = True

    def trainee(self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator) -> LayerSkipTrainee:
        """A copy of the target. As `Recipe`."""
        return LayerSkipTrainee(teacher, settings)
