"""What a method brings to have its drafter trained, and what it gets.

A method that can be trained has `recipe`, an instance of `Recipe`. Asking for it loads no torch.

Letters: `N` rows of a batch (the tokens of all its texts, one after another), `R` some of them, `P` states of each, `k` labels,
`d` width of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from outrider.core.model.model import TargetModel

    from .answers import Kept
    from .teacher import Teacher


class Text(NamedTuple):
    """Where one text of a batch is: rows `start` to `end`; `answer` is the first one that the target wrote."""

    start: int
    answer: int
    end: int


class Labels(NamedTuple):
    """What a teacher holds likeliest behind some rows, and how likely that is."""

    ids: Tensor  # [R, k] int64
    logs: Tensor  # [R, k] logarithms of chances, those of all other tokens together are what is left of 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts one after another, without padding. Row i holds a token and the target's states after it has read that."""

    ids: Tensor  # [N] int64
    states: Tensor  # [N, P, d] in the order of `Trainee.states`, in the target's dtype
    texts: tuple[Text, ...]
    labels: Labels | None = None  # of `rows()`, where the trainee makes some and they are kept
    done: float = 0.0  # share of the run's steps that are behind

    def rows(self, ahead: int = 1, behind: int = 0) -> Iterator[range]:
        """For each text the rows from which the token `ahead` rows further is one of the answer, the last `behind` left out."""
        for text in self.texts:
            yield range(max(text.start, text.answer - ahead), max(text.start, text.end - ahead - behind))

    @property
    def answered(self) -> int:
        """Tokens of the answers."""
        return sum(text.end - text.answer for text in self.texts)


class Group(NamedTuple):
    """Parameters that are trained alike."""

    parts: list[nn.Parameter]
    factor: float = 1.0  # of the learning rate
    fresh: bool = False  # they begin with chance, so that matrices among them are trained by Muon


class Trainee(Protocol):
    """A drafter that is being trained: a `torch.nn.Module` with these besides. It may be a `Labeller` too."""

    states: tuple[int, ...]
    """Numbers of the target's states that it learns from, as `drafting.Needs` counts them."""

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """Add the gradients of the mean loss over a batch; returns figures for the log, `loss` among them.

        `luck`: all chance there is.
        """
        ...

    def groups(self) -> list[Group]:
        """What is trained."""
        ...

    def save(self, folder: Path, *, whole: bool) -> None:
        """Write the drafter as its public container; `whole`: also what equals the target's own rows."""
        ...


@runtime_checkable
class Labeller(Protocol):
    """A trainee that wants more kept of each text than states: what a teacher, whichever, says behind its rows."""

    top: int  # labels of a row; 0: it wants none now

    def label(self, text: Kept) -> Labels:
        """Labels of the rows of one text from which a token of its answer is the next one."""
        ...


@runtime_checkable
class Changing(Protocol):
    """A trainee with which the target may learn as well."""

    @property
    def joint(self) -> bool:
        """Whether it does: what comes out is another model, with its drafter or as its own."""
        ...

    def target_now(self) -> TargetModel:
        """That model as it is now. Raises ModelError where the target does not learn."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A trainee that may begin with a drafter that is there."""

    def load(self, folder: Path) -> None:
        """Take over its weights, words and states. Raises ModelError, BrokenFileError; UsageError for one of other options."""
        ...


class Recipe(Protocol):
    """How the drafters of one method are trained."""

    @property
    def settings(self) -> type[msgspec.Struct]:
        """Its own options with their defaults."""
        ...

    @property
    def gradients(self) -> bool:
        """Whether it trains the target itself, or a copy of its layers: weights that are quantised cannot be trained."""
        ...

    def trainee(self, teacher: Teacher, settings: Any, counts: Tensor, luck: torch.Generator) -> Trainee:
        """A fresh drafter. `counts` [V]: how often each token stands in the data, answers four times as heavy.

        Raises ModelError where it cannot be made for this target, UsageError for settings that make no sense.
        """
        ...
