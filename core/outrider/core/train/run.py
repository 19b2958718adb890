"""One run from prompts to a drafter: answers, states, steps, a measurement. What is done is on disk, and never done twice.

Folder of a run:
    prompts.json             what was to be answered
    plan.json                what is done, settled once
    answers.jsonl            the data
    states.bin, states.json  what the target computed on it; deleted when the run is over
    labels.bin, labels.json  so with what it holds likeliest, for methods that learn from that
    checkpoint.safetensors   where training stands
    log.jsonl                a line for each step
    seconds.json             what the stages took
    drafter/                 what came out, with its card
    result.json              what is told at the end
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import torch

from outrider.core.base.errors import ModelError, OutriderError, UsageError
from outrider.core.base.protocol import ModelChoice, Notice, Progress, Train, TrainExport, TrainOrder, TrainPrompt
from outrider.core.drafting import registry
from outrider.core.library import discovery, drafter_card
from outrider.core.library.drafter_card import Measured
from outrider.core.library.library import resolve
from outrider.core.library.locks import lock
from outrider.core.session.calibration import ALL_THREADS
from outrider.core.session.engine import Engine, Say
from outrider.core.session.loading import Model

from . import follow_up, outcome, resources
from . import plan as plans
from .answers import TURNS, Answers, Hooks, Kept, Manner, answer, cut, read_texts, turns
from .follow_up import DATA, PROMPTS
from .loop import Loop, Schedule, there
from .offline_acceptance import Acceptance, measure_acceptance
from .outcome import Trained
from .plan import Plan, Speeds
from .recipe import Changing, Trainee
from .run_settings import (
    STEP,
    between,
    counts_of,
    labeller_of,
    learnt,
    parted,
    recipe_of,
    schedule_of,
    settings_of,
    words_of,
)
from .states import States, nbytes
from .teacher import Teacher

SECONDS, RESULT = "seconds.json", "result.json"
DRAFTER = "drafter"
KEPT = ("states.bin", "states.json", "labels.bin", "labels.json")  # while the run lasts
LOOKS = 6  # measurements while it trains
LOOKED_AT, MEASURED = (2, 12), (8, 48)  # held-out texts of such a one, and of the last: at least and at most
LOOKING = 0.05  # share of a budget for each of both
DRAFT = 5  # tokens of a draft in a measurement
TRIED = (16, 48)  # prompts that are answered to see how fast that goes: at first, and then
TRYING = 0.1  # share of a budget that the latter may take
LETTERS = 3  # of a token, at least, in a prompt that was not read yet


def run(engine: Engine, request: Train, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole run, or the rest of it. Raises UsageError, ModelError, Cancelled."""
    course = Course(engine, request, say, cancelled)
    fresh = not course.folder.exists()
    try:
        with resources.writing(course.folder):
            course.folder.mkdir(parents=True, exist_ok=True)
            with lock(course.folder / ".lock", _busy(course.folder)):
                return msgspec.to_builtins(course.run())
    except BaseException as error:
        begun = DATA if isinstance(error, UsageError) else plans.FILE  # with other options the plan is another one too
        if fresh and not (course.folder / begun).exists():  # there is nothing that --resume could continue with
            shutil.rmtree(course.folder, ignore_errors=True)
        raise


