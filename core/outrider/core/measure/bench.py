"""The benchmark job: every drafter on the same prompts, back to back in one process, in rotated order.

Every drafted answer is between two plain ones, whose time it is compared with: what else the machine does in the meantime makes
ratios uncertain, but does not bend them.

What it measures is kept as runs and passes; `figures` makes the numbers of them.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from statistics import median
from typing import Any

import msgspec
import torch

from outrider.core.base.errors import Cancelled, ModelError, UsageError
from outrider.core.base.protocol import Bench, DrafterChoice, Message, Notice, Progress
from outrider.core.model.batched import state_bytes
from outrider.core.session.answer_runs import PLAIN, Pass, Prompting, Run, passes_of, run_of
from outrider.core.session.batch import room
from outrider.core.session.engine import Engine, Say, check_choice
from outrider.core.session.loading import Model

from . import figures

WARM_UPS, WARM_UP_TOKENS = 3, 16  # answers of each drafter that do not count
WARM_UP = [Message("user", "Write this line four times: one two three four, one two three four.")]
ROWS = (1, 2, 4, 8, 16)  # passes that are timed alone
ROUNDS, ROUND_SECONDS = 8, 3.0  # of these, at most, and seconds after which no further one begins
BEFORE = 64  # tokens before a pass that is timed alone


def run(engine: Engine, request: Bench, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole benchmark, or what was measured when it was stopped.

    Raises UsageError for no prompts or an unknown drafter, Cancelled when stopped before the first prompt was done.
    """
    if not request.prompts:
        raise UsageError("There are no prompts to run.", "Give --prompts FILE.jsonl or other --categories.")
    for choice in request.drafters:
        check_choice(choice)
    load = _load()
    model = engine.load(request.model, request.id, say, cancelled)
    measuring = _Measuring(engine, model, request, say, cancelled)
    measuring.prepare()
    try:
        measuring.run()
    except Cancelled:
        if not measuring.runs:
            raise
        measuring.stopped = True
    return measuring.result(load)


