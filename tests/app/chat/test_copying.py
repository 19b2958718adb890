"""What is copied, and which way it goes."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest
from chat_support import answer

from outrider.app.chat import clipboard
from outrider.app.chat.codes import codes_of
from outrider.app.chat.copying import written
from outrider.app.chat.talk import Chat, Reply, Turn

XTERM = {"TERM": "xterm-256color"}


def payload(sequence: str) -> str:
    """What a terminal would take from an OSC 52."""
    encoded = sequence.partition("]52;c;")[2].partition("\x07")[0]
    return base64.b64decode(encoded).decode()


def test_the_terminal_takes_it() -> None:
    sent: list[str] = []
    done = clipboard.copy("héllo 🙂", sent.append, env=XTERM, find=lambda name: name)
    assert done == clipboard.Copied(7, "terminal") and [payload(one) for one in sent] == ["héllo 🙂"]
    assert done.told() == "Copied 7 characters (terminal)" and "the chat, 7" in done.told("the chat")
    assert clipboard.Copied(1, "x").told() == "Copied 1 character (x)"


def test_multiplexers_pass_it_on() -> None:
    plain, wrapped = clipboard.sequences("text", {"TERM": "screen-256color", "TMUX": "/tmp/t,1,0"})
    assert payload(plain) == "text" and plain.startswith("\x1b]52")
    assert wrapped.startswith("\x1bPtmux;\x1b\x1b]52;") and wrapped.endswith("\x07\x1b\\")
    assert clipboard.sequences("text", {"TERM": "tmux-256color"})[0] == plain
    (long,) = clipboard.sequences("y" * 2000, {"TERM": "screen", "STY": "1.tty"})
    parts = long.split("\x1bP")[1:]
    assert len(parts) > 4 and all(part.endswith("\x1b\\") and len(part) < 768 for part in parts)
    assert payload("".join(part.removesuffix("\x1b\\") for part in parts)) == "y" * 2000


def test_tmux_keeps_it_and_the_terminal_may_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_tools(monkeypatch)
    sent: list[str] = []
    done = clipboard.copy("text", sent.append, env={**XTERM, "TMUX": "/tmp/t,1,0"}, find=lambda name: name)
    assert done.where == "tmux" and ran == [(("tmux", "load-buffer", "-w", "-"), b"text")] and len(sent) == 1


def run_tools(monkeypatch: pytest.MonkeyPatch, good: bool = True) -> list[tuple[Any, bytes]]:
    """Programs that note what they are given."""
    ran: list[tuple[Any, bytes]] = []

    def run(command: Any, *, input: bytes, **_: Any) -> Any:
        ran.append((command, input))
        return type("Done", (), {"returncode": 0 if good else 1})

    monkeypatch.setattr(clipboard.subprocess, "run", run)
    return ran


@pytest.mark.parametrize(
    ("env", "has", "program"),
    [
        ({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, {"wl-copy", "xclip"}, "wl-copy"),
        ({"DISPLAY": ":0"}, {"wl-copy", "xclip", "xsel"}, "xclip"),
        ({"DISPLAY": ":0"}, {"xsel"}, "xsel"),
        ({"TERM_PROGRAM": "Apple_Terminal", "TERM": "xterm"}, {"pbcopy"}, "pbcopy"),
        ({}, {"clip.exe"}, "clip.exe"),
    ],
)
def test_programs_where_the_terminal_is_deaf(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], has: set[str], program: str
) -> None:
    ran = run_tools(monkeypatch)
    sent: list[str] = []
    done = clipboard.copy(
        "é", sent.append, env={"TERM": "linux", **env}, find=lambda name: name if name in has else None
    )
    assert done.where == program and not sent and ran[0][0][0] == program
    assert ran[0][1].decode("utf-16le" if program == "clip.exe" else "utf-8") == "é"


def test_doubtful_terminals_come_after_programs_and_long_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_tools(monkeypatch)
    sent: list[str] = []
    gnome = {**XTERM, "VTE_VERSION": "7200", "DISPLAY": ":0"}
    assert clipboard.copy("a", sent.append, env=gnome, find=lambda name: name).where == "xclip" and not sent
    assert clipboard.copy("a", sent.append, env=gnome, find=lambda name: None).where == "terminal" and len(sent) == 1
    long = clipboard.copy("a" * 90_000, sent.append, env={**XTERM, "DISPLAY": ":0"}, find=lambda name: name)
    assert long.where == "xclip" and len(sent) == 1 and len(ran) == 2


def test_a_file_at_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    run_tools(monkeypatch, good=False)
    done = clipboard.copy("kept", print, env={"TERM": "dumb", "DISPLAY": ":0"}, find=lambda name: name)
    (path,) = tmp_path.rglob("clipboard.txt")
    assert path.read_text() == "kept" and done.where.endswith("clipboard.txt")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    path.mkdir()
    assert "Not copied: " in clipboard.copy("x", print, env={"TERM": "dumb"}, find=lambda name: None).told()


def test_code_blocks_of_a_text() -> None:
    text = "a\n```python x\nx = 1\n\n```\n- b\n\n  ~~~\n  in a list\n    deeper\n  ~~~\n\nc\n\n    indented\n\n"
    text += "```\n\n```\n```sh\nopen"
    codes = codes_of(text)
    assert [(code.language, code.text) for code in codes] == [
        ("python", "x = 1\n"),
        ("", "in a list\n  deeper"),
        ("", "indented"),
        ("sh", "open"),
    ]
    assert codes[1].title == "code, 2 lines: in a list"


def test_a_chat_as_markdown() -> None:
    reply = Reply()
    reply.answer.add("Fine.\n\n```\nx\n```\n", "P")
    chat = Chat("Be brief.", turns=[Turn("How?\n", reply), Turn("refused", failed=True), Turn("And?")])
    assert (
        written(chat)
        == "# System\n\nBe brief.\n\n# You\n\nHow?\n\n# Assistant\n\nFine.\n\n```\nx\n```\n\n# You\n\nAnd?\n"
    )
    assert written(Chat()) == ""


TWO = "Here:\n\n```py\nx = 1\n```\n\nand\n\n```\nsecond\n```\n"


async def test_copying_on_the_screen(ride: Any) -> None:
    async with ride(answer(TWO), answer("No *code* here.\n")) as chat:
        await chat.type("/copy")
        assert "no reply to copy" in chat.status
        await chat.type("/copy chat")
        assert "Nothing was said" in chat.status
        await chat.ask("go")
        await chat.pilot.press("ctrl+y")
        assert chat.app.clipboard == TWO and f"Copied the reply, {len(TWO)} characters (terminal)" in chat.status
        await chat.type("/copy code 2")
        assert chat.app.clipboard == "second" and "code block 2 of 2, 6 characters" in chat.status
        await chat.type("/copy code 3")
        assert "code blocks 1 to 2" in chat.status
        await chat.pilot.press("ctrl+o", "K")
        await chat.until(lambda: "Which code block?" in chat.screen() and "1  py, 1 line: x = 1" in chat.screen())
        await chat.pilot.press("1")
        await chat.until(lambda: chat.app.clipboard == "x = 1")
        await chat.pilot.press("alt+up")
        await chat.letter("x")
        await chat.until(lambda: "Which code block?" in chat.screen())
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert chat.app.clipboard == "x = 1"
        chat.chat.prompt.focus()
        await chat.ask("more")
        await chat.type("/copy-code")
        assert "no code block" in chat.status
        await chat.type("/copy nonsense")
        await chat.until(lambda: "not nonsense" in chat.screen())
        await chat.pilot.press("ctrl+o", "C")
        await chat.until(lambda: "Copied the chat" in chat.status)
        assert chat.app.clipboard == written(chat.session.chat) and "Copied the chat, " in chat.status
