"""How far a job is, on stderr: one line that rewrites itself in a terminal, plain lines for downloads elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from outrider.app import render
from outrider.app.text import cut
from outrider.core.base import protocol

_VERBS = {
    "bench": "Measuring",
    "download": "Downloading from",
    "engine": "Starting the engine",
    "prompt": "Reading the prompt",
    "tokenizer": "Loading the tokenizer",
    "recheck": "Checking in fp32",
    "unpack": "Unpacking",
    "verify": "Checking",
    "wait": "Waiting:",
    "warm-up": "Warming up",
    "weights": "Loading the model",
}
_DRAW_EVERY = 0.1  # seconds between two paintings
_SPEED_OVER = 4.0  # seconds that the shown speed looks back
_LONG_PROMPT = 512  # tokens; a shorter prefill is over before it could be read
_BAR = 24
_WORDS = 20  # columns that the words have at least


class ProgressLine:
    """Shows the `Progress` events of one request after another. Nothing is drawn until the first event."""

    def __init__(
        self, stream: TextIO | None = None, *, terminal: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = render.is_screen(self._stream) if terminal is None else terminal
        self._clock = clock
        self._drawn = False
        self._open = False  # a plain line announced a download that has not ended
        self._waiting = ""  # the last wait that a plain line named
        self._last = float("-inf")
        self._phase = ("", "")
        self._began = (0.0, 0.0)  # time and done of the first event of this phase
        self._seen: deque[tuple[float, float]] = deque()  # (time, done) of the newest events of this phase

    def update(self, event: protocol.Progress) -> None:
        """Show one event."""
        now = self._clock()
        fresh = (event.phase, event.unit) != self._phase or bool(self._seen and event.done < self._seen[-1][1])
        if fresh:
            self._phase = (event.phase, event.unit)
            self._began = (now, event.done)
            self._seen.clear()
        self._seen.append((now, event.done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _SPEED_OVER:
            self._seen.popleft()
        if self._terminal:
            self._paint(event, now, fresh)
        elif event.unit == "bytes" and event.phase == "download":
            self._plain(event, fresh)
        elif event.phase == "wait" and not self._waiting.startswith(event.note):
            self._waiting = event.note
            self._stream.write(render.printable(f"{_verb(event)}\n"))
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
            self._last = float("-inf")

    def _plain(self, event: protocol.Progress, fresh: bool) -> None:
        finished = bool(event.total) and event.done >= event.total
        if fresh:
            self._open = not finished
            total = f" ({render.size(event.total)})" if event.total else ""
            text = "" if finished else f"{_verb(event)}{total}\n"
        else:
            text = f"Downloaded {render.size(event.total)}.\n" if finished and self._open else ""
            self._open = self._open and not finished
        self._stream.write(render.printable(text))
        self._stream.flush()

    def _paint(self, event: protocol.Progress, now: float, fresh: bool) -> None:
        if event.phase == "prompt" and event.total < _LONG_PROMPT:
            return
        finished = bool(event.total) and event.done >= event.total
        if not (fresh or finished) and now - self._last < _DRAW_EVERY:
            return
        self._last = now
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + self._text(event, width))
        self._stream.flush()
        self._drawn = True

    def _text(self, event: protocol.Progress, width: int) -> str:
        """The line; where it is too long the words are cut rather than the figures."""
        parts: list[str] = []
        in_bytes = event.unit == "bytes"
        if event.total:
            parts.append(_bar(event.done / event.total))
            if in_bytes:
                parts.append(f"{render.size(event.done)} of {render.size(event.total)}")
            else:
                parts.append(f"{event.done:.0f} of {event.total:.0f} {event.unit}".rstrip())
        elif event.done:
            parts.append(render.size(event.done) if in_bytes else f"{event.done:.0f} {event.unit}".rstrip())
        figures = "".join(f"  {part}" for part in (*parts, *self._pace(event)))
        words = render.printable(_verb(event))
        room = width - render.cells(figures)
        if render.cells(words) > room:
            words = cut(words, max(room, _WORDS), "…")
        return cut(words + figures, width)

    def _pace(self, event: protocol.Progress) -> list[str]:
        """Speed and time left of what moves bytes, time left of a benchmark."""
        in_bytes = event.unit == "bytes"
        start, before = self._seen[0] if in_bytes else self._began
        end, after = self._seen[-1]
        if not (in_bytes or event.unit in ("prompts", "answers")) or end - start < 2 * _DRAW_EVERY or after <= before:
            return []
        speed = (after - before) / (end - start)
        left = [f"{render.duration((event.total - after) / speed)} left"] if event.total > after else []
        return [f"{render.size(speed)}/s", *left] if in_bytes else left


def _verb(event: protocol.Progress) -> str:
    verb = _VERBS.get(event.phase, event.phase[:1].upper() + event.phase[1:])
    return f"{verb} {event.note}" if event.note else verb.removesuffix(" from")


def _bar(share: float) -> str:
    full = round(_BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (_BAR - full)
