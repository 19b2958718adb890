"""The job behind `outrider drafters test`: one drafter on some prompts, greedy, each also answered plainly.

Where a drafter's files can be read in more than one way, its method offers `readings`: each is tried, the one that gets
more tokens accepted is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import msgspec

from . import conformance, finding, registry
from .drafting import Shape
from .engine import Engine, Say
from .errors import Cancelled, UsageError
from .loading import Model
from .protocol import (
    BenchPrompt,
    DrafterChoice,
    DrafterTest,
    Generate,
    Message,
    Notice,
    Progress,
    Report,
    Sampling,
    Step,
)
from .target.model import SLACK
from .weights.library import resolve

CHAIN = 8  # tokens of a draft, where it is a chain
CHECKED = 1  # prompts of a conformance run


class Trial(msgspec.Struct, kw_only=True):
    """One reading of a drafter over all prompts. Times are milliseconds of one round."""

    reading: dict[str, Any]  # options of the method; empty where there is only one reading
    prompts: int
    tokens: int
    passes: int
    rounds: int  # passes that verified a draft
    proposed: int
    accepted: int
    reached: list[int]  # by depth from 1: drafts that were right up to there
    depths: list[float]  # by depth from 1: share of those that were accepted there
    mean_accepted: float  # draft tokens of one round
    tokens_per_pass: float
    draft_ms: float
    verify_ms: float
    plain_ms: float  # of a pass without a draft
    same_text: int  # prompts
    differences: list[dict[str, Any]]
    problem: str = ""  # why the drafter was switched off


class _Quiet:
    """Control of an answer that can only be cancelled."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.cancelled = cancelled

    def switched(self) -> DrafterChoice | None:
        """Nobody switches here."""
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        """Never called."""


