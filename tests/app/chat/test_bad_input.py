"""Whatever a model writes and however small the window is: nothing reaches the terminal, nothing breaks, no word is lost."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chat_support import Ride, answer
from nasty import NASTY
from terminal import Terminal
from traces import loading, thoughtful, written

from outrider.app.chat.clean import harmless
from outrider.app.chat.compat import Settled
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.talk import End

LARGE = ("long line", "long code", "table")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CHAT = """
import sys
from outrider.app.chat import ChatOptions, run_chat
run_chat(ChatOptions(command=(sys.executable, "-m", "outrider.app.scripted", sys.argv[1])))
"""


async def shows(chat: Ride, text: str) -> None:
    """Ask; the reply is the text to the letter, all of it is rendered and none of it can do harm."""
    await chat.ask("go")
    reply = chat.session.chat.turns[-1].reply
    assert reply is not None and reply.end is End.WHOLE and reply.text == text
    view = list(chat.chat.query(ReplyView))[-1]
    pieces = "".join(view.piece.text for view in view.query(Settled))
    assert pieces.split() == harmless(text).split()  # pieces with nothing to see are not rendered
    assert not any(_UNSAFE.search(line) for line in chat.lines())
    assert not chat.cards


async def test_what_a_model_may_write(ride: Any) -> None:
    texts = {name: text for name, text in NASTY.items() if name not in LARGE}
    async with ride(*(answer(text, "PAC") for text in texts.values()), private=True) as chat:
        for text in texts.values():
            await shows(chat, text)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(20, 5), (80, 24), (400, 120)])
@pytest.mark.parametrize("name", LARGE)
async def test_much_of_it_at_once(ride: Any, name: str, size: tuple[int, int]) -> None:
    async with ride(answer(NASTY[name], "PAC"), private=True, size=size) as chat:
        await shows(chat, NASTY[name])


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(20, 5), (400, 120)])
async def test_in_windows_of_every_size(ride: Any, size: tuple[int, int]) -> None:
    texts = {name: text for name, text in NASTY.items() if name not in LARGE}
    async with ride(*(answer(text, "PAC") for text in texts.values()), private=True, size=size) as chat:
        for text in texts.values():
            await shows(chat, text)


async def test_the_window_changes_while_it_is_written(ride: Any) -> None:
    text = "".join(NASTY[name] for name in ("emoji", "markup", "ragged"))
    lines = thoughtful("Hm. " * 30, text, "PAC", pause=0.01)
    async with ride(lines, private=True) as chat:
        await chat.type("go")
        for size in ((20, 5), (400, 120), (5, 2), (60, 20), (80, 24)):
            reply = chat.session.chat.turns[-1].reply if chat.session.chat.turns else None
            length = len(reply.text) if reply else 0
            await chat.pilot.resize_terminal(*size)
            await chat.until(
                lambda length=length: (
                    chat.session.current is None or len(chat.session.chat.turns[-1].reply.text) > length
                )
            )
        await chat.ready()
        assert chat.session.chat.turns[-1].reply.text == text
        assert chat.app.screen.size == (80, 24) and "prompt_lookup" in chat.screen()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "env",
    [{}, {"NO_COLOR": "1"}, {"TERM": "xterm", "COLORTERM": ""}, {"TERM": "linux", "COLORTERM": ""}],
    ids=["colours", "none", "eight", "console"],
)
def test_nothing_of_it_reaches_the_terminal(tmp_path: Path, env: Mapping[str, str]) -> None:
    names = ("controls", "directions", "emoji", "markup", "unclosed")
    texts = [f"{NASTY[name]}\n\nfinish{number}" for number, name in enumerate(names)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(written(loading(), *(answer(text, "PAC") for text in texts)))
    home = {"OUTRIDER_HOME": str(tmp_path / "home"), "COLORFGBG": "", **env}
    with Terminal([sys.executable, "-c", CHAT, str(trace)], env=home) as terminal:
        terminal.until("ready")
        for number in range(len(texts)):
            terminal.type(f"question {number}\r")
            terminal.until(f"finish{number}")
            terminal.until("ready")
            terminal.rest(0.2)
        colours = {look for row in terminal.screen.rows() for _, look in row}
        terminal.type("\x11")
        assert terminal.ends() == 0
    assert not terminal.screen.strange
    told = b"\n".join(terminal.screen.strings)
    assert b"owned" not in told and b"b3duZWQ" not in told and b"http://x.y" not in told
    if "NO_COLOR" in env:
        assert {colour[1:3] * 2 for look in colours for colour in look[:2] if colour} == {
            colour[3:] for look in colours for colour in look[:2] if colour
        }  # shades of grey
