"""Prompts answered one after the other by several drafters, and what the answers add up to: `drafters test` and `bench`.

Follows the protocol of Spec-Bench and its kin with one difference: the baseline is this engine's own plain loop, and the
history of a later turn is always the plain answer, so that all drafters see the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from outrider.core.base.errors import Cancelled
from outrider.core.base.protocol import (
    Bench,
    BenchPrompt,
    DrafterChoice,
    DrafterTest,
    Event,
    Generate,
    Message,
    Notice,
    Progress,
    Report,
    Sampling,
    Step,
    Verify,
)

from .engine import Engine, Say

PLAIN = DrafterChoice(name="none")
LIMIT = 256  # tokens of an answer where nothing is said


class Answered(msgspec.Struct, frozen=True):
    """One answer and its passes; the first step is the prefill. `beside`: decode seconds of plain answers before and after."""

    report: Report
    steps: list[Step]
    beside: list[float] = []


class Pass(msgspec.Struct, array_like=True, frozen=True):
    """One decode pass of an answer: what is kept of its step. Times are milliseconds."""

    drafter: str  # who made the draft, "none" where there was none
    position: int  # tokens of prompt and answer before it
    proposed: int
    depth: int  # levels of the draft
    accepted: int
    tokens: int  # that it added to the answer
    draft_ms: float
    verify_ms: float
    host_ms: float

    @property
    def spent_ms(self) -> float:
        """All that it took."""
        return self.draft_ms + self.verify_ms + self.host_ms


class Difference(msgspec.Struct, frozen=True):
    """Where a text first differs from the plain one, with what stands around it in both."""

    character: int
    plain: str
    drafted: str


class Run(msgspec.Struct):
    """One answer of one drafter. Times are seconds."""

    prompt: str
    category: str
    turn: int
    repeat: int
    drafter: str
    tokens: int
    decode_s: float
    prefill_s: float
    passes: int
    proposed: int
    accepted: int
    same_text: bool  # as the plain run of the same turn
    first_s: float = 0.0  # until the first token was there
    prompt_tokens: int = 0
    finish: str = ""
    repeated: float = 0.0  # share of the answer's eight-token pieces that stood in it before
    difference: Difference | None = None
    beside: list[float] = []  # decode seconds of the plain answers right before and right after it, if these were made


class Score(msgspec.Struct):
    """One drafter over some runs. `ratio`: tokens per second over those of plain decoding on the same prompts."""

    prompts: int
    tokens: int
    seconds: float
    tokens_per_second: float
    ratio: float
    tokens_per_pass: float
    acceptance: float
    same_text: int


class Quiet:
    """Control of an answer that can only be cancelled."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.cancelled = cancelled

    def switched(self) -> DrafterChoice | None:
        """Nobody switches here."""
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        """Never called."""


class Prompting:
    """Answers of one request, greedy and of seed 0 unless `sampling` says otherwise.

    Steps are kept in memory and only notices are sent on by `say`, as writing every step would be timed with the engine's
    work. `detail`: the steps also report what they rejected and the best tokens. `begins` is called for every answer of `turns`.
    """

    def __init__(
        self,
        engine: Engine,
        request: Bench | DrafterTest | Verify,
        sampling: Sampling,
        say: Say,
        cancelled: Callable[[], bool],
        detail: bool = False,
    ) -> None:
        self._engine, self._say, self._cancelled = engine, say, cancelled
        self._number, self._model, self._detail = request.id, request.model, detail
        self.begins: Callable[[DrafterChoice], None] = lambda choice: None
        self._sampling = msgspec.structs.replace(
            sampling,
            temperature=0.0 if sampling.temperature is None else sampling.temperature,
            seed=0 if sampling.seed is None else sampling.seed,
            max_tokens=sampling.max_tokens or LIMIT,
        )

    def request(self, messages: list[Message], choice: DrafterChoice, limit: int | None = None) -> Generate:
        """What the engine is asked."""
        return Generate(
            self._number,
            self._model,
            messages=messages,
            sampling=msgspec.structs.replace(self._sampling, max_tokens=limit or self._sampling.max_tokens),
            drafter=choice,
            detail=self._detail,
        )

    def answer(
        self, messages: list[Message], choice: DrafterChoice, limit: int | None = None, *, keep: bool = False
    ) -> Answered:
        """One answer behind nothing: everybody pays for the whole prompt. Raises Cancelled, and as `Engine.generate`.

        `keep`: it may reuse what the answers before it left in the cache.
        """
        steps: list[Step] = []

        def listen(event: Step | Progress | Notice) -> None:
            if isinstance(event, Step):
                steps.append(event)
            elif isinstance(event, Notice):
                self._say(event)

        if not keep:
            self._engine.forget()
        report = self._engine.generate(self.request(messages, choice, limit), listen, Quiet(self._cancelled))
        if report.finish == "cancelled":
            raise Cancelled
        return Answered(report, steps)

    def together(
        self, prompts: Sequence[list[Message]], choice: DrafterChoice, limit: int | None = None
    ) -> list[Report]:
        """All answers at once. Raises Cancelled, and as `Engine.generate_many`."""

        def listen(event: Event) -> None:
            if isinstance(event, Notice):
                self._say(event)

        asked = [self.request(messages, choice, limit) for messages in prompts]
        self._engine.forget()
        reports = self._engine.generate_many(asked, listen, Quiet(self._cancelled), len(asked))
        if any(report.finish == "cancelled" for report in reports):
            raise Cancelled
        return reports

    def turns(
        self,
        prompt: BenchPrompt,
        drafters: Sequence[DrafterChoice],
        rotation: int = 0,
        known: list[Answered] | None = None,
        *,
        controls: bool = False,
    ) -> Iterator[tuple[Answered, ...]]:
        """Of every turn of a prompt the plain answer, then those of `drafters`; which is made first, `rotation` and the turn say.

        `known`: plain answers that were made before and need not be made again; those made now are added.
        `controls`: every drafted answer has a plain one right before and right after it, made for that where need be, so that
        both are made at the same load.
        """
        plain = [] if known is None else known
        history: list[Message] = []
        for number, text in enumerate(prompt.turns):
            history = [*history, Message("user", text)]
            answers = {0: plain[number]} if number < len(plain) else {}
            waiting = [(index, choice) for index, choice in enumerate((PLAIN, *drafters)) if index not in answers]
            shift = (rotation + number) % len(waiting)
            order = waiting[shift:] + waiting[:shift]
            answers |= (
                self._in_turn(history, order)
                if controls
                else {index: self._begun(history, choice) for index, choice in order}
            )
            plain[number:] = [answers[0]]
            yield tuple(answers[index] for index in range(1 + len(drafters)))
            history = [*history, Message("assistant", answers[0].report.text, answers[0].report.thinking)]

    def _begun(self, history: list[Message], choice: DrafterChoice) -> Answered:
        self.begins(choice)
        return self.answer(history, choice)

    def _in_turn(self, history: list[Message], order: Sequence[tuple[int, DrafterChoice]]) -> dict[int, Answered]:
        """The answers of one turn in that order, with further plain ones (-1) so that every drafted one is between two."""
        row: list[tuple[int, DrafterChoice]] = []
        for index, choice in order:
            if index and (not row or row[-1][0] > 0):
                row.append((-1, PLAIN))
            row.append((index, choice))
        if row[-1][0] > 0:
            row.append((-1, PLAIN))
        answers = [self._begun(history, one) if index >= 0 else self.answer(history, one) for index, one in row]
        seconds = [one.report.timing.decode_s for one in answers]
        return {
            index: Answered(one.report, one.steps, [seconds[at - 1], seconds[at + 1]] if index else [])
            for at, ((index, _), one) in enumerate(zip(row, answers, strict=True))
            if index >= 0
        }


