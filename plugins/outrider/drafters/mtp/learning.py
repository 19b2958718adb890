"""What the training of both kinds of prediction layers shares: who learns at which rate, and how losses are summed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from torch import Tensor, nn

from outrider.core.base.errors import ModelError
from outrider.core.train.draft_vocabulary import Said
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.teacher_in_training import Frozen, Joint

if TYPE_CHECKING:
    from outrider.core.model.model import TargetModel


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    kind: Literal["sequential", "parallel"] = "sequential"
    depths: int = 3  # tokens that are guessed
    words: int = 16384  # that the loss looks at; 0: all
    decay: float = 1.0  # of the weight of each further depth
    first: float = (
        0.5  # share of the steps in which the first of sequential layers learns alone; the others begin as copies
    )
    width: int | None = None  # of the MLPs of parallel heads; None: the target's
    joint: bool = False  # the target learns as well
    share: float = 0.3  # of the drafts' loss, jointly
    rate: float = 0.1  # of the rate, for the target's own weights

    def __post_init__(self) -> None:
        if not 1 <= self.depths <= 16 or not 0 < self.decay <= 1 or self.words < 0 or not 0 <= self.first < 1:
            raise ValueError(
                "depths must be from 1 to 16, decay above 0 up to 1, words 0 or more, first from 0 to below 1"
            )
        if self.share <= 0 or self.rate <= 0:
            raise ValueError("share and rate must be above 0")


class Learner(nn.Module):
    """A trainee on some ground."""

    def __init__(self, settings: Settings, ground: Frozen | Joint) -> None:
        super().__init__()
        self.settings, self.ground = settings, ground
        self.states = ground.states

    def groups(self) -> list[Group]:
        """The layers, and jointly the target's weights at a rate of their own."""
        layers = [part for name, part in self.named_parameters() if not name.startswith("ground.")]
        own = list(self.ground.parameters())
        return [Group(layers, fresh=True), *([Group(own, self.settings.rate)] if own else [])]

    @property
    def joint(self) -> bool:
        """Whether the target learns as well."""
        return isinstance(self.ground, Joint)

    def target_now(self) -> TargetModel:
        """The target with what it has learnt. Raises ModelError where it stays as it is."""
        if not isinstance(self.ground, Joint):
            raise ModelError("The target does not learn in this run.")
        return self.ground.now()


class Losses:
    """The losses of one batch, each with its weight; figures for the log."""

    def __init__(self, settings: Settings, ground: Frozen | Joint, depths: int) -> None:
        self._settings, self._ground = settings, ground
        weights = [settings.decay**depth for depth in range(depths)]
        share = settings.share if isinstance(ground, Joint) else 1.0
        self._weights = [share * weight / sum(weights) for weight in weights]
        self.figures: dict[str, float] = {}

    def each(self, batch: Batch, last: Tensor, depths: Iterable[tuple[int, Said, Tensor]]) -> Iterator[Tensor]:
        """One after another: the target's own, if it learns; of each depth, from what its head reads [R, d]."""
        if isinstance(self._ground, Joint):
            own = self._ground.loss(batch, last)
            self.figures["loss_target"] = float(own.detach())
            yield own
        for depth, said, x in depths:
            logits = self._ground.logits(x)  # [R, n]
            self.figures[f"right_{depth + 1}"] = said.right(logits)
            yield said.loss(logits) * self._weights[depth]

    def report(self, loss: float) -> Mapping[str, float]:
        """What is written down."""
        return {"loss": loss} | self.figures
