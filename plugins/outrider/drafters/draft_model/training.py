"""Distilling a draft model: a student of the target, made of parts of it or fresh, learns its laws.

Offline: on the target's own answers, from laws that are read off its last states, or off the likeliest tokens that were kept of
each. Behind that, if wanted, on-policy (Agarwal et al., arXiv 2306.13649; Zhou et al., arXiv 2310.08461): the student answers
the prompts of a batch itself, and the target says what it would have said at every place. Online: the target is trained along.

Loss of a row: alpha times the divergence of the softened laws (or the distance of logits), 1 - alpha times the cross-entropy of
the token that is there; on the student's own answers the first alone. Logits of few rows are in memory at a time.

Letters: `N` rows of a batch, `R` of them that are asked, `d` width of the target, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.model import TargetModel
from outrider.core.train import decoder as decoders
from outrider.core.train import lean, sampled
from outrider.core.train.answers import Kept
from outrider.core.train.decoder import Decoder
from outrider.core.train.parts import wide
from outrider.core.train.recipe import Batch, Group, Labels, Text
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import answering, now

from . import losses
from .student import Size, Student, from_config, smaller
from .teaching import Teachers

SLICE = 256  # rows whose logits are in memory at a time


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    config: str | None = None  # of a fresh student; None: it is made of parts of the target
    layers: int = 0  # of the student, evenly chosen; 0: every third
    heads: int = 0  # of keys and values that are kept; 0: all
    width: int = 0  # of its stream; 0: the target's
    inner: int = 0  # neurons of each MLP that are kept; 0: all
    tied: bool = False  # one table for input and output, where the target has two
    frozen: bool = False  # its tables stay as they are
    loss: Literal["kl", "mse"] = "kl"
    temperature: float = 1.0
    alpha: float = 0.9  # of what the target says; the rest is the text's
    top: int = 0  # likeliest tokens of each row that are kept on disk; 0: last states are, and whole laws are learnt
    own: float = 0.0  # share of the batches, behind `offline`, that the student answers itself
    offline: float = 0.5  # share of the steps before that
    own_tokens: int = 64  # of its own answers
    match: float = 0.0  # weight of states that are to be alike
    matched: int = 2  # so many of them
    teachers: tuple[str, ...] | str = ()  # models that teach beside the target
    shares: tuple[float, ...] | float = ()  # of their laws, the target's first
    online: float = 0.0  # factor of the rate at which the target is trained along; 0: it stays

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.width, self.inner, self.top, self.matched, self.match, self.online) < 0:
            raise ValueError("numbers must be 0 or more")
        if not all(0 <= share <= 1 for share in (self.alpha, self.own, self.offline)):
            raise ValueError("alpha, own and offline must be from 0 to 1")
        if self.temperature <= 0 or self.own_tokens < 1:
            raise ValueError("temperature must be above 0, own_tokens 1 or more")
        if self.config is not None and (self.layers or self.heads or self.width or self.inner):
            raise ValueError("the size of a student is either in its config or in layers, heads, width and inner")
        if self.online and (self.top or self.own or self.teachers):
            raise ValueError("with online the target changes, and top, own and teachers cannot be used")


class DraftTrainee(nn.Module):
    """The student, with what it is taught by."""

    def __init__(self, student: Student, teachers: Teachers, settings: Settings, target: Decoder | None) -> None:
        super().__init__()
        self.student, self.target, self.settings = student.decoder, target, settings
        self.teachers, self._teacher = teachers, teachers.target
        self._pairs = _paired(student.layers, settings.matched if settings.match else 0)
        self.projections = nn.ModuleList(_projection(student, self._teacher) for _ in self._pairs)
        if settings.frozen:
            for table in (self.student.model.embed_tokens.weight, self.student.table):
                table.requires_grad_(False)
        # numbers of all states that could be learnt from: those that are to be alike, and the last
        self.needs = (*(theirs for _, theirs in self._pairs), self._teacher.info.layers)
        self.top = settings.top
        self.states = () if target is not None else self.needs[:-1] if self.top else self.needs

    def groups(self) -> list[Group]:
        """All of the student alike; the target at a rate of its own, where it is trained."""
        own = [part for parts in (self.student, self.projections) for part in parts.parameters() if part.requires_grad]
        target = [] if self.target is None else [Group(list(self.target.parameters()), self.settings.online)]
        return [Group(own), *target]

    def label(self, text: Kept) -> Labels:
        """As `Labeller`."""
        ids = torch.tensor(text.ids, device=self._teacher.device)
        alone = (Text(0, text.first, len(text.ids)),)
        batch = Batch(ids, self._teacher.read(text.ids, ()), alone)
        return self.teachers.labels(batch, self.top, self.settings.temperature)

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`: a pass over the batch, or over what the student answers to its prompts; then logits slice by slice."""
        drawn = float(torch.rand((), generator=luck))
        own = batch.done >= self.settings.offline and drawn < self.settings.own
        if own:
            batch = self._answered(batch, luck)
        places = answering(batch)
        if not len(places):
            return {"loss": 0.0}
        ours = self.student(batch.ids, batch.texts, [mine for mine, _ in self._pairs])
        theirs = None if self.target is None else self.target(batch.ids, batch.texts, self.needs[:-1])
        wanted = batch.states[:, : len(self._pairs)].unbind(1) if theirs is None else theirs.kept
        lesson = _Lesson(self, batch, places, 1.0 if own else self.settings.alpha)
        live = [] if theirs is None else [theirs.last[places]]
        states = [ours.last[places], *live, *ours.kept]
        lesson.figures["loss"] = lean.backward(
            states, lambda leaves: lesson.losses(leaves, [state.detach() for state in wanted])
        )
        return lesson.figures | ({"own": float(own)} if self.settings.own else {})

    @property
    def joint(self) -> bool:
        """As `Changing`."""
        return self.target is not None

    def target_now(self) -> TargetModel:
        """As `Changing`."""
        if self.target is None:
            raise ModelError("The target stays as it is.", "Set online to let it learn.")
        return now(self.target, self._teacher)

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        decoder = decoders.read(folder)
        if decoder.spec != self.student.spec:
            raise UsageError(
                f"{folder} is of another size than this student.", "Give the options that it was made with."
            )
        self.student.load_state_dict(decoder.state_dict())

    def save(self, folder: Path, *, whole: bool) -> None:
        """As a checkpoint of its family, in bf16, whole in any case; the target that was trained along is in `target/`."""
        path = self._teacher.info.path
        text = Path(path) if path else None
        self.student.save(folder, text)
        if self.target is not None:
            self.target.save(folder / "target", text)

    @torch.no_grad()
    def _answered(self, batch: Batch, luck: torch.Generator) -> Batch:
        """The prompts of a batch with answers of the student's own, and what the target makes of them."""
        teacher = self._teacher
        prompts = [batch.ids[text.start : max(text.answer, text.start + 1)].tolist() for text in batch.texts]
        longest = max(map(len, prompts))
        most = min(self.settings.own_tokens, teacher.longest - longest)
        if most < 2:
            return batch
        with torch.autocast(batch.ids.device.type, enabled=False):
            model = sampled.engine(self.student, WeightFormat(teacher.dtype, teacher.device), longest + most)
            answers = sampled.sample(model, prompts, most, _ends(teacher), luck)
            texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
            states = torch.cat([teacher.read(ids, self.needs) for ids in texts])
        at, made = 0, list[Text]()
        for prompt, ids in zip(prompts, texts, strict=True):
            made.append(Text(at, at + len(prompt), at + len(ids)))
            at += len(ids)
        ids = torch.tensor([token for text in texts for token in text], device=teacher.device)
        return Batch(ids, states, tuple(made), None, batch.done)


