"""Training prediction layers: sequential ones behind the target (DeepSeek-V3, arXiv 2412.19437), or heads in parallel
(arXiv 2404.19737); on the target as it is, or jointly with it.

Jointly: the target's own loss and `share` of the mean loss of all depths.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import Tensor

from outrider.core.train.draft_vocabulary import Words, frequent
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Frozen, Joint

from .ahead import AheadTrainee
from .beside import BesideTrainee, shape


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


class MtpRecipe:
    """Makes prediction layers. Only jointly do gradients pass the target."""

    settings = Settings
    gradients = False

    def trainee(
        self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator
    ) -> AheadTrainee | BesideTrainee:
        """Fresh layers. As `Recipe`."""
        words = Words(teacher, frequent(counts, settings.words))
        make = Joint if settings.joint else Frozen
        if settings.kind == "sequential":
            return AheadTrainee(teacher, settings, make(teacher, words), luck)
        made = shape(teacher, settings)
        return BesideTrainee(teacher, settings, make(teacher, words, (teacher.info.layers - 1,)), made, luck)