def export(engine: Engine, request: TrainExport, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Write the drafter of a run as it stands to a folder; `whole`: with all that equals the target's own weights.

    Raises UsageError, ModelError.
    """
    order = TrainOrder(method="", folder=request.folder)
    to = Path(request.to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is there already.", "Name a new folder with --to.")
    course = Course(engine, Train(id=request.id, order=order, resume=True), say, cancelled)
    with resources.writing(to):
        course.export(to, whole=request.whole)
    return {"folder": str(to), "files": sorted(one.name for one in to.iterdir()), "whole": request.whole}


class Course:
    """The stages of one run."""

    def __init__(self, engine: Engine, request: Train, say: Say, cancelled: Callable[[], bool]) -> None:
        self._engine, self._request, self._say, self._cancelled = engine, request, say, cancelled
        self.folder = Path(request.order.folder)
        known = plans.read(self.folder)
        if request.resume and known is None:
            raise UsageError(f"There is no run in {self.folder}.", "Leave --resume out to begin one.")
        if known is not None and not request.resume:
            raise UsageError(f"There is a run in {self.folder} already.", "Go on with --resume, or take another --out.")
        asked = request.order
        if known is not None and asked.method and asked.method != known.order.method:
            raise UsageError(
                f"The run in {self.folder} trains {known.order.method}, not {asked.method}.",
                f"Go on with `outrider train {known.order.method} --resume {self.folder}`.",
            )
        self._known = known
        self.order: TrainOrder = known.order if known is not None else asked
        self._cache = asked.cache and self.order.cache  # what is learnt does not depend on it
        self.recipe = recipe_of(self.order.method)
        self.settings = settings_of(self.recipe, self.order)
        self._texts = self._read_texts()
        if known is None and self.order.answers_of is not None:
            request.prompts = follow_up.prompts(self.order)
        if known is None and self.order.text is None and not request.prompts:
            raise UsageError("There are no prompts to answer.", "Give --prompts FILE or --text FILE.")

    def run(self) -> Trained:
        """All that is left to do."""
        done = self.folder / RESULT
        if done.exists() and self._known is not None:
            self._check_same(self._known)
            return msgspec.json.decode(done.read_bytes(), type=Trained)
        model, teacher = self._loaded()
        plan = self._known or self._begun(model, teacher)
        with resources.threads(plan.threads):
            made = self._made_of(plan, model, teacher)
        done.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1))
        return made

    def _made_of(self, plan: Plan, model: Model, teacher: Teacher) -> Trained:
        answers = Answers(self.folder / DATA)
        begins = self._known is None or not plan.settled
        size = resources.size(self._made(teacher, torch.ones(teacher.info.vocab, dtype=torch.int64), 0))
        needed = resources.check(teacher, size, self.order.step_tokens or STEP)
        if not plan.settled:
            with self._timed("measuring"):
                self._fit(plan, model, teacher, answers)
        if begins:
            disk = resources.check_disk(self.folder, self._expected(plan), teacher, size, cache=self._cache)
            self._say(Notice(resources.needs_text(needed, disk), self._request.id, "info"))
        self._gather(model, plan, answers)
        texts = plan.taken(answers.texts())
        held, taught = parted(texts)
        if not taught:
            raise ModelError("There is too little to learn from.", "Give more prompts, or a longer text.")
        if plan.schedule is None:
            plan.schedule = schedule_of(plan, taught)
            plans.write(self.folder, plan)
        trainee = self._trainee(teacher, texts, plan.schedule.seed)
        loop = Loop(trainee, self._states(teacher, taught, trainee, plan), plan.schedule, self.folder)
        self._train(loop, plan, teacher, held)
        made = self._finished(model, teacher, plan, loop, (texts, held))
        for name in KEPT:
            (self.folder / name).unlink(missing_ok=True)
        return made

    def export(self, folder: Path, *, whole: bool) -> None:
        """Write the drafter as the newest checkpoint has it."""
        plan = self._known
        assert plan is not None
        _, teacher = self._loaded()
        texts = plan.taken(Answers(self.folder / DATA).texts())
        if plan.schedule is None or not (self.folder / "checkpoint.safetensors").exists():
            raise UsageError(f"The run in {self.folder} has trained nothing yet.", "Go on with it: --resume.")
        trainee = self._trainee(teacher, texts, plan.schedule.seed)
        Loop(trainee, States(teacher, [], trainee.states, None), plan.schedule, self.folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        trainee.save(folder, whole=whole)
        card = drafter_card.read(self.folder / DRAFTER)
        if card is not None:
            drafter_card.write(folder, card)

    # ------------------------------------------------------------------ beginning

    def _read_texts(self) -> list[str] | None:
        """The text that is learnt from, unless it is cut up already. Raises UsageError if it is another one than before."""
        given = self._request.order.text or self.order.text
        if self.order.text is None or given is None:
            if self._request.order.text is not None:
                raise UsageError(f"The run in {self.folder} learns from answers, not from a text.", "Leave --text out.")
            return None
        known = self._known
        if known is not None and self._request.order.text is None and (self.folder / DATA).exists():
            return None
        texts = read_texts(Path(given))
        if known is not None and plans.of_texts(texts) != known.source:
            raise UsageError(f"The run in {self.folder} was begun with another text.", "Give that one, or none.")
        return texts

    def _loaded(self) -> tuple[Model, Teacher]:
        known, asked = self._known, self._request.model or ModelChoice()
        if known is not None:
            self._check_same(known)
        choice = known.model if known is not None else asked
        model = self._engine.load(choice, self._request.id, self._say, self._cancelled)
        if model.cache.target.exact:
            raise UsageError("Exact mode is not for training.", "Leave --exact out.")
        return model, Teacher(model.cache.target, self.order.longest)

    def _check_same(self, known: Plan) -> None:
        """Raises UsageError if model or prompts are not those that the run was begun with."""
        request = self._request
        names = {known.model.model, request.model.model if request.model is not None else known.model.model}
        for name in sorted(names):
            if drafter_card.fingerprint(resolve(name, cancelled=self._cancelled)) != known.target:
                raise UsageError(
                    f"The run in {self.folder} was begun with another model than {name} is now.",
                    "Put the model back, or begin a new run.",
                )
        if request.prompts and (known.order.text is not None or plans.of_prompts(request.prompts) != known.source):
            raise UsageError(f"The run in {self.folder} was begun with other prompts.", "Give those, or none.")

    def _begun(self, model: Model, teacher: Teacher) -> Plan:
        order, prompts = self.order, self._request.prompts
        if self._texts is None and model.tokenizer.template is None and any(one.messages for one in prompts):
            raise UsageError(
                f"{model.choice.model} has no chat template, so it cannot answer prompts.",
                "Give --text FILE to learn from a text.",
            )
        manner = Manner(
            temperature=order.temperature,
            greedy=order.greedy,
            most=order.answer_tokens,
            longest=teacher.longest,
            seed=order.seed,
        )
        plan = Plan(
            order=order,
            model=model.choice,
            target=drafter_card.fingerprint(Path(model.cache.target.info.path)),
            source=plans.of_prompts(prompts) if self._texts is None else plans.of_texts(self._texts),
            prompts=min(len(prompts), order.answers or len(prompts)),
            epochs=order.epochs or plans.EPOCHS,
            manner=manner,
            threads=order.threads or ALL_THREADS,
            settled=order.budget_s is None,
            settings=msgspec.to_builtins(self.settings),
        )
        (self.folder / PROMPTS).write_bytes(msgspec.json.encode(prompts))
        follow_up.keep(order, self.folder)
        follow_up.take(plan, self.folder)
        plans.write(self.folder, plan)
        return plan

    def _expected(self, plan: Plan) -> int:
        """Tokens of all texts, at most."""
        if self._texts is not None:
            return sum(map(len, self._texts)) // LETTERS
        given = self._prompts()[: plan.prompts]
        longest, most = plan.manner.longest, plan.manner.most
        return sum(min(longest, len(words_of(one)) // LETTERS + most * (one.messages is not None)) for one in given)

    def _fit(self, made: Plan, model: Model, teacher: Teacher, answers: Answers) -> None:
        """Take as much data as the budget is for, by the speeds of this machine."""
        began = time.monotonic()
        self._tell("measuring", 0, 0, "", "how fast this machine is")
        rate = math.inf if self.order.text is not None else self._answer_some(made, answers)
        if self._texts is not None and not answers.kept:
            answers.add(cut(model, self._texts, made.manner.longest))
        texts = answers.texts()[: sum(TRIED)]
        if not texts:
            raise ModelError("There is too little to learn from.", "Give more prompts, or a longer text.")
        speeds, ride_s = self._tried(teacher, texts, rate)
        left = max(30.0, (self.order.budget_s or 0.0) - (time.monotonic() - began) - model.loaded.load_s)
        made.looked = between(LOOKING * left / LOOKS / ride_s, LOOKED_AT)
        made.measured = between(LOOKING * left / ride_s, MEASURED)
        left = max(20.0, left - ride_s * (LOOKS * made.looked + made.measured))
        done = len({number // TURNS for number in answers.kept})
        plans.divide(made, speeds, left, plans.Data(made.prompts or done, done, answers.tokens))
        made.settled = True
        plans.write(self.folder, made)

    def _answer_some(self, made: Plan, answers: Answers) -> float:
        """Answer a few prompts, and some more where that is not long for the budget; tokens a second of the last ones."""
        given, rate, began = self._prompts()[: made.prompts], math.inf, time.monotonic()
        for count in TRIED:
            fresh = [number for number in range(len(given)) if number * TURNS not in answers.kept][:count]
            if not fresh or count / TRIED[0] * (time.monotonic() - began) > TRYING * (self.order.budget_s or 0.0):
                break
            before, at, some = answers.tokens, time.monotonic(), {number: given[number] for number in fresh}
            answer(self._engine, made.model, some, made.manner, answers, self._hooks(some, len(answers.kept)))
            rate = max(1, answers.tokens - before) / (time.monotonic() - at)
        return rate

    def _tried(self, teacher: Teacher, texts: Sequence[Kept], rate: float) -> tuple[Speeds, float]:
        """Tokens of answers for each second of reading states and of training steps; seconds of measuring a text."""
        self._tell("measuring", 0, 0, "", "how fast it trains")
        trainee = self._trainee(teacher, texts, 0)
        place = self.folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        step = self.order.step_tokens or STEP
        some = texts[
            : next((n for n, size in enumerate(accumulate(map(learnt, texts)), 1) if size > 3 * step), len(texts))
        ]
        states = States(teacher, some, trainee.states, place / "states.bin", labeller_of(trainee))
        at = time.monotonic()
        states.prepare("trial", lambda *_: None, self._cancelled)
        read = sum(map(learnt, some)) / max(1e-3, time.monotonic() - at)
        seconds, tokens = Loop(trainee, states, Schedule(steps=3, tokens=step, seed=1), place).timed()
        at = time.monotonic()
        self._measure(trainee, teacher, texts[:1], place / "drafter")
        ride_s = max(1e-3, time.monotonic() - at)
        shutil.rmtree(place)
        steps = tokens / max(1e-3, seconds)
        return Speeds(rate, read, steps) if self._cache else Speeds(rate, math.inf, 1 / (1 / steps + 1 / read)), ride_s

    # ------------------------------------------------------------------ stages

    def _gather(self, model: Model, plan: Plan, answers: Answers) -> None:
        """Answer what is not answered yet, or cut the text up."""
        with self._timed("answers"):
            if plan.order.text is None:
                wanted = dict(enumerate(self._prompts()[: plan.prompts]))
                answer(self._engine, plan.model, wanted, plan.manner, answers, self._hooks(wanted))
            elif self._texts is not None and not answers.kept:
                answers.add(cut(model, self._texts, plan.manner.longest))

    def _states(self, teacher: Teacher, texts: Sequence[Kept], trainee: Trainee, plan: Plan) -> States:
        """The target's states on all texts, kept on disk where that is wanted."""
        labeller = labeller_of(trainee)
        size = nbytes(teacher, texts, trainee.states, labeller.top if labeller is not None else 0)
        file = self.folder / "states.bin" if self._cache and size else None
        states = States(teacher, texts, trainee.states, file, labeller)
        note = f"{size / 1e9:.1f} GB on disk"
        with self._timed("states"):
            states.prepare(
                f"{plan.target} {len(texts)}",
                lambda done, total: self._tell("states", done, total, "tokens", note),
                self._cancelled,
            )
        return states

    def _train(self, loop: Loop, plan: Plan, teacher: Teacher, held: Sequence[Kept]) -> None:
        assert plan.schedule is not None
        steps = plan.schedule.steps
        every = max(1, steps // LOOKS)

        def report(step: int, figures: Mapping[str, float]) -> None:
            self._tell("training", step, steps, "steps", "", dict(figures))

        def looks(step: int) -> Mapping[str, float]:
            if step % every or step == steps:
                return {}
            found = self._measure(loop.trainee, teacher, held[: plan.looked], self.folder / "drafter.part")
            shutil.rmtree(self.folder / "drafter.part", ignore_errors=True)
            return {} if found is None else {"tokens_per_pass": found.tokens_per_pass}

        with self._timed("training"):
            loop.run(report, self._cancelled, looks)

    def _finished(
        self, model: Model, teacher: Teacher, plan: Plan, loop: Loop, texts: tuple[Sequence[Kept], Sequence[Kept]]
    ) -> Trained:
        """Measure, write the card, put the drafter where the model finds it."""
        assert plan.schedule is not None
        every, held = texts[0], texts[1][: plan.measured]
        folder, info = self.folder / DRAFTER, teacher.info
        tokens = sum(map(learnt, every))
        parameters = sum(part.numel() for group in loop.trainee.groups() for part in group.parts)
        with self._timed("measuring"):
            self._tell("measuring", 0, 0, "", f"on {len(held)} texts that it has not seen")
            shutil.rmtree(folder, ignore_errors=True)
            measured = self._measure(loop.trainee, teacher, held, folder)
            begun = self.folder / follow_up.FOLDER
            before = self._acceptance(teacher, held, begun) if self.order.continue_from is not None else None
            hours = sum(self._seconds().values()) / 3600
            card = outcome.card(plan, info, (len(every), tokens, parameters), hours, measured)
            drafter_card.write(folder, card)
            place, rival, theirs = (None, "", None)
            joint = isinstance(loop.trainee, Changing) and loop.trainee.joint
            if not joint:
                place, rival, theirs = outcome.settle(
                    folder, info, card, lambda other: self._rival(teacher, held, other)
                )
        model.rows = discovery.near(info)
        return Trained(
            method=self.order.method,
            folder=str(self.folder),
            drafter=str(folder),
            texts=len(every),
            tokens=tokens,
            steps=plan.schedule.steps,
            loss=None if math.isnan(loop.loss) else round(loop.loss, 6),
            parameters=parameters,
            measured=measured,
            place="" if place is None else str(place),
            rival=rival,
            rival_measured=theirs,
            before=before,
            model=joint,
            seconds={name: round(seconds, 1) for name, seconds in self._seconds().items()},
        )

    def _rival(self, teacher: Teacher, texts: Sequence[Kept], folder: Path) -> Measured | None:
        """How good another drafter is on the same texts; None where it cannot be read."""
        try:
            return self._acceptance(teacher, texts, folder)
        except OutriderError as error:
            self._say(Notice(f"The drafter in {folder} could not be compared: {error.message}", self._request.id))
            return None

    def _measure(self, trainee: Trainee, teacher: Teacher, texts: Sequence[Kept], folder: Path) -> Measured | None:
        """Acceptance of what the files in `folder` hold, written anew and read back as any drafter is."""
        trainee.save(folder, whole=False)
        if isinstance(trainee, Changing) and trainee.joint:
            teacher = Teacher(trainee.target_now(), teacher.longest)
        return self._acceptance(teacher, texts, folder)

    def _acceptance(self, teacher: Teacher, texts: Sequence[Kept], folder: Path) -> Measured | None:
        drafter = registry.load(self.order.method, teacher.target, {"weights": str(folder)}, _raise)
        try:
            acceptance: Acceptance = measure_acceptance(drafter, teacher, texts, DRAFT, self._cancelled)
        finally:
            drafter.close()
        depths = [round(share, 4) for share in acceptance.by_depth]
        return Measured(len(texts), round(acceptance.per_pass, 4), depths, acceptance.by_context)

    # ------------------------------------------------------------------ pieces

    def _trainee(self, teacher: Teacher, texts: Sequence[Kept], seed: int) -> Trainee:
        return self._made(teacher, counts_of(texts, teacher.info.vocab), seed)

    def _made(self, teacher: Teacher, counts: torch.Tensor, seed: int) -> Trainee:
        luck = torch.Generator(teacher.device).manual_seed(seed)
        with there(teacher.device):
            made = self.recipe.trainee(teacher, self.settings, counts.to(teacher.device), luck)
        made = follow_up.begin(made, self.order, self.folder)
        assert isinstance(made, torch.nn.Module)
        made.to(teacher.device)
        return made

    def _prompts(self) -> list[TrainPrompt]:
        return msgspec.json.decode((self.folder / PROMPTS).read_bytes(), type=list[TrainPrompt])

    def _hooks(self, prompts: Mapping[int, TrainPrompt], before: int = 0) -> Hooks:
        total = sum(map(turns, prompts.values()))

        def heard(done: int, tokens: int) -> None:
            self._tell("answers", done - before, total, "answers", f"{tokens:,} tokens")

        return Hooks(heard, lambda text: self._say(Notice(text, self._request.id)), self._cancelled)

    def _tell(
        self, phase: str, done: float, total: float, unit: str, note: str = "", figures: dict[str, float] | None = None
    ) -> None:
        self._say(Progress(self._request.id, phase, done, total, unit, note, figures or {}))

    def _seconds(self) -> dict[str, float]:
        try:
            return msgspec.json.decode((self.folder / SECONDS).read_bytes(), type=dict[str, float])
        except (OSError, msgspec.DecodeError):
            return {}

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add what a stage took to what earlier sittings took."""
        at = time.monotonic()
        try:
            yield
        finally:
            known = self._seconds()
            known[stage] = known.get(stage, 0.0) + time.monotonic() - at
            with suppress(OSError):  # it is told by whoever needs the room
                (self.folder / SECONDS).write_bytes(msgspec.json.encode(known))


def _busy(folder: Path) -> Callable[[], None]:
    def refuse() -> None:
        raise UsageError(f"Another process works on the run in {folder}.", "Wait for it, or take another --out.")

    return refuse


def _raise(text: str) -> None:
    raise ModelError(f"What was trained cannot be read back: {text}", "Please report it.")
