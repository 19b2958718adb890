"""A chat over a scripted engine, and what tests need to look at it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from inside import InsideClient
from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot
from textual.widget import Widget
from traces import LOADED as LOADED
from traces import answer as answer
from traces import end as end
from traces import fails as fails
from traces import loading as loading
from traces import notices as notices
from traces import step as step
from traces import thoughtful as thoughtful
from traces import written

from outrider.app.chat import ChatOptions
from outrider.app.chat.app import ChatApp
from outrider.app.chat.session import State
from outrider.app.chat.transcript import Card, Note
from outrider.app.client import EngineClient
from outrider.core.base import protocol


class Ride:
    """A running chat under test."""

    def __init__(self, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.chat, self.session = app.chat, app.chat.session

    async def until(self, predicate: Callable[[], object], patience: float = 60.0) -> None:
        """Wait until `predicate` holds, then until the screen shows it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            begun = time.thread_time()
            if predicate():
                break
            assert self.app.is_running and self.app._exception is None, "the program has ended"
            if loop.time() > deadline:
                raise AssertionError(f"waited {patience} s in vain; the screen shows:\n" + "\n".join(self.lines()))
            await asyncio.sleep(max(0.005, 4 * (time.thread_time() - begun)))  # looking must not be all that is done
        await self.pilot.pause(0)

    def release(self) -> None:
        """Let the engine go on from where `hold` stopped it."""
        assert isinstance(self.session.client, InsideClient)
        self.session.client.release()

    async def ready(self) -> None:
        """Wait until nothing runs and all of it is painted."""
        idle = (State.READY, State.DIED, State.FAILED)
        await self.until(lambda: self.session.state in idle and not self.chat.stage.live)
        words = self.session.state.value
        shown = (words, "esc back")  # the second where letters act on a message
        await self.until(lambda: any(one in self.status for one in shown) or self.chat.status.flashing)

    async def type(self, text: str) -> None:
        """Put text into the prompt and send it."""
        self.chat.prompt.put(text)
        self.chat.prompt.send()
        await self.pilot.pause(0)

    async def ask(self, text: str) -> None:
        """Send a message and wait for its reply."""
        await self.type(text)
        await self.until(lambda: self.session.chat.turns and self.session.chat.turns[-1].text == text)
        await self.ready()

    async def letter(self, *letters: str) -> None:
        """Press letters one by one, each alone, so that none is a part of a text."""
        for letter in letters:
            await self.pilot.press(letter)
            await self.until(lambda: not self.chat.letters.waiting)

    def lines(self) -> list[str]:
        """The screen as text."""
        strips = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips]

    def screen(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines())

    @property
    def status(self) -> str:
        """The line at the bottom."""
        return self.lines()[-1]

    @property
    def cards(self) -> list[str]:
        """Texts of the error cards."""
        return [str(card.visual) for card in self.chat.query(Card)]

    @property
    def notes(self) -> list[str]:
        """Texts of the notes."""
        return [str(note.visual) for note in self.chat.query(Note)]


def underlined(widget: Widget) -> str:
    """The underlined characters of a widget; lines end with a slash."""
    return _those(widget, lambda style: bool(style.underline))


def tinted(widget: Widget, tint: Color) -> str:
    """The characters on a background of this tint; lines end with a slash."""
    ground = (widget.background_colors[1] + tint).rgb
    return _those(widget, lambda style: style.bgcolor is not None and style.bgcolor.triplet == ground)


def _those(widget: Widget, is_one: Callable[[Style], bool]) -> str:
    found = ""
    for y in range(widget.size.height):
        found += "".join(part.text for part in widget.render_line(y) if part.style and is_one(part.style)) + "/"
    return found


@asynccontextmanager
async def riding(
    folder: Path,
    *answers: list[dict[str, Any]],
    size: tuple[int, int] = (80, 24),
    load: list[dict[str, Any]] | None = None,
    speed: float = 1.0,
    ready: bool = True,
    process: bool = False,
    hold: Callable[[protocol.Event], bool] | None = None,
    **options: Any,
) -> AsyncIterator[Ride]:
    """A chat over a scripted engine that gives these answers in turn; `options` go into `ChatOptions`.

    The engine is a `process` of its own only where a test is about that: starting one takes longer than most tests.
    Else the first event that `hold` is true of waits with all that follow until `Ride.release`.
    """
    trace = folder / "trace.jsonl"
    trace.write_text(written(loading() if load is None else load, *answers))
    inside = not process and "command" not in options
    options.setdefault("command", (sys.executable, "-m", "outrider.app.scripted", str(trace), "--speed", str(speed)))
    client = InsideClient.over(trace, speed, hold) if inside else EngineClient
    with patch("outrider.app.chat.session.EngineClient", client):
        app = ChatApp(ChatOptions(**options))
    try:
        async with app.run_test(size=size) as pilot:
            chat = Ride(app, pilot)
            if ready:
                await chat.ready()
            yield chat
    finally:
        await app.chat.session.close()