class _Lesson:
    """What is learnt from one batch, a slice of its asked rows at a time."""

    def __init__(self, trainee: DraftTrainee, batch: Batch, places: Tensor, alpha: float) -> None:
        self._trainee, self._labels, self._alpha = trainee, batch.labels, alpha
        self._next = batch.ids[places + 1]  # [R]
        self._lasts: list[Tensor] = []  # [R, d] of each teacher
        self.figures: dict[str, float] = {"loss": 0.0, "soft": 0.0, "hard": 0.0, "right": 0.0}
        if self._labels is None and trainee.target is None:
            own = batch.states[places, -1] if batch.states.shape[1] == len(trainee.needs) else None
            with torch.autocast(batch.ids.device.type, enabled=False):
                self._lasts = trainee.teachers.lasts(batch, own)

    def losses(self, leaves: Sequence[Tensor], wanted: Sequence[Tensor]) -> Iterator[Tensor]:
        """One loss after another, their sum being the loss of the batch.

        `leaves`: last states [R, d] of the student, and of the target if it is trained; then states [N, d] of the student
        that should be `wanted` ones.
        """
        trainee, total = self._trainee, len(self._next)
        split = 1 if trainee.target is None else 2
        for low, high in pairwise([*range(0, total, SLICE), total]):
            yield self._of(leaves[:split], slice(low, high)) / total
        every = list(zip(trainee.projections, leaves[split:], wanted, strict=True))
        if every:
            apart = torch.stack([losses.mismatch(project(mine), theirs) for project, mine, theirs in every]).mean()
            self.figures["match"] = float(apart.detach())
            yield trainee.settings.match * apart

    def _of(self, lasts: Sequence[Tensor], rows: slice) -> Tensor:
        """The loss of a slice, summed."""
        trainee, ids, total = self._trainee, self._next[rows], len(self._next)
        said = self._said(lasts[1:], rows)
        logits = trainee.student.logits(lasts[0][rows])  # [R, V]
        learnt = said if isinstance(said, Labels) else said.detach()
        soft = self._soft(logits, learnt).sum()
        hard = F.cross_entropy(wide(logits), ids, reduction="sum")
        best = learnt.ids[:, 0] if isinstance(learnt, Labels) else learnt.argmax(-1)
        for name, value in (("soft", soft), ("hard", hard), ("right", (logits.argmax(-1) == best).sum())):
            self.figures[name] += float(value.detach()) / total
        loss = self._alpha * soft + (1 - self._alpha) * hard
        if trainee.target is None or isinstance(said, Labels):
            return loss
        return loss + F.cross_entropy(wide(said), ids, reduction="sum")

    def _said(self, live: Sequence[Tensor], rows: slice) -> Labels | Tensor:
        """What is learnt there: labels, or logits [R, V], which have gradients where the target is trained."""
        if self._labels is not None:
            return Labels(self._labels.ids[rows], self._labels.logs[rows])
        if self._trainee.target is not None:
            return self._trainee.target.logits(live[0][rows])
        with torch.autocast(self._lasts[0].device.type, enabled=False):
            return self._trainee.teachers.logits([last[rows] for last in self._lasts])

    def _soft(self, logits: Tensor, said: Labels | Tensor) -> Tensor:
        """The loss of soft labels, [R]."""
        settings = self._trainee.settings
        if isinstance(said, Labels):
            of = losses.divergence_of_labels if settings.loss == "kl" else losses.distance_of_labels
            return of(logits, said, settings.temperature)
        if settings.loss == "mse":
            return losses.distance(logits, said)
        return losses.divergence(logits, said, settings.temperature)


