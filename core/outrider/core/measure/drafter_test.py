"""The job behind `outrider drafters test`: one drafter on some prompts, greedy, each also answered plainly.

Where a drafter's files can be read in more than one way, its method offers `readings`: each is tried, the one that gets
more tokens accepted is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import hypot
from statistics import median, stdev
from typing import Any

import msgspec

from outrider.core import conformance
from outrider.core.base.errors import Cancelled, UsageError
from outrider.core.base.protocol import BenchPrompt, DrafterChoice, DrafterTest, Message, Progress, Sampling, Step
from outrider.core.drafting import registry
from outrider.core.drafting.contract import Shape
from outrider.core.library import discovery
from outrider.core.library.jobs import event
from outrider.core.library.library import resolve
from outrider.core.model.model import MAX_DRAFT_ROWS
from outrider.core.session.answer_runs import PLAIN, Answered, Prompting, Run, parting, run_of, score
from outrider.core.session.engine import Engine, Say, check_choice
from outrider.core.session.loading import Model
from outrider.core.session.pool import PooledDrafter, Wanted, load_drafter

CHAIN = 8  # tokens of a draft, where it is a chain
SURE = 2  # standard errors that are more than chance
CHECKED = 1  # prompts of a conformance run


class Trial(msgspec.Struct, kw_only=True):
    """One reading of a drafter over all prompts. Times are milliseconds of one round."""

    reading: dict[str, Any]  # options of the method; empty where there is only one reading
    prompts: int
    answers: int
    tokens: int
    passes: int
    rounds: int  # passes that verified a draft
    proposed: int
    accepted: int
    reached: list[int]  # by depth from 1: drafts that were right up to there
    depths: list[float]  # by depth from 1: share of those that were accepted there
    mean_accepted: float  # draft tokens of one round
    error: float  # standard error of that
    tokens_per_pass: float
    draft_ms: float
    verify_ms: float
    plain_ms: float  # of a pass without a draft
    same_text: int  # answers
    differences: list[dict[str, Any]]
    problem: str = ""  # why the drafter was switched off


def run(engine: Engine, request: DrafterTest, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole test, or the conformance checks. Raises UsageError, DrafterError if it cannot be used, Cancelled."""
    if not request.prompts:
        raise UsageError("There are no prompts to test with.", "Give --prompts 1 or more.")
    check_choice(request.drafter)
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
    offered = registry.readings(found.name, model.cache.target.info, found.weights)
    readings = _open(offered, request.drafter.options)
    test = _Test(engine, model, request, say, cancelled)
    trials = [test.trial(found, reading, (number, len(readings))) for number, reading in enumerate(readings)]
    return head | {"trials": [msgspec.to_builtins(trial) for trial in trials], "best": _best(trials)}


