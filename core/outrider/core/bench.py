"""The benchmark job: every drafter on the same prompts, back to back in one process, in rotated order.

Follows the protocol of Spec-Bench and its kin with one difference: the baseline is this engine's own plain loop, and the
history of a later turn is always the plain run's answer, so that all drafters see the same context.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch

from .engine import Engine, Say
from .errors import Cancelled, UsageError
from .loading import Model
from .protocol import Bench, BenchPrompt, DrafterChoice, Generate, Message, Notice, Progress, Report, Step

PLAIN = "none"
WARM_UP_TOKENS = 16


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
    """Control of a benchmark answer: it can only be cancelled."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.cancelled = cancelled

    def switched(self) -> DrafterChoice | None:
        """Nobody switches here."""
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        """Never called."""


def run(engine: Engine, request: Bench, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole benchmark. Raises UsageError for no prompts or an unknown drafter, Cancelled when stopped."""
    if not request.prompts:
        raise UsageError("There are no prompts to run.", "Give --prompts FILE.jsonl or other --categories.")
    model = engine.load(request.model, request.id, say, cancelled)
    choices = [DrafterChoice(name=PLAIN), *(c for c in request.drafters if c.name != PLAIN)]
    for choice in choices:
        engine.drafter(model, choice, lambda text: None)  # an unknown one is told now, not after an hour
    bench = _Bench(engine, request, say, cancelled)
    bench.warm_up(choices)
    runs: list[Run] = []
    total = len(request.prompts) * request.repeats
    for repeat in range(request.repeats):
        for index, prompt in enumerate(request.prompts):
            done = repeat * len(request.prompts) + index
            say(Progress(request.id, "bench", done, total, "prompts", prompt.id))
            runs += bench.prompt(prompt, choices, rotation=done, repeat=repeat)
    say(Progress(request.id, "bench", total, total, "prompts"))
    return _result(request, model, choices, runs)


class _Bench:
    def __init__(self, engine: Engine, request: Bench, say: Say, cancelled: Callable[[], bool]) -> None:
        self._engine, self._request, self._cancelled = engine, request, cancelled
        self._say = say

    def warm_up(self, choices: Iterable[DrafterChoice]) -> None:
        """A short answer of each drafter, thrown away: allocator, kernels, caches."""
        for choice in choices:
            self._answer([Message("user", "Count to five.")], choice, WARM_UP_TOKENS)

    def prompt(self, prompt: BenchPrompt, choices: list[DrafterChoice], rotation: int, repeat: int) -> list[Run]:
        """Every turn of a prompt with every drafter; the order is rotated from prompt to prompt."""
        runs: list[Run] = []
        history: list[Message] = []
        for number, turn in enumerate(prompt.turns):
            history = [*history, Message("user", turn)]
            shift = (rotation + number) % len(choices)
            reports: dict[str, Report] = {}
            for choice in choices[shift:] + choices[:shift]:
                self._engine.forget()  # everybody pays for the whole prompt
                reports[choice.name] = self._answer(history, choice, None)
            plain = reports[PLAIN]
            for choice in choices:
                report = reports[choice.name]
                runs.append(
                    Run(
                        prompt=prompt.id,
                        category=prompt.category,
                        turn=number,
                        repeat=repeat,
                        drafter=choice.name,
                        tokens=len(report.token_ids),
                        decode_s=report.timing.decode_s,
                        prefill_s=report.timing.prefill_s,
                        passes=report.passes,
                        proposed=report.proposed,
                        accepted=report.accepted,
                        same_text=report.token_ids == plain.token_ids,
                    )
                )
            history = [*history, Message("assistant", plain.text, plain.thinking)]
        return runs

    def _answer(self, messages: list[Message], choice: DrafterChoice, limit: int | None) -> Report:
        sampling = msgspec.structs.replace(self._request.sampling)
        sampling.max_tokens = limit or sampling.max_tokens or 256
        sampling.seed = sampling.seed if sampling.seed is not None else 0
        sampling.temperature = sampling.temperature if sampling.temperature is not None else 0.0
        request = Generate(self._request.id, self._request.model, messages=messages, sampling=sampling, drafter=choice)
        report = self._engine.generate(request, self._listen, _Quiet(self._cancelled))
        if report.finish == "cancelled":
            raise Cancelled
        return report

    def _listen(self, event: Step | Progress | Notice) -> None:
        """Only notices are sent on: writing every step would be timed with the engine's work."""
        if isinstance(event, Notice):
            self._say(event)


def score(runs: list[Run], plain: list[Run]) -> Score:
    """Totals of `runs` against the plain runs of the same prompts: sum of tokens over sum of seconds."""

    def speed(some: list[Run]) -> float:
        seconds = sum(run.decode_s for run in some)
        return sum(run.tokens - 1 for run in some if run.tokens) / seconds if seconds > 0 else 0.0

    proposed = sum(run.proposed for run in runs)
    passes = sum(run.passes for run in runs)
    base = speed(plain)
    return Score(
        prompts=len({run.prompt for run in runs}),
        tokens=sum(run.tokens for run in runs),
        seconds=sum(run.decode_s for run in runs),
        tokens_per_second=speed(runs),
        ratio=speed(runs) / base if base > 0 else 0.0,
        tokens_per_pass=sum(run.tokens - 1 for run in runs if run.tokens) / passes if passes else 0.0,
        acceptance=sum(run.accepted for run in runs) / proposed if proposed else 0.0,
        same_text=sum(run.same_text for run in runs),
    )


def _result(request: Bench, model: Model, choices: list[DrafterChoice], runs: list[Run]) -> dict[str, Any]:
    def scores(some: list[Run]) -> dict[str, Any]:
        plain = [run for run in some if run.drafter == PLAIN]
        names = [choice.name for choice in choices]
        return {name: msgspec.to_builtins(score([run for run in some if run.drafter == name], plain)) for name in names}

    categories = list(dict.fromkeys(prompt.category for prompt in request.prompts))
    loaded = model.loaded
    return {
        "model": request.model.model,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "threads": loaded.threads,
        "machine": _machine(),
        "settings": {
            "sampling": msgspec.to_builtins(request.sampling),
            "repeats": request.repeats,
            "prompts": len(request.prompts),
            "load": msgspec.to_builtins(request.model),
        },
        "drafters": [choice.name for choice in choices],
        "categories": {name: scores([run for run in runs if run.category == name]) for name in categories},
        "total": scores(runs),
        "runs": [msgspec.to_builtins(run) for run in runs],
    }


def _machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "load": load,
    }