class _Measuring:
    """One request at work."""

    def __init__(self, engine: Engine, model: Model, request: Bench, say: Say, cancelled: Callable[[], bool]) -> None:
        self._engine, self._model, self._request, self._say = engine, model, request, say
        self._drafters = [choice for choice in request.drafters if choice.name != PLAIN.name]
        self._choices = [PLAIN, *self._drafters]
        self._names = [choice.name for choice in self._choices]
        self._prompting = Prompting(engine, request, request.sampling, say, cancelled)
        self._bare: dict[int, figures.Curve] = {}
        self.together: list[figures.Together] = []
        self.runs: list[Run] = []
        self.passes: list[list[Pass]] = []  # of each run
        self.stopped = False

    # ------------------------------------------------------------------ measuring

    def prepare(self) -> None:
        """Load all drafters, let allocator, kernels and caches settle, time passes alone."""
        request = self._request
        for choice in self._choices:  # an unknown one is told now, not after an hour
            self._engine.drafter(self._model, choice, lambda text: self._say(Notice(text, request.id)))
        total = WARM_UPS * len(self._choices)
        for number, choice in enumerate(self._choices * WARM_UPS):
            self._say(Progress(request.id, "warm-up", number, total, "answers", choice.name))
            self._prompting.answer(WARM_UP, choice, WARM_UP_TOKENS)
        self._bare = self._timed()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def run(self) -> None:
        """Every prompt by everybody, as often as it was asked. Raises Cancelled; what was whole by then is kept."""
        request = self._request
        total = request.repeats * len(self._choices) * sum(len(prompt.turns) for prompt in request.prompts)
        done = 0

        def begins(prompt: str, choice: DrafterChoice) -> None:
            nonlocal done
            name = "plain" if choice.name == PLAIN.name else choice.name
            self._say(Progress(request.id, "bench", done, total, "answers", f"{prompt}, {name}"))
            done += 1

        for rotation in range(request.repeats * len(request.prompts)):
            repeat, index = divmod(rotation, len(request.prompts))
            prompt = request.prompts[index]
            self._prompting.begins = lambda choice, prompt=prompt: begins(prompt.id, choice)
            for turn, made in enumerate(self._prompting.turns(prompt, self._drafters, rotation, controls=True)):
                for name, answered in zip(self._names, made, strict=True):
                    one = run_of(prompt, turn, repeat, name, (made[0].report, answered.report))
                    one.beside = answered.beside
                    self.runs.append(one)
                    self.passes.append(passes_of(answered))
        self._say(Progress(request.id, "bench", total, total, "answers"))
        self._batches()

    def _batches(self) -> None:
        """Several answers at once, plain and with the first drafter; what does not fit into memory is told."""
        rows = [(count, choice) for count in self._request.batch for choice in self._choices[:2]]
        for done, (count, choice) in enumerate(rows):
            note = f"{count} at once, {choice.name}"
            self._say(Progress(self._request.id, "bench", done, len(rows), "batches", note))
            try:
                self.together.append(self._batch(count, choice))
            except ModelError as error:
                self.together.append(figures.Together(count=count, drafter=choice.name, problem=error.message))

    def _batch(self, count: int, choice: DrafterChoice) -> figures.Together:
        opening = ([Message("user", prompt.turns[0])] for prompt in self._request.prompts)
        prompts = list(islice(cycle(opening), count))
        self._prompting.together(prompts[:2], choice, WARM_UP_TOKENS)
        began = time.perf_counter()
        reports = self._prompting.together(prompts, choice)
        seconds = time.perf_counter() - began
        tokens = sum(len(report.token_ids) for report in reports)
        target, asked = self._model.cache.target, (self._prompting.request(one, choice) for one in prompts)
        rooms = (room(self._engine.order(self._model, one, began), target) for one in asked)
        return figures.Together(
            count=count,
            drafter=choice.name,
            tokens=tokens,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            states=sum(state_bytes(target.decoder, length) for length in rooms),
        )

    def _timed(self) -> dict[int, figures.Curve]:
        """Milliseconds of a pass by rows with nothing around it, the widths in turn; the first round warms up."""
        target = self._model.cache.target
        self._engine.forget()
        target.forward(list(range(BEFORE)), last=True)
        target.commit(BEFORE)
        times: dict[int, list[float]] = {rows: [] for rows in ROWS if rows <= target.most}
        until = time.perf_counter() + ROUND_SECONDS
        for turn in range(ROUNDS):
            for rows in times:
                began = time.perf_counter()
                target.forward(list(range(rows))).logits.argmax(-1).tolist()
                if turn:
                    times[rows].append((time.perf_counter() - began) * 1e3)
            if turn and time.perf_counter() > until:
                break
        self._engine.forget()
        return {rows: figures.Curve(median(values), len(values)) for rows, values in times.items()}

    # ------------------------------------------------------------------ telling

    def result(self, load: float | None) -> dict[str, Any]:
        """Everything, built of plain types. `load`: the load average before it began."""
        plain = [one for one, run in self._each() if run.drafter == PLAIN.name]
        loaded, request, scores = self._model.loaded, self._request, self._scores()
        fields = {
            "model": request.model.model,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "threads": loaded.threads,
            "machine": _machine(),
            "settings": {
                "sampling": request.sampling,
                "repeats": request.repeats,
                "prompts": len(request.prompts),
                "load": request.model,
                "warm_ups": WARM_UPS,
            },
            "stopped": self.stopped,
            "noise": figures.doubted(
                figures.noise(plain, os.cpu_count() or 1, loaded.threads, (load, _load())),
                {**(scores["categories"] if len(scores["categories"]) > 1 else {}), "total": scores["total"]},
                self.runs,
            ),
            "drafters": self._names,
            **scores,
            "drafting": {name: self._drafting(name, plain) for name in self._names[1:]},
            "verify": {"measured": figures.curve(one for one, _ in self._each()), "alone": self._bare},
            "memory": self._memory(),
            "together": self.together,
            "runs": [self._run(number) for number in range(len(self.runs))],
        }
        if request.steps:
            fields["step_columns"] = Pass.__struct_fields__
        return msgspec.to_builtins(fields, str_keys=True)

    def _each(self) -> Iterator[tuple[Pass, Run]]:
        for run, passes in zip(self.runs, self.passes, strict=True):
            for one in passes:
                yield one, run

    def _scores(self) -> dict[str, Any]:
        """Figures by category and in total, and the worst prompt of each drafter."""
        runs = figures.merged(self.runs)

        def by(name: str, some: list[Run]) -> list[Run]:
            return [run for run in some if run.drafter == name]

        def scores(some: list[Run]) -> dict[str, figures.Figures]:
            plain = by(PLAIN.name, some)
            drafted = {name: figures.figures(by(name, some), plain) for name in self._names[1:]}
            return {PLAIN.name: figures.figures(plain, plain), **drafted}

        categories = dict.fromkeys(run.category for run in runs)
        return {
            "categories": {name: scores([run for run in runs if run.category == name]) for name in categories},
            "total": scores(runs),
            "worst": {name: figures.worst(by(name, runs), by(PLAIN.name, runs)) for name in self._names[1:]},
        }

    def _drafting(self, name: str, plain: list[Pass]) -> figures.Drafting:
        passes = [one for one, run in self._each() if run.drafter == name]
        return figures.drafting(passes, plain)

    def _run(self, number: int) -> dict[str, Any]:
        row = msgspec.structs.asdict(self.runs[number])
        return row | {"steps": self.passes[number]} if self._request.steps else row

    def _memory(self) -> dict[str, Any]:
        """Bytes: the most that was taken, weights, states, and what drafters say that they take."""
        target = self._model.cache.target
        rows = {row.name: row.nbytes for row in self._model.rows}
        return {
            "peak": peak(target.device),
            "weights": target.decoder.weights.nbytes,
            "states": target.cache.nbytes,
            "drafters": {name: rows[name] for name in self._names if name in rows},
        }


def peak(device: torch.device) -> int | None:
    """The most bytes that were taken: of a GPU's memory by tensors, else by this process. None where no one tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return taken if sys.platform == "darwin" else taken * 1024


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "load": _load(),
    }
