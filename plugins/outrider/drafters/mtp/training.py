"""Training prediction layers: sequential ones behind the target (DeepSeek-V3, arXiv 2412.19437), or heads in parallel
(arXiv 2404.19737); on the target as it is, or jointly with it.

Jointly: the target's own loss and `share` of the mean loss of all depths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.train.draft_vocabulary import Words, frequent
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Frozen, Joint

from .learning import Settings
from .train_parallel import ParallelTrainee, shape
from .train_sequential import SequentialTrainee


class MtpRecipe:
    """Makes prediction layers. Only jointly do gradients pass the target."""

    settings = Settings
    gradients = False

    def trainee(
        self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator
    ) -> SequentialTrainee | ParallelTrainee:
        """Fresh layers. As `Recipe`."""
        words = Words(teacher, frequent(counts, settings.words))
        make = Joint if settings.joint else Frozen
        if settings.kind == "sequential":
            return SequentialTrainee(teacher, settings, make(teacher, words), luck)
        spec = shape(teacher, settings)
        return ParallelTrainee(teacher, settings, make(teacher, words, (teacher.info.layers - 1,)), spec, luck)
