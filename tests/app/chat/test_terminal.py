"""The chat under a shell in a pseudo-terminal: what is typed before it is there, stopping, going on, and a hard end."""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal
from traces import answer, loading

from outrider.app.chat.terminal import has_job_control
from outrider.core.base.terminal import SCREEN

SHELL = "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('sh', ['sh', '-i'])"
CHAT = """
import sys
from outrider.app.chat import ChatOptions, run_chat
run_chat(ChatOptions(command=(sys.executable, "-m", "outrider.app.scripted", sys.argv[1]), private=True))
"""
RESET = SCREEN.encode()


def shell(folder: Path) -> tuple[Terminal, str]:
    """A shell, and the command that starts a chat."""
    trace, program = folder / "trace.jsonl", folder / "chat.py"
    trace.write_text(
        "\n".join(map(json.dumps, [*loading(), *answer("Hello there.\n"), *answer("Once more.\n")])) + "\n"
    )
    program.write_text(CHAT)
    env = {"PS1": "shell> ", "OUTRIDER_HOME": str(folder / "home"), "ENV": ""}
    return Terminal([sys.executable, "-c", SHELL], env=env), f"{sys.executable} {program} {trace}\n"


def edits_lines(terminal: Terminal) -> bool:
    """Whether the terminal shows what is typed and gives out whole lines."""
    wanted = termios.ICANON | termios.ECHO | termios.ISIG
    return termios.tcgetattr(terminal.fd)[3] & wanted == wanted


def state(pid: int) -> str:
    """The letter that the system has for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_from_a_shell_and_back(tmp_path: Path) -> None:
    terminal, command = shell(tmp_path)
    with terminal:
        terminal.until("shell>")
        terminal.type(command + "asked early\n")
        terminal.until("Hello there.")
        terminal.until("ready")
        (chat,) = terminal.children()
        assert not edits_lines(terminal)

        terminal.type(b"caf\xe9 \x1b]11;rgb:1e1e/")
        terminal.rest(0.1)
        terminal.type(b"1e1e/1e1e\x07\x1b[M \xff\xffx")
        terminal.until("caf\ufffd x")
        terminal.type(b"\x7f" * 20)
        terminal.until("Write a message")
        terminal.type(b"line 1\rline 2\r")
        terminal.until("line 2")
        terminal.rest(0.2)
        assert "Once more." not in terminal.screen.text() and "rgb" not in terminal.screen.text()
        terminal.type(b"\x7f" * 20)
        terminal.until("Write a message")

        mark = len(terminal.seen)
        terminal.type(b"\x1a")
        terminal.until(lambda: state(chat) == "T")
        assert edits_lines(terminal) and b"\x1b[?1049l" in terminal.seen[mark:]
        (engine,) = Path(f"/proc/{chat}/task/{chat}/children").read_text().split()
        assert state(int(engine)) != "T"
        mark = len(terminal.seen)
        terminal.type("fg\n")
        terminal.until(lambda: b"asked early" in terminal.seen[mark:] and b"ready" in terminal.seen[mark:])
        assert not edits_lines(terminal)

        mark = len(terminal.seen)
        os.kill(chat, signal.SIGKILL)
        terminal.until(lambda: RESET in terminal.seen[mark:])
        assert edits_lines(terminal) and terminal.seen[mark:].count(b"\x1b[?1049l") == 1


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV])
@pytest.mark.thorough
def test_after_a_hard_end(tmp_path: Path, number: signal.Signals) -> None:
    terminal, command = shell(tmp_path)
    with terminal:
        terminal.until("shell>")
        terminal.type(command)
        terminal.until("ready")
        (chat,) = terminal.children()
        mark = len(terminal.seen)
        os.kill(chat, number)
        terminal.until(lambda: RESET in terminal.seen[mark:])
        assert edits_lines(terminal) and terminal.seen[mark:].count(b"\x1b[?1049l") == 1


def test_a_terminal_that_goes_away_ends_the_chat(tmp_path: Path) -> None:
    terminal, command = shell(tmp_path)
    with terminal:
        terminal.until("shell>")
        terminal.type(command)
        terminal.until("ready")
        (chat,) = terminal.children()
        os.kill(chat, signal.SIGHUP)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{chat}").exists() and state(chat) != "Z":
            terminal.read()
            assert time.monotonic() < deadline
        assert edits_lines(terminal) and RESET not in terminal.seen


async def test_the_key_that_stops_programs_undoes_where_there_is_text(ride: Any) -> None:
    async with ride(private=True) as chat:
        await chat.pilot.press("a", "ctrl+z")
        assert chat.chat.prompt.text == "" and not chat.chat.status.flashing
        await chat.pilot.press("ctrl+z")
        await chat.until(lambda: "no shell here could bring the chat back" in chat.status)


def test_no_shell_waits_for_a_program_of_a_session_of_its_own() -> None:
    if os.fork() == 0:
        os.setsid()
        os._exit(has_job_control())
    assert os.wait()[1] == 0