def _open(offered: list[Mapping[str, Any]], told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What of the readings the user's own options leave open, each once."""
    left = [{name: value for name, value in reading.items() if name not in told} for reading in offered]
    return [reading for number, reading in enumerate(left) if reading not in left[:number]]


def _best(trials: list[Trial]) -> int:
    """The reading that gets most accepted; the first, which is the usual one, unless another does by more than chance."""
    best = max(range(len(trials)), key=lambda number: (not trials[number].problem, trials[number].mean_accepted))
    usual, other = trials[0], trials[best]
    doubt = SURE * hypot(usual.error, other.error)
    return best if usual.problem or other.mean_accepted - usual.mean_accepted > doubt else 0


class _Found(msgspec.Struct, frozen=True):
    """A method by name and the path of its weights."""

    name: str
    weights: str | None


def _found(model: Model, request: DrafterTest, say: Say, cancelled: Callable[[], bool]) -> _Found:
    def bring(phase: str, done: float, total: float, note: str) -> None:
        say(event(request.id, phase, done, total, note))

    name, given, info = request.drafter.name.replace("-", "_"), request.drafter.weights, model.cache.target.info
    weights = str(resolve(given, bring, cancelled)) if given else None
    if name == "auto":
        name = discovery.accepting(info, weights) if weights else ("none", *discovery.automatic(model.rows))[-1]
    if name == "none":
        raise UsageError("There is no drafter to test.", "Name one of `outrider drafters list`.")
    return _Found(name, weights or discovery.weights_for(name, info))


def _checks(
    engine: Engine, model: Model, found: _Found, request: DrafterTest, say: Say, cancelled: Callable[[], bool]
) -> list[dict[str, str]]:
    """Every check of the conformance kit. `engine` forgets its conversation, whose memory is the kit's now."""
    prompting = _prompting(engine, request)
    asked = [[Message("user", prompt.turns[0])] for prompt in request.prompts[:CHECKED]]
    prompts = [engine.prompt_ids(model, prompting.request(messages, PLAIN)) for messages in asked]
    engine.forget()

    def tell(name: str, done: int, total: int) -> None:
        if cancelled():
            raise Cancelled
        say(Progress(request.id, "checks", done, total, "", name))

    make = _Make(found.name, {**request.drafter.options, "weights": found.weights})
    trusted = registry.trusted(found.name)
    checks = conformance.check(model.cache.target, make, prompts, trusted=trusted, tell=tell)
    return [msgspec.to_builtins(check) for check in checks]


class _Make(msgspec.Struct, frozen=True):
    """Builds the drafter that the kit judges."""

    drafter: str
    options: dict[str, Any]

    def __call__(self, target: Any) -> Any:
        """A fresh one, as an answer would get it."""
        return registry.build(self.drafter, target, self.options)


def _prompting(
    engine: Engine, request: DrafterTest, say: Say = lambda event: None, cancelled: Callable[[], bool] = lambda: False
) -> Prompting:
    sampling = Sampling(temperature=0.0, max_tokens=request.limit, seed=0)
    return Prompting(engine, request, sampling, say, cancelled, detail=True)


class _Test:
    """Answers of one request; the plain ones are made once."""

    def __init__(
        self, engine: Engine, model: Model, request: DrafterTest, say: Say, cancelled: Callable[[], bool]
    ) -> None:
        self._model, self._request, self._say = model, request, say
        self._prompting = _prompting(engine, request, say, cancelled)
        self._plain: dict[str, list[Answered]] = {}

    def trial(self, found: _Found, reading: Mapping[str, Any], place: tuple[int, int]) -> Trial:
        """All prompts with the drafter loaded under one reading; it is closed again. `place`: the how manieth of how many."""
        problems: list[str] = []
        pool, usual_one = self._model.cache.drafters, Wanted(found.name, found.weights)
        pool.drop(usual_one)
        wanted = Wanted(found.name, found.weights, {**reading, **self._request.drafter.options})
        drafter = load_drafter(wanted, self._model.cache.target, problems.append)
        pool.put(usual_one, drafter)
        length = self._request.drafter.tokens or usual(drafter.shape)
        choice = DrafterChoice(name=found.name, weights=found.weights, tokens=length)
        tally = _Tally()
        try:
            prompts, (before, readings) = self._request.prompts, place
            for number, prompt in enumerate(prompts, before * len(prompts)):
                self._say(Progress(self._request.id, "test", number, readings * len(prompts), "prompts", prompt.id))
                if not self._turns(prompt, choice, drafter, tally):
                    break
        finally:
            pool.drop(usual_one)
        return tally.trial(dict(reading), " ".join(problems))

    def _turns(self, prompt: BenchPrompt, choice: DrafterChoice, drafter: PooledDrafter, tally: _Tally) -> bool:
        """All turns of a prompt; False where the drafter broke."""
        known = self._plain.setdefault(prompt.id, [])
        for turn, (plain, ours) in enumerate(self._prompting.turns(prompt, [choice], known=known)):
            tally.add(prompt, turn, plain, ours)
            if drafter.failed:
                return False
        return True


def usual(shape: Shape) -> int:
    """Draft tokens where nobody says how many: a chain of a usual length, or the whole tree."""
    most = shape.nodes if shape.nodes > shape.depth else min(shape.nodes, CHAIN)
    return min(most, MAX_DRAFT_ROWS - 1)


class _Tally:
    """Sums over answers."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.drafted: list[Step] = []
        self.plain: list[float] = []
        self.reached: list[int] = []
        self.passed: list[int] = []
        self.differences: list[dict[str, Any]] = []

    def add(self, prompt: BenchPrompt, turn: int, plain: Answered, ours: Answered) -> None:
        """One turn's answers, plain and drafted; the first step of each is the prefill."""
        self.runs.append(run_of(prompt, turn, 0, ours.report.drafter, (plain.report, ours.report)))
        self.plain += [step.verify_ms for step in plain.steps[1:]]
        for step in ours.steps[1:]:
            if step.proposed:
                self.drafted.append(step)
                self._depths(step)
        difference = _difference(plain, ours)
        if difference is not None:
            self.differences.append({"prompt": prompt.id, "turn": turn, **difference})

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
        rounds, total = len(self.drafted), score(self.runs, ())
        accepted = sum(step.accepted for step in self.drafted)
        return Trial(
            reading=reading,
            prompts=total.prompts,
            answers=len(self.runs),
            tokens=total.tokens,
            passes=sum(run.passes for run in self.runs),
            rounds=rounds,
            proposed=sum(step.proposed for step in self.drafted),
            accepted=accepted,
            reached=self.reached,
            depths=[passed / reached for passed, reached in zip(self.passed, self.reached, strict=True)],
            mean_accepted=accepted / rounds if rounds else 0.0,
            error=stdev(step.accepted for step in self.drafted) / rounds**0.5 if rounds > 1 else 0.0,
            tokens_per_pass=total.tokens_per_pass,
            draft_ms=median(step.draft_ms for step in self.drafted) if rounds else 0.0,
            verify_ms=median(step.verify_ms for step in self.drafted) if rounds else 0.0,
            plain_ms=median(self.plain) if self.plain else 0.0,
            same_text=total.same_text,
            differences=self.differences,
            problem=problem,
        )


def _difference(plain: Answered, ours: Answered) -> dict[str, Any] | None:
    """Where an answer first differs from the plain one, and by how much the two best tokens differed there."""
    want, got = plain.report.token_ids, ours.report.token_ids
    if got == want:
        return None
    at = parting(want, got)
    best = [row for step in plain.steps for row in step.top or ()]
    gap = best[at][0][1] - best[at][1][1] if at < len(best) and len(best[at]) > 1 else None
    return {"token": at, "gap": gap}