def run_of(prompt: BenchPrompt, turn: int, repeat: int, drafter: str, reports: tuple[Report, Report]) -> Run:
    """The figures of one answer; `reports`: the plain one and its own."""
    plain, own = reports
    return Run(
        prompt=prompt.id,
        category=prompt.category,
        turn=turn,
        repeat=repeat,
        drafter=drafter,
        tokens=len(own.token_ids),
        decode_s=own.timing.decode_s,
        prefill_s=own.timing.prefill_s,
        passes=own.passes,
        proposed=own.proposed,
        accepted=own.accepted,
        same_text=own.token_ids == plain.token_ids,
        first_s=own.timing.first_token_s,
        prompt_tokens=own.prompt_tokens,
        finish=own.finish,
        repeated=_repeated(own.token_ids),
        difference=_difference(plain.thinking + plain.text, own.thinking + own.text),
    )


def passes_of(answered: Answered) -> list[Pass]:
    """The decode passes of an answer, the prefill left out."""
    position = answered.report.prompt_tokens
    passes = []
    for step in answered.steps:
        if step.seq:
            times = (round(ms, 4) for ms in (step.draft_ms, step.verify_ms, step.host_ms))
            counts = (step.proposed, step.depth, step.accepted, len(step.tokens))
            passes.append(Pass(step.drafter, position, *counts, *times))
        position += len(step.tokens)
    return passes


def parting(one: Sequence[object], other: Sequence[object]) -> int:
    """Where two sequences first differ; the length of the shorter where it is the beginning of the other."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _repeated(ids: Sequence[int], size: int = 8) -> float:
    pieces = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    return 1 - len(set(pieces)) / len(pieces) if pieces else 0.0


def _difference(plain: str, drafted: str, around: int = 24) -> Difference | None:
    if plain == drafted:
        return None
    at = parting(plain, drafted)
    part = slice(max(0, at - around), at + around)
    return Difference(at, plain[part], drafted[part])


def score(runs: Sequence[Run], plain: Sequence[Run]) -> Score:
    """Totals of `runs` against the plain runs of the same prompts: sum of tokens over sum of seconds."""

    def decoded(some: Sequence[Run]) -> int:
        """Tokens behind the first, which the prefill gives."""
        return sum(run.tokens - 1 for run in some if run.tokens)

    def speed(some: Sequence[Run]) -> float:
        seconds = sum(run.decode_s for run in some)
        return decoded(some) / seconds if seconds > 0 else 0.0

    proposed = sum(run.proposed for run in runs)
    passes = sum(run.passes for run in runs)
    base = speed(plain)
    return Score(
        prompts=len({run.prompt for run in runs}),
        tokens=sum(run.tokens for run in runs),
        seconds=sum(run.decode_s for run in runs),
        tokens_per_second=speed(runs),
        ratio=speed(runs) / base if base > 0 else 0.0,
        tokens_per_pass=decoded(runs) / passes if passes else 0.0,
        acceptance=sum(run.accepted for run in runs) / proposed if proposed else 0.0,
        same_text=sum(run.same_text for run in runs),
    )
