"""A chat over a scripted engine, and what tests need to look at it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.style import Style
from textual.color import Color
from textual.pilot import Pilot
from textual.widget import Widget

from outrider.app.chat import ChatOptions
from outrider.app.chat.app import ChatApp
from outrider.app.chat.session import State
from outrider.app.chat.transcript import Card, Note

LOADED = {
    "model": "starter",
    "title": "Tiny Test 1M",
    "family": "llama",
    "parameters": 1,
    "nbytes": 1,
    "dtype": "fp32",
    "device": "cpu",
    "threads": 1,
    "context": 256,
    "chat": True,
    "load_s": 0.0,
    "sampling": {"temperature": 0.7},
    "drafters": [
        {"name": "prompt_lookup", "fit": "any", "reason": "repeats the chat", "usable": True},
        {"name": "draft_model", "fit": "no", "reason": "needs weights", "usable": False},
        {"name": "suffix", "fit": "any", "reason": "", "usable": True},
    ],
}


class Ride:
    """A running chat under test."""

    def __init__(self, app: ChatApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.chat, self.session = app.chat, app.chat.session

    async def until(self, predicate: Callable[[], object], patience: float = 10.0) -> None:
        """Wait until `predicate` holds, then until the screen shows it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while not predicate():
            if loop.time() > deadline:
                raise AssertionError(f"waited {patience} s in vain; the screen shows:\n" + "\n".join(self.lines()))
            await asyncio.sleep(0.005)
        await self.pilot.pause(0)

    async def ready(self) -> None:
        """Wait until nothing runs and all of it is painted."""
        idle = (State.READY, State.DIED, State.FAILED)
        await self.until(lambda: self.session.state in idle and not self.chat.stage.live)
        words = self.session.state.value
        await self.until(lambda: words in self.status or self.chat.status.flashing)

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


def step(
    seq: int,
    at: float,
    tokens: Sequence[tuple[str, str]],
    drafter: str = "prompt_lookup",
    thinking: bool = False,
) -> dict[str, Any]:
    """A `Step` of `(text, kind)` tokens as a line of a trace."""
    accepted = sum(kind == "A" for _, kind in tokens)
    frame = {
        "type": "Step",
        "request": 0,
        "seq": seq,
        "t": at,
        "drafter": drafter,
        "proposed": accepted + sum(kind == "C" for _, kind in tokens),
        "accepted": accepted,
        "tokens": [{"id": 7, "text": text, "kind": kind, "thinking": thinking} for text, kind in tokens],
        "draft_ms": 0.1,
        "verify_ms": 1.0,
        "host_ms": 0.1,
    }
    return {"on": "generate", "at": at, "frame": frame}


def end() -> dict[str, Any]:
    """The `Done` of an answer; the scripted engine fills in the report."""
    timing = dict.fromkeys(("load_s", "prefill_s", "first_token_s", "decode_s", "draft_s", "verify_s"), 0.0)
    report = {
        "model": "starter",
        "drafter": "auto",
        "rule": "match",
        "seed": 1,
        "text": "",
        "token_ids": [],
        "prompt_tokens": 5,
        "finish": "stop",
        "passes": 0,
        "proposed": 0,
        "accepted": 0,
        "kinds": "",
        "timing": timing,
        "tokens_per_second": 0.0,
        "drafters": {},
        "speedup": None,
    }
    return {"on": "generate", "at": 0.0, "frame": {"type": "Done", "request": 0, "finish": "stop", "report": report}}


def answer(text: str, kinds: str = "P", pause: float = 0.0) -> list[dict[str, Any]]:
    """A whole answer: words of `text` with these kinds in turn, three words a pass, `pause` seconds apart."""
    words = re.findall(r"\s*\S+|\s+$", text)
    tokens = [(word, kinds[n % len(kinds)]) for n, word in enumerate(words)]
    lines = [step(n, n * pause, tokens[3 * n : 3 * n + 3]) for n in range((len(tokens) + 2) // 3)]
    last = end()
    last["at"] = len(lines) * pause
    return [*lines, last]


def thoughtful(thought: str, text: str, kinds: str = "P", pause: float = 0.0) -> list[dict[str, Any]]:
    """An answer with a thought before it, both as in `answer`, and an empty token of each marker."""
    marker = [step(0, 0.0, [("", "P")], thinking=True)]
    thinks = answer(thought, kinds, pause)[:-1]
    for line in thinks:
        for token in line["frame"]["tokens"]:
            token["thinking"] = True
    lines = [*marker, *thinks, *marker, *answer(text, kinds, pause)]
    made = [json.loads(json.dumps(line)) for line in lines]
    for seq, line in enumerate(made):
        line["at"] = seq * pause
        if line["frame"]["type"] == "Step":
            line["frame"] |= {"seq": seq, "t": seq * pause}
    return made


def loading(seconds: float = 0.0) -> list[dict[str, Any]]:
    """Loading with one progress line half-way."""
    progress = {"type": "Progress", "request": 0, "phase": "reading weights", "done": 43, "total": 100, "unit": "bytes"}
    return [
        {"on": "load", "at": 0.0, "frame": progress},
        {"on": "load", "at": seconds, "frame": {"type": "Result", "request": 0, "data": LOADED}},
    ]


def fails(message: str, hint: str = "") -> list[dict[str, Any]]:
    """An answer that is refused."""
    frame = {"type": "Failed", "request": 0, "message": message, "hint": hint, "usage": True}
    return [{"on": "generate", "at": 0.0, "frame": frame}]


def notices(text: str) -> list[dict[str, Any]]:
    """Something the engine has to say in an answer; more lines must follow."""
    return [{"on": "generate", "at": 0.0, "frame": {"type": "Notice", "request": 0, "text": text}}]


@asynccontextmanager
async def riding(
    folder: Path,
    *answers: list[dict[str, Any]],
    size: tuple[int, int] = (80, 24),
    load: list[dict[str, Any]] | None = None,
    speed: float = 1.0,
    ready: bool = True,
    **options: Any,
) -> AsyncIterator[Ride]:
    """A chat over a scripted engine that gives these answers in turn; `options` go into `ChatOptions`."""
    trace = folder / "trace.jsonl"
    lines = [*(loading() if load is None else load), *(line for one in answers for line in one)]
    trace.write_text("\n".join(map(json.dumps, lines)) + "\n")
    options.setdefault("command", (sys.executable, "-m", "outrider.app.scripted", str(trace), "--speed", str(speed)))
    app = ChatApp(ChatOptions(**options))
    try:
        async with app.run_test(size=size) as pilot:
            chat = Ride(app, pilot)
            if ready:
                await chat.ready()
            yield chat
    finally:
        await app.chat.session.close()
