"""One run from prompts to a drafter: answers, states, steps, a measurement. What is done is on disk, and never done twice.

Folder of a run:
    prompts.json             what was to be answered
    plan.json                what is done, settled once
    answers.jsonl            the data
    states.bin, states.json  what the target computed on it; deleted when the run is over
    labels.bin, labels.json  so with what it holds likeliest, for methods that learn from that
    checkpoint.safetensors   where training stands
    log.jsonl                a line for each step
    drafter/                 what came out
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from outrider.core import registry
from outrider.core.engine import Engine, Say
from outrider.core.errors import ModelError, UsageError
from outrider.core.loading import Model
from outrider.core.protocol import Progress, Train, TrainOrder, TrainPrompt

from . import plan as plans
from .answers import Answers, Kept, Manner, answer, from_text
from .loop import Loop, Schedule, in_epoch
from .paper import Acceptance, ride
from .plan import HELD, Plan, Speeds
from .recipe import Labeller, Recipe, Trainee
from .states import States, nbytes
from .teacher import Teacher

PROMPTS = "prompts.json"
KEPT = ("states.bin", "states.json", "labels.bin", "labels.json")  # while the run lasts
LOOKS = 6  # measurements while it trains
LOOKED_AT, MEASURED = 12, 48  # held-out texts of such a one, and of the last
DRAFT = 5  # tokens of a draft in a measurement
TRIED = 64  # prompts that are answered to see how fast that goes
STEP, RATE = 512, 1e-3  # where nothing is said
HEAVY = 4  # how much more a token of an answer counts among words than one of a prompt


class Measured(msgspec.Struct):
    """Acceptance on texts that were not trained on."""

    texts: int
    tokens_per_pass: float
    by_depth: list[float]


class Trained(msgspec.Struct, kw_only=True):
    """What a run came to. Seconds are those of this sitting."""

    method: str
    folder: str
    drafter: str  # its files
    texts: int
    tokens: int  # of answers
    steps: int
    loss: float
    parameters: int
    measured: Measured | None  # None: this method's drafts need more of the target than its states
    seconds: dict[str, float]


def run(engine: Engine, request: Train, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole run, or the rest of it. Raises UsageError, ModelError, Cancelled."""
    return msgspec.to_builtins(Course(engine, request, say, cancelled).run())


