"""What a training is asked with, and what it looks like in a terminal: its stage, and how loss and acceptance went so far."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import msgspec

from outrider.app import render
from outrider.app.commands import _prompts
from outrider.app.text import cut
from outrider.core.base.protocol import Event, Message, Progress, TrainPrompt

_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR = 24
_WIDTH = 48  # columns of a curve
_DRAW_EVERY = 0.1  # seconds between two paintings
_SETTLED = 2.0  # seconds after which a time left is told
_NEWEST = 20  # steps whose mean is the loss that is shown
_STAGES = {
    "measuring": "Measuring",
    "answers": "Answering",
    "states": "Reading",
    "training": "Training",
    "engine": "Starting the engine",
    "weights": "Loading the model",
    "warm-up": "Warming up",
}


def prompts(path: str | None) -> list[TrainPrompt]:
    """What the target is to answer, turn after turn: the prompts of a file, or the bundled ones. Raises WrongUsage."""
    if path is not None:
        found = [_asked(one.turns) for one in _prompts.read(path)]
        if not found:
            raise render.WrongUsage(f"There are no prompts in {path}.", "Put one JSON object a line into the file.")
        return found
    data = gzip.decompress((files("outrider.assets") / "train_prompts.jsonl.gz").read_bytes())
    lines = (msgspec.json.decode(line, type=_Line) for line in data.splitlines())
    return [_asked(line.turns) for line in lines]


def chats() -> list[TrainPrompt]:
    """What the user asked in the chats so far, the newest first; what was answered is left aside. Raises Failure."""
    from outrider.app.chat.input.attach import with_attachments
    from outrider.app.store.chats import Store

    found: list[TrainPrompt] = []
    with Store.open() as store:
        if store.repaired or store.trouble is not None:
            render.say(store.repaired or f"Warning: {store.trouble}")
        for row in store.chats():
            whole = store.load(row.id)
            asked = [one for one in whole.path() if one.role == "user" and one.state != "failed"]
            turns = [with_attachments(one.text, one.attachments) for one in asked]
            said = [Message("user", turn) for turn in turns if turn.strip()]
            if said:
                system = [Message("system", whole.chat.system)] if whole.chat.system else []
                found.append(TrainPrompt(messages=[*system, *said]))
    return found


class _Line(msgspec.Struct):
    turns: list[str]


def _asked(turns: Sequence[str]) -> TrainPrompt:
    return TrainPrompt(messages=[Message("user", turn) for turn in turns])


def seconds(text: str) -> float:
    """`90`, `45s`, `10m`, `2h` or `1h30m` as seconds. Raises ValueError."""
    units, total, number = {"s": 1.0, "m": 60.0, "h": 3600.0}, 0.0, ""
    for letter in text.strip().lower():
        if letter in units and number:
            total += float(number) * units[letter]
            number = ""
        else:
            number += letter
    return total + (float(number) if number else 0.0)


class Course:
    """The figures of a training so far, and its stage. Knows no terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.losses: list[float] = []
        self.accepted: list[float] = []  # tokens per pass
        self.event: Progress | None = None
        self._began = (0.0, 0.0)  # time and done of the first event of this stage
        self._now = 0.0

    def recall(self, folder: Path) -> None:
        """Take up what a run did before it was stopped."""
        with suppress(OSError):
            for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # half a line
                    self._figures(json.loads(line))

    def take(self, event: Progress) -> bool:
        """Note an event; whether a stage begins with it."""
        fresh = self.event is None or (self.event.phase, self.event.unit) != (event.phase, event.unit)
        self.event, self._now = event, self._clock()
        if fresh:
            self._began = (self._now, event.done)
        self._figures(event.figures)
        return fresh

    def _figures(self, figures: dict[str, float]) -> None:
        if "loss" in figures:
            self.losses.append(figures["loss"])
        if "tokens_per_pass" in figures:
            self.accepted.append(figures["tokens_per_pass"])

    @property
    def left(self) -> float | None:
        """Seconds until the stage is over, None while that cannot be said."""
        event, (at, done) = self.event, self._began
        if event is None or event.unit == "bytes" or self._now - at < _SETTLED or not done < event.done < event.total:
            return None
        return (event.total - event.done) * (self._now - at) / (event.done - done)

    def stage(self) -> str:
        """The stage, how far it is, and what is left of it."""
        event = self.event
        if event is None:
            return ""
        parts = [_STAGES.get(event.phase, event.phase.capitalize())]
        if event.total:
            parts.append(bar(event.done / event.total))
            parts.append(f"{event.done:,.0f} of {event.total:,.0f} {event.unit}".rstrip())
        if event.note:
            parts.append(event.note)
        if self.left is not None:
            parts.append(f"{render.duration(self.left)} left")
        return "  ".join(parts)

    def lines(self, width: int) -> list[str]:
        """Loss and acceptance, from where they began to where they are, with their curves."""
        columns = max(8, min(_WIDTH, width - 30))
        made = []
        for name, values, newest in (
            ("loss", self.losses, mean(self.losses[-_NEWEST:])),
            ("tokens/pass", self.accepted, mean(self.accepted[-1:])),
        ):
            if values:
                first = mean(values[: max(1, len(values) // columns)])
                made.append(f"  {name:<11} {first:6.2f} {curve(values, columns)} {newest:.2f}")
        return made


class Curve:
    """Shows a training while it goes on: in a terminal a few lines that are painted again and again, else plain lines."""

    def __init__(self, stream: TextIO, *, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.course = Course(clock)
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._drawn, self._last = 0, -math.inf

    def show(self, event: Event) -> None:
        """A progress event; anything else is for others."""
        if not isinstance(event, Progress):
            return
        fresh = self.course.take(event)
        measured = "tokens_per_pass" in event.figures
        if self._terminal:
            ended = bool(event.total) and event.done >= event.total
            if fresh or measured or ended or self._clock() - self._last >= _DRAW_EVERY:
                self._paint()
        elif measured or (fresh and event.phase in ("answers", "states", "training", "measuring")):
            self._stream.write(render.printable(self._plain(event, measured)) + "\n")
            self._stream.flush()

    def clear(self) -> None:
        """Take the lines away, so that something else can be written."""
        if self._drawn:
            self._stream.write(_up(self._drawn) + "\x1b[J")
            self._stream.flush()
        self._drawn, self._last = 0, -math.inf

    def _paint(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        lines = [cut(render.printable(line), width) for line in (self.course.stage(), *self.course.lines(width))]
        back = _up(self._drawn) if self._drawn else ""
        self._stream.write(back + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        self._stream.flush()
        self._drawn, self._last = len(lines), self._clock()

    def _plain(self, event: Progress, measured: bool) -> str:
        stage = _STAGES.get(event.phase, event.phase.capitalize())
        if not measured:
            return f"{stage} {event.total:,.0f} {event.unit}".rstrip() if event.total else f"{stage} {event.note}"
        loss = f"loss {mean(self.course.losses[-_NEWEST:]):.3f}, " if self.course.losses else ""
        left = f", {render.duration(self.course.left)} left" if self.course.left is not None else ""
        return f"{stage} step {event.done:,.0f} of {event.total:,.0f}: {loss}{self.course.accepted[-1]:.2f} tokens a pass{left}"


def _up(lines: int) -> str:
    """To the beginning of the first of so many lines."""
    return "\r" + (f"\x1b[{lines - 1}A" if lines > 1 else "")


def bar(share: float, cells: int = _BAR) -> str:
    """A share as a bar."""
    full = round(cells * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (cells - full)


def mean(values: Sequence[float]) -> float:
    """0 of none."""
    return sum(values) / max(1, len(values))


def curve(values: Sequence[float], width: int) -> str:
    """Values as blocks, `width` of them at most, each the mean of its share."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [mean(values[low:high]) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in means)
