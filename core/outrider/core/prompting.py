"""Prompts answered one after the other by several drafters, and what the answers add up to: `drafters test` and `bench`.

Follows the protocol of Spec-Bench and its kin with one difference: the baseline is this engine's own plain loop, and the
history of a later turn is always the plain answer, so that all drafters see the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from .engine import Engine, Say
from .errors import Cancelled
from .protocol import (
    Bench,
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

PLAIN = DrafterChoice(name="none")
LIMIT = 256  # tokens of an answer where nothing is said


class Answered(msgspec.Struct, frozen=True):
    """One answer and its passes; the first step is the prefill. `steps` is empty unless they were asked for."""

    report: Report
    steps: list[Step]


class Run(msgspec.Struct):
    """One answer of one drafter."""

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


class _Quiet:
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

    `detail`: steps are kept, with what they rejected and the best tokens; else only notices are sent on by `say`, as writing
    every step would be timed with the engine's work.
    """

    def __init__(
        self,
        engine: Engine,
        request: Bench | DrafterTest,
        sampling: Sampling,
        say: Say,
        cancelled: Callable[[], bool],
        detail: bool = False,
    ) -> None:
        self._engine, self._say, self._cancelled = engine, say, cancelled
        self._number, self._model, self._detail = request.id, request.model, detail
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

    def answer(self, messages: list[Message], choice: DrafterChoice, limit: int | None = None) -> Answered:
        """One answer behind nothing: everybody pays for the whole prompt. Raises Cancelled, and as `Engine.generate`."""
        steps: list[Step] = []

        def listen(event: Step | Progress | Notice) -> None:
            if isinstance(event, Step):
                if self._detail:
                    steps.append(event)
            elif isinstance(event, Notice):
                self._say(event)

        self._engine.forget()
        report = self._engine.generate(self.request(messages, choice, limit), listen, _Quiet(self._cancelled))
        if report.finish == "cancelled":
            raise Cancelled
        return Answered(report, steps)

    def turns(
        self,
        prompt: BenchPrompt,
        drafters: Sequence[DrafterChoice],
        rotation: int = 0,
        known: list[Answered] | None = None,
    ) -> Iterator[tuple[Answered, ...]]:
        """Of every turn of a prompt the plain answer, then those of `drafters`; which is made first, `rotation` and the turn say.

        `known`: plain answers that were made before and need not be made again; those made now are added.
        """
        plain = [] if known is None else known
        history: list[Message] = []
        for number, text in enumerate(prompt.turns):
            history = [*history, Message("user", text)]
            made = {0: plain[number]} if number < len(plain) else {}
            waiting = [(index, choice) for index, choice in enumerate((PLAIN, *drafters)) if index not in made]
            shift = (rotation + number) % len(waiting)
            for index, choice in waiting[shift:] + waiting[:shift]:
                made[index] = self.answer(history, choice)
            plain[number:] = [made[0]]
            yield tuple(made[index] for index in range(1 + len(drafters)))
            history = [*history, Message("assistant", made[0].report.text, made[0].report.thinking)]


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
    )


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
