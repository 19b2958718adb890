"""What a training looks like in a terminal: the line of its stage, and under it how loss and acceptance went so far."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import msgspec

from outrider.app import render
from outrider.app.commands import _prompts
from outrider.app.progress import ProgressLine
from outrider.core.protocol import Event, Message, Progress, TrainPrompt

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # columns of a curve


def prompts(path: str | None) -> list[TrainPrompt]:
    """What the target is to answer: the first turn of every prompt of a file, or of the bundled ones. Raises WrongUsage."""
    if path is not None:
        return [_asked(one.turns) for one in _prompts.read(path)]
    data = gzip.decompress((files("outrider.assets") / "train_prompts.jsonl.gz").read_bytes())
    lines = (msgspec.json.decode(line, type=_Line) for line in data.splitlines())
    return [_asked(line.turns) for line in lines]


class _Line(msgspec.Struct):
    turns: list[str]


def _asked(turns: Sequence[str]) -> TrainPrompt:
    return TrainPrompt(messages=[Message("user", turns[0])])


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


class Curve:
    """The newest figures of a training, and the way they went."""

    def __init__(self, stream: TextIO, *, terminal: bool) -> None:
        self._line = ProgressLine(stream, terminal=terminal)
        self._stream, self._terminal = stream, terminal
        self.losses: list[float] = []
        self.accepted: list[tuple[float, float]] = []  # step, tokens per pass
        self._below = ""  # what stands under the line

    def show(self, event: Event) -> None:
        """A progress event; anything else is for others."""
        if not isinstance(event, Progress):
            return
        figures = event.figures
        if "loss" in figures:
            self.losses.append(figures["loss"])
        if "tokens_per_pass" in figures:
            self.accepted.append((event.done, figures["tokens_per_pass"]))
            if not self._terminal:
                self._stream.write(f"{self.told(event)}\n")
                self._stream.flush()
        note = self.told(event) if figures else event.note
        self._line.update(msgspec.structs.replace(event, note=note))

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()

    def told(self, event: Progress) -> str:
        """Loss with its curve, tokens per pass of the newest measurement."""
        width = max(8, min(_WIDTH, shutil.get_terminal_size().columns // 4))
        text = f"loss {mean(self.losses[-20:]):.3f} {curve(self.losses, width)}" if self.losses else ""
        if self.accepted:
            text += f" · {self.accepted[-1][1]:.2f} tokens/pass"
            if not self._terminal:
                text = f"step {event.done:.0f} of {event.total:.0f}: {text}"
        return text


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)


def curve(values: Sequence[float], width: int) -> str:
    """Values as blocks, `width` of them at most, each the mean of its share."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [mean(values[low:high]) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in means)


def folder(method: str, model: str, home: Path) -> Path:
    """A fresh folder for a run."""
    stem = render.printable(Path(model).stem or model).replace("/", "-").replace(" ", "-")
    place = home / "training" / f"{stem}-{method}"
    number = 2
    while place.exists():
        place = place.with_name(f"{stem}-{method}-{number}")
        number += 1
    return place