def run(engine: Engine, request: DrafterTest, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole test, or the conformance checks. Raises UsageError, DrafterError if it cannot ride, Cancelled."""
    if not request.prompts:
        raise UsageError("There are no prompts to test with.", "Give --prompts 1 or more.")
    model = engine.load(request.model, request.id, say, cancelled)
    found = _found(model, request, say, cancelled)
    head = {
        "model": request.model.model,
        "drafter": found.name,
        "weights": found.weights,
        "device": model.loaded.device,
        "dtype": model.loaded.dtype,
    }
    if request.conformance:
        return head | {"checks": _checks(engine, model, found, request, say, cancelled)}
    test = _Test(engine, model, request, say, cancelled)
    trials = [
        test.trial(found, reading) for reading in registry.readings(found.name, model.talk.target.info, found.weights)
    ]
    best = max(range(len(trials)), key=lambda number: trials[number].mean_accepted)
    return head | {"trials": [msgspec.to_builtins(trial) for trial in trials], "best": best}


class _Found(msgspec.Struct, frozen=True):
    """A method by name and the path of its weights."""

    name: str
    weights: str | None


def _found(model: Model, request: DrafterTest, say: Say, cancelled: Callable[[], bool]) -> _Found:
    def bring(phase: str, done: float, total: float, note: str) -> None:
        say(Progress(request.id, phase, done, total, "bytes", note))

    name, given, info = request.drafter.name.replace("-", "_"), request.drafter.weights, model.talk.target.info
    weights = str(resolve(given, bring, cancelled)) if given else None
    if name == "auto":
        name = finding.accepting(info, weights) if weights else ("none", *finding.automatic(model.rows))[-1]
    if name == "none":
        raise UsageError("There is no drafter to test.", "Name one of `outrider drafters list`.")
    return _Found(name, weights or finding.weights_for(name, info))


def _checks(
    engine: Engine, model: Model, found: _Found, request: DrafterTest, say: Say, cancelled: Callable[[], bool]
) -> list[dict[str, str]]:
    """Every check of the conformance kit. `engine` forgets its conversation, whose memory is the kit's now."""
    prompts = [engine.prompt_ids(model, _ask(request, prompt)) for prompt in request.prompts[:CHECKED]]
    engine.forget()

    def tell(name: str, done: int, total: int) -> None:
        if cancelled():
            raise Cancelled
        say(Progress(request.id, "checks", done, total, "", name))

    def make(target: Any) -> Any:
        return registry.build(found.name, target, {**request.drafter.options, "weights": found.weights})

    trusted = registry.trusted(found.name)
    checks = conformance.check(model.talk.target, make, prompts, trusted=trusted, tell=tell)
    return [msgspec.to_builtins(check) for check in checks]


def _ask(request: DrafterTest, prompt: BenchPrompt, choice: DrafterChoice | None = None) -> Generate:
    sampling = Sampling(temperature=0.0, max_tokens=request.limit, seed=0)
    messages = [Message("user", prompt.turns[0])]
    return Generate(
        request.id,
        request.model,
        messages=messages,
        sampling=sampling,
        drafter=choice or DrafterChoice(name="none"),
        detail=True,
    )


class _Test:
    """Answers of one request; the plain ones are made once."""

    def __init__(
        self, engine: Engine, model: Model, request: DrafterTest, say: Say, cancelled: Callable[[], bool]
    ) -> None:
        self._engine, self._model, self._request = engine, model, request
        self._say, self._cancelled = say, cancelled
        self._plain: dict[str, tuple[Report, list[Step]]] = {}

    def trial(self, found: _Found, reading: Mapping[str, Any]) -> Trial:
        """All prompts with the drafter loaded under one reading; it is closed again."""
        problems: list[str] = []
        drafters, key = self._model.talk.drafters, (found.name, found.weights)
        if (older := drafters.pop(key, None)) is not None:
            older.close()
        options = {**reading, **self._request.drafter.options, "weights": found.weights}
        rider = registry.load(found.name, self._model.talk.target, options, problems.append)
        drafters[key] = rider
        choice = DrafterChoice(name=found.name, weights=found.weights, tokens=self._length(rider.shape))
        tally = _Tally()
        try:
            for number, prompt in enumerate(self._request.prompts):
                self._say(Progress(self._request.id, "test", number, len(self._request.prompts), "prompts", prompt.id))
                plain = self._plain.get(prompt.id) or self._answer(prompt, None)
                self._plain[prompt.id] = plain
                tally.add(prompt.id, plain, self._answer(prompt, choice))
                if rider.failed:
                    break
        finally:
            drafters.pop(key, rider).close()
        return tally.trial(dict(reading), " ".join(problems))

    def _length(self, shape: Shape) -> int:
        """What was asked for; else a chain of a usual length, or the whole tree."""
        most = shape.nodes if shape.nodes > shape.depth else min(shape.nodes, CHAIN)
        return self._request.drafter.tokens or min(most, SLACK - 1)

    def _answer(self, prompt: BenchPrompt, choice: DrafterChoice | None) -> tuple[Report, list[Step]]:
        steps: list[Step] = []

        def listen(event: Step | Progress | Notice) -> None:
            if isinstance(event, Step):
                steps.append(event)

        self._engine.forget()
        report = self._engine.generate(_ask(self._request, prompt, choice), listen, _Quiet(self._cancelled))
        if report.finish == "cancelled":
            raise Cancelled
        return report, steps


class _Tally:
    """Sums over prompts."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.drafted: list[Step] = []
        self.plain: list[float] = []
        self.reached: list[int] = []
        self.passed: list[int] = []
        self.differences: list[dict[str, Any]] = []

    def add(self, prompt: str, plain: tuple[Report, list[Step]], ours: tuple[Report, list[Step]]) -> None:
        """One prompt's answers, plain and drafted; the first step of each is the prefill."""
        self.reports.append(ours[0])
        self.plain += [step.verify_ms for step in plain[1][1:]]
        for step in ours[1][1:]:
            if step.proposed:
                self.drafted.append(step)
                self._depths(step)
        difference = _difference(prompt, plain, ours[0])
        if difference is not None:
            self.differences.append(difference)

    def _depths(self, step: Step) -> None:
        deepest = max([step.accepted, *(node.depth + 1 for node in step.rejected or ())])
        for depth in range(min(deepest, step.accepted + 1)):
            if depth == len(self.reached):
                self.reached.append(0)
                self.passed.append(0)
            self.reached[depth] += 1
            self.passed[depth] += depth < step.accepted

    def trial(self, reading: dict[str, Any], problem: str) -> Trial:
        """The figures."""
        rounds = len(self.drafted)
        passes = sum(report.passes for report in self.reports)
        tokens = sum(len(report.token_ids) for report in self.reports)
        accepted = sum(step.accepted for step in self.drafted)
        decoded = sum(len(report.token_ids) - 1 for report in self.reports if report.token_ids)
        return Trial(
            reading=reading,
            prompts=len(self.reports),
            tokens=tokens,
            passes=passes,
            rounds=rounds,
            proposed=sum(step.proposed for step in self.drafted),
            accepted=accepted,
            reached=self.reached,
            depths=[passed / reached for passed, reached in zip(self.passed, self.reached, strict=True)],
            mean_accepted=accepted / rounds if rounds else 0.0,
            tokens_per_pass=decoded / passes if passes else 0.0,
            draft_ms=median(step.draft_ms for step in self.drafted) if rounds else 0.0,
            verify_ms=median(step.verify_ms for step in self.drafted) if rounds else 0.0,
            plain_ms=median(self.plain) if self.plain else 0.0,
            same_text=len(self.reports) - len(self.differences),
            differences=self.differences,
            problem=problem,
        )


def _difference(prompt: str, plain: tuple[Report, list[Step]], ours: Report) -> dict[str, Any] | None:
    """Where an answer first differs from the plain one, and by how much the two best tokens differed there."""
    want = plain[0].token_ids
    if ours.token_ids == want:
        return None
    pairs = zip(want, ours.token_ids, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(want), len(ours.token_ids)))
    best = [row for step in plain[1] for row in step.top or ()]
    gap = best[at][0][1] - best[at][1][1] if at < len(best) and len(best[at]) > 1 else None
    return {"prompt": prompt, "token": at, "gap": gap}
