"""The steps of a run: which texts, which rate, what is written down. After a kill at any moment the rest of the steps gives the
same weights as if nothing had happened: all chance comes from the seed and the number of the step.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch import nn

from outrider.core.base.errors import Cancelled, ModelError

from . import checkpoint
from .evened import evened
from .optimiser import Optimiser
from .recipe import Trainee
from .states import States

SAVED = 60.0  # seconds between two checkpoints
NORM = 1.0  # of the gradients, at most
LOG = "log.jsonl"


class Schedule(msgspec.Struct, kw_only=True):
    """What is done in which step; made once for a run and never again."""

    steps: int
    tokens: int = 2048  # of answers that a step learns from, about
    rate: float = 1e-3
    least: float = 0.05  # of the rate, at the end
    warm: int = 20  # steps in which the rate grows
    decay: float = 0.01  # of weights
    betas: tuple[float, float] = (0.9, 0.95)
    seed: int = 0
    threads: int | None = None  # sums depend on them

    def at(self, step: int) -> float:
        """The rate of a step: grows for `warm` steps, then falls with a cosine."""
        if step < self.warm:
            return self.rate * (step + 1) / self.warm
        done = (step - self.warm) / max(1, self.steps - self.warm)
        return self.rate * (self.least + (1 - self.least) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def batches(lengths: Sequence[int], tokens: int, seed: int) -> Iterator[list[int]]:
    """Places of texts, for ever: every epoch in another order, texts together until they have `tokens` tokens of answers."""
    epoch = 0
    while True:
        order = list(range(len(lengths)))
        random.Random(f"{seed} {epoch}").shuffle(order)
        part, size = list[int](), 0
        for place in order:
            part.append(place)
            size += lengths[place]
            if size >= tokens:
                yield part
                part, size = [], 0
        if part:
            yield part
        epoch += 1


def in_epoch(lengths: Sequence[int], tokens: int, seed: int = 0) -> int:
    """Steps of the first epoch."""
    count, size = 0, 0
    order = list(range(len(lengths)))
    random.Random(f"{seed} 0").shuffle(order)
    for place in order:
        size += lengths[place]
        if size >= tokens:
            count, size = count + 1, 0
    return count + (size > 0)


class Loop:
    """One training. `trainee` is a module as well."""

    def __init__(self, trainee: Trainee, states: States, schedule: Schedule, folder: Path) -> None:
        assert isinstance(trainee, nn.Module)
        self.trainee, self.module = trainee, trainee
        self._states, self._schedule, self._folder = states, schedule, folder
        self._optimiser = Optimiser(trainee.groups(), schedule.rate, schedule.betas, schedule.decay)
        self.step, seen = checkpoint.load(folder, trainee, self._optimiser)
        self.loss = seen.get("loss", math.nan)  # of the newest steps, about

    def run(
        self,
        report: Callable[[int, Mapping[str, float]], None],
        cancelled: Callable[[], bool],
        looks: Callable[[int], Mapping[str, float]] | None = None,
    ) -> None:
        """The steps that are left. `looks`: what is measured after some of them, figures for the log.

        Raises Cancelled, with a checkpoint; ModelError where the loss is no number, the last good checkpoint kept.
        """
        lengths = [len(text.ids) - text.first for text in self._states.texts]
        order = batches(lengths, self._schedule.tokens, self._schedule.seed)
        for _ in range(self.step):
            next(order)
        self._cut_log()
        saved = time.monotonic()
        with (self._folder / LOG).open("a", encoding="utf-8") as log:
            while self.step < self._schedule.steps:
                figures = self._one(next(order))
                self.step += 1
                more = looks(self.step) if looks is not None else {}
                figures |= more
                log.write(json.dumps({"step": self.step, **figures}) + "\n")
                report(self.step, figures)
                stop = cancelled()
                if stop or more or time.monotonic() - saved > SAVED or self.step == self._schedule.steps:
                    log.flush()
                    self._save()
                    saved = time.monotonic()
                if stop:
                    raise Cancelled

    def timed(self) -> tuple[float, int]:
        """Seconds and tokens of all steps but the first, which warms up; nothing is kept."""
        lengths = [len(text.ids) - text.first for text in self._states.texts]
        order = batches(lengths, self._schedule.tokens, self._schedule.seed)
        seconds, tokens = 0.0, 0
        for step in range(self._schedule.steps):
            numbers, began = next(order), time.monotonic()
            self._one(numbers)
            if step:
                seconds += time.monotonic() - began
                tokens += sum(lengths[number] for number in numbers)
        return seconds, tokens

    def _one(self, numbers: Sequence[int]) -> dict[str, float]:
        rate = self._schedule.at(self.step)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        batch = replace(self._states.batch(numbers), done=self.step / self._schedule.steps)
        luck = torch.Generator(batch.ids.device).manual_seed(_seed(self._schedule.seed, self.step))
        self._optimiser.zero_grad(set_to_none=True)
        with there(batch.ids.device), _mixed(batch.states):
            figures: dict[str, Any] = dict(self.trainee.learn(batch, luck))
        parts = [part for group in self._optimiser.param_groups for part in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(parts, NORM))
        if not (math.isfinite(norm) and math.isfinite(figures["loss"])):
            raise ModelError(
                f"The loss of step {self.step + 1} is {figures['loss']:g} and its gradients are {norm:g} long: it goes nowhere.",
                f"The last good state is kept in {self._folder / checkpoint.NAME}; begin anew with a lower --rate.",
            )
        self._optimiser.step()
        loss = float(figures["loss"])
        self.loss = loss if math.isnan(self.loss) else self.loss + 0.05 * (loss - self.loss)
        return {name: round(float(value), 6) for name, value in figures.items()} | {
            "rate": rate,
            "norm": round(norm, 4),
        }

    def _save(self) -> None:
        try:
            seen = {} if math.isnan(self.loss) else {"loss": self.loss}
            checkpoint.save(self._folder, self.step, self.module, self._optimiser, seen)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"The checkpoint could not be written to {self._folder}: {getattr(error, 'strerror', None) or error}.",
                "Make room and give the same command with --resume; the one before is kept.",
            ) from error

    def _cut_log(self) -> None:
        """Drop what was written behind the checkpoint: those steps are done again."""
        path = self._folder / LOG
        if not path.exists():
            return
        lines: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] > self.step:
                    break
            except (ValueError, KeyError, TypeError):  # half a line
                break
            lines.append(line + "\n")
        unready = path.with_name(f"{LOG}.part")
        unready.write_text("".join(lines), encoding="utf-8")
        os.replace(unready, path)


def there(device: torch.device) -> AbstractContextManager[object]:
    """What is made in it is made on the device, unless it says otherwise."""
    return nullcontext() if device.type == "cpu" else device


def _seed(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step) % (1 << 62)


@contextmanager
def _mixed(like: torch.Tensor) -> Iterator[None]:
    """Products in bf16 where the target computes in that, weights and sums in fp32; else all as it is."""
    if like.dtype != torch.bfloat16:
        yield
        return
    with torch.autocast(like.device.type, torch.bfloat16), evened(like.device):
        yield