class DraftRecipe:
    """Distils draft models; the target stays as it is, unless it is trained along."""

    settings = Settings
    gradients = False

    def trainee(self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator) -> DraftTrainee:
        """A student. As `Recipe`; ModelError where parts of this target make none, or it cannot be trained along."""
        others = (settings.teachers,) if isinstance(settings.teachers, str) else settings.teachers
        shares = settings.shares if isinstance(settings.shares, tuple) else (settings.shares,)
        target = decoders.of_target(teacher) if settings.online else None
        if settings.config is not None:
            student = from_config(Path(settings.config), teacher, luck)
        else:
            size = Size(settings.layers, settings.heads, settings.width, settings.inner, settings.tied)
            student = _smaller(teacher, size, counts)
        teachers = Teachers(teacher, others, shares)
        return DraftTrainee(student, teachers, settings, target).to(teacher.device)


def _smaller(teacher: Teacher, size: Size, counts: Tensor) -> Student:
    try:
        return smaller(teacher, size, counts)
    except ModelError as error:
        hint = "A student from a config can learn from it all the same: --option config=FILE."
        raise ModelError(error.message, hint) from error


def _paired(layers: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Numbers of states, the student's and the target's, that are to be alike: behind layers that stand for each other."""
    places = {round((at + 1) * (len(layers) - 1) / (count + 1)) for at in range(count)}
    return [(place + 1, layers[place] + 1) for place in sorted(places)]


def _projection(student: Student, teacher: Teacher) -> nn.Linear:
    """From the student's stream into the target's; at first where it came from."""
    layer = nn.Linear(student.decoder.spec.width, teacher.info.width, bias=False)
    nn.init.eye_(layer.weight)
    if student.basis is not None:
        with torch.no_grad():
            layer.weight.copy_(student.basis)
    return layer


def _ends(teacher: Teacher) -> set[int]:
    """Tokens that end an answer, as its config says."""
    told: Any = teacher.info.config.get("eos_token_id")
    return set(told) if isinstance(told, list) else {told} if isinstance(told, int) else set()