class Course:
    """The stages of one run."""

    def __init__(self, engine: Engine, request: Train, say: Say, cancelled: Callable[[], bool]) -> None:
        self._engine, self._request, self._say, self._cancelled = engine, request, say, cancelled
        self.folder = Path(request.order.folder)
        known = plans.read(self.folder)
        if request.resume and known is None and not (self.folder / "answers.jsonl").exists():
            raise UsageError(f"There is no run in {self.folder}.", "Leave --resume out to begin one.")
        if known is not None and not request.resume:
            raise UsageError(f"There is a run in {self.folder} already.", "Go on with --resume, or take another --out.")
        self._known = known
        self.order: TrainOrder = known.order if known is not None else request.order
        self.seconds: dict[str, float] = {}
        self.recipe = _recipe(self.order.method)
        self.settings = _settings(self.recipe, self.order)

    def run(self) -> Trained:
        """All that is left to do."""
        self.folder.mkdir(parents=True, exist_ok=True)
        choice = self._known.model if self._known is not None else self._request.model
        model = self._engine.load(choice, self._request.id, self._say, self._cancelled)
        if self.order.threads:
            torch.set_num_threads(self.order.threads)
        teacher = Teacher(model.talk.target, self.order.longest)
        answers = Answers(self.folder / "answers.jsonl")
        plan = self._planned(model, teacher, answers)
        self._gather(model, plan, answers)
        texts = [text for text in answers.texts() if len(text.ids) - text.first > 1]
        held, taught = texts[::HELD], [text for number, text in enumerate(texts) if number % HELD]
        if not taught:
            raise ModelError("There is too little to learn from.", "Give more prompts, or a longer text.")
        if plan.schedule is None:
            plan.schedule = _schedule(plan, taught)
            plans.write(self.folder, plan)
        trainee = self._trainee(teacher, texts, plan.schedule.seed)
        states = self._states(teacher, taught, trainee, plan)
        loop = Loop(trainee, states, plan.schedule, self.folder)
        self._train(loop, plan.schedule, teacher, held)
        measured = self._measure(trainee, teacher, held[:MEASURED], final=True)
        for name in KEPT:
            (self.folder / name).unlink(missing_ok=True)
        return Trained(
            method=self.order.method,
            folder=str(self.folder),
            drafter=str(self.folder / "drafter"),
            texts=len(texts),
            tokens=sum(len(text.ids) - text.first for text in texts),
            steps=plan.schedule.steps,
            loss=loop.loss,
            parameters=sum(part.numel() for parts, _ in trainee.groups() for part in parts),
            measured=measured,
            seconds={name: round(seconds, 1) for name, seconds in self.seconds.items()},
        )

    # ------------------------------------------------------------------ stages

    def _planned(self, model: Model, teacher: Teacher, answers: Answers) -> Plan:
        order, request = self.order, self._request
        target = plans.of_files(Path(model.talk.target.info.path))
        known = self._known
        if known is not None:
            if known.target != target:
                raise UsageError(
                    f"The run in {self.folder} was begun with another model than {known.model.model} is now.",
                    "Put the model back, or begin a new run.",
                )
            given = plans.of_prompts(request.prompts) if request.prompts else known.source
            if order.text is None and given != known.source:
                raise UsageError(f"The run in {self.folder} was begun with other prompts.", "Give those, or none.")
            return known
        manner = Manner(temperature=order.temperature, greedy=order.greedy, most=order.answer_tokens, seed=order.seed)
        made = Plan(
            order=order,
            model=model.choice,
            target=target,
            source=plans.of_prompts(request.prompts) if order.text is None else str(order.text),
            prompts=min(len(request.prompts), order.answers or len(request.prompts)),
            epochs=order.epochs or plans.EPOCHS,
            manner=manner,
            settings=msgspec.to_builtins(self.settings),
        )
        if order.text is None and not request.prompts:
            raise UsageError("There are no prompts to answer.", "Give --prompts FILE or --text FILE.")
        (self.folder / PROMPTS).write_bytes(msgspec.json.encode(request.prompts))
        if order.budget_s is not None:
            self._fit(made, model, teacher, answers)
        plans.write(self.folder, made)
        return made

    def _fit(self, made: Plan, model: Model, teacher: Teacher, answers: Answers) -> None:
        """Take as much data as the budget is for, by the speeds of this machine."""
        began = time.monotonic()
        self._tell("measuring", 0, 0, "", "how fast this machine is")
        first = dict(enumerate(self._request.prompts[:TRIED]))
        if self.order.text is None:
            before, at = answers.tokens, time.monotonic()
            answer(self._engine, made.model, first, made.manner, answers, (self._heard(len(first)), self._cancelled))
            fresh = answers.tokens - before
            rate = fresh / (time.monotonic() - at) if fresh else 200.0
        else:
            answers.add(from_text(model, Path(self.order.text), self.order.longest))
            rate = math.inf
        texts = [text for text in answers.texts() if len(text.ids) - text.first > 1][:TRIED]
        speeds = Speeds(rate, *self._tried(teacher, texts))
        spent = time.monotonic() - began
        left = max(30.0, (self.order.budget_s or 0.0) - spent - model.loaded.load_s)
        each = answers.tokens / max(1, len(answers.kept))
        if self.order.text is None:
            wanted = TRIED + int(speeds.tokens(left, made.epochs) / max(1.0, each))
            made.prompts = max(min(TRIED, len(self._request.prompts)), min(made.prompts, wanted))
        total = each * (made.prompts if self.order.text is None else len(answers.kept))
        rest = plans.OVERHEAD * left - total / rate - total / speeds.states
        if self.order.epochs is None:
            made.epochs = min(plans.MOST_EPOCHS, max(0.1, rest * speeds.training / max(1.0, total)))
        self.seconds["measuring"] = spent

    def _tried(self, teacher: Teacher, texts: Sequence[Kept]) -> tuple[float, float]:
        """Tokens of answers for each second: of reading states, and of training steps."""
        trainee = self._trainee(teacher, texts, 0)
        at = time.monotonic()
        some = texts[: max(1, len(texts) // 4)]
        for text in some:
            teacher.read(text.ids, trainee.states)
        read = sum(len(text.ids) - text.first for text in some) / (time.monotonic() - at)
        place = self.folder / "trial"
        place.mkdir(exist_ok=True)
        schedule = Schedule(steps=4, tokens=self.order.step_tokens or STEP, seed=1)
        loop = Loop(trainee, States(teacher, texts, trainee.states, None), schedule, place)
        seconds, tokens = loop.timed()
        shutil.rmtree(place)
        return read, tokens / max(1e-3, seconds - tokens / read)

    def _gather(self, model: Model, plan: Plan, answers: Answers) -> None:
        """Answer what is not answered yet, or cut the text up."""
        at = time.monotonic()
        if plan.order.text is not None:
            if not answers.kept:
                answers.add(from_text(model, Path(plan.order.text), plan.order.longest))
        else:
            given = msgspec.json.decode((self.folder / PROMPTS).read_bytes(), type=list[TrainPrompt])
            wanted = dict(enumerate(given[: plan.prompts]))
            answer(self._engine, plan.model, wanted, plan.manner, answers, (self._heard(len(wanted)), self._cancelled))
        self.seconds["answers"] = time.monotonic() - at

    def _states(self, teacher: Teacher, texts: Sequence[Kept], trainee: Trainee, plan: Plan) -> States:
        """The target's states on all texts, kept on disk where that is wanted and there is room."""
        at = time.monotonic()
        labeller = trainee if isinstance(trainee, Labeller) else None
        size = nbytes(teacher, texts, trainee.states, labeller.top if labeller is not None else 0)
        file = self.folder / "states.bin" if plan.order.cache and size else None
        states = States(teacher, texts, trainee.states, file, labeller)
        note = f"{size / 1e9:.1f} GB on disk"

        def tell(done: int, total: int) -> None:
            self._tell("states", done, total, "tokens", note)

        states.prepare(f"{plan.target} {len(texts)}", tell, self._cancelled)
        self.seconds["states"] = time.monotonic() - at
        return states

    def _train(self, loop: Loop, schedule: Schedule, teacher: Teacher, held: Sequence[Kept]) -> None:
        at, every = time.monotonic(), max(1, schedule.steps // LOOKS)

        def tell(step: int, figures: Mapping[str, float]) -> None:
            self._tell("training", step, schedule.steps, "steps", "", dict(figures))

        def looks(step: int) -> Mapping[str, float]:
            if step % every or step == schedule.steps:
                return {}
            found = self._measure(loop.trainee, teacher, held[:LOOKED_AT], final=False)
            return {} if found is None else {"tokens_per_pass": found.tokens_per_pass}

        loop.run(tell, self._cancelled, looks)
        self.seconds["training"] = time.monotonic() - at

    def _measure(self, trainee: Trainee, teacher: Teacher, texts: Sequence[Kept], *, final: bool) -> Measured | None:
        """Acceptance of what the files hold, read back as any drafter is."""
        at = time.monotonic()
        folder = self.folder / ("drafter" if final else "drafter.part")
        trainee.save(folder, whole=False)
        rider = registry.load(self.order.method, teacher.target, {"weights": str(folder)}, _raise)
        try:
            if rider.needs.early or rider.needs.kv:
                return None
            found: Acceptance = ride(rider, teacher, texts, DRAFT, self._cancelled)
        finally:
            rider.close()
            if not final:
                shutil.rmtree(folder)
        self.seconds["measuring"] = self.seconds.get("measuring", 0.0) + time.monotonic() - at
        shares = [round(share, 4) for share in found.by_depth]
        return Measured(len(texts), round(found.per_pass, 4), shares)

    # ------------------------------------------------------------------ pieces

    def _trainee(self, teacher: Teacher, texts: Sequence[Kept], seed: int) -> Trainee:
        luck = torch.Generator().manual_seed(seed)
        return self.recipe.trainee(teacher, self.settings, _counts(texts, teacher.info.vocab), luck)

    def _heard(self, total: int) -> Callable[[int, int], None]:
        def heard(done: int, tokens: int) -> None:
            self._tell("answers", done, total, "answers", f"{tokens:,} tokens")

        return heard

    def _tell(
        self, phase: str, done: float, total: float, unit: str, note: str = "", figures: dict[str, float] | None = None
    ) -> None:
        self._say(Progress(self._request.id, phase, done, total, unit, note, figures or {}))


def _raise(text: str) -> None:
    raise ModelError(f"What was trained cannot be read back: {text}", "Please report it.")


def _recipe(method: str) -> Recipe:
    entry = registry.named(method)
    recipe = getattr(registry.method(entry), "recipe", None)
    if recipe is None:
        names = [one.name for one in registry.entries() if hasattr(registry.method(one), "recipe")]
        raise UsageError(f"The method {method} has nothing to train.", f"These have: {', '.join(names)}.")
    return recipe


def _settings(recipe: Recipe, order: TrainOrder) -> msgspec.Struct:
    """The method's options as it means them. Raises UsageError naming what is wrong, and what there is."""
    known = {field.name: field for field in msgspec.structs.fields(recipe.settings)}
    strange = sorted(set(order.options) - set(known))
    if strange:
        raise UsageError(f"{order.method} has no option {strange[0]}.", f"It has: {', '.join(known)}.")
    told: dict[str, object] = {
        name: value.split(",") if "," in value else value for name, value in order.options.items()
    }
    try:
        return msgspec.convert(told, recipe.settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"The options of {order.method}: {error}.", "See `outrider train --help`.") from error


def _schedule(plan: Plan, texts: Sequence[Kept]) -> Schedule:
    """The steps of a run whose data is there."""
    order = plan.order
    lengths = [len(text.ids) - text.first for text in texts]
    tokens = order.step_tokens or STEP
    steps = max(1, round(plan.epochs * in_epoch(lengths, tokens, order.seed)))
    return Schedule(
        steps=steps,
        tokens=tokens,
        rate=order.rate or RATE,
        warm=min(100, max(1, steps // 20)),
        seed=order.seed,
        threads=torch.get_num_threads(),
    )


def _counts(texts: Sequence[Kept], vocab: int) -> torch.Tensor:
    """How often each token stands in the data [V], answers weighing more."""
    every = torch.tensor([token for text in texts for token in text.ids])
    answers = torch.tensor([token for text in texts for token in text.ids[text.first :]])
    count = torch.bincount(every, minlength=vocab) + (HEAVY - 1) * torch.bincount(answers, minlength=vocab)
    return count[:vocab]
