"""A terminal that was taken is given back by whoever is left, once, and only if it still is the same."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator

import pytest

from outrider.core.base import terminal

RESET = "give it back"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The two ends of a terminal that this process has taken."""
    monkeypatch.setattr(terminal, "_note", None)
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    raw = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:]]
    termios.tcsetattr(inner, termios.TCSANOW, raw)
    terminal.take(inner, before, termios.tcgetattr(inner), RESET)
    yield outer, inner
    os.close(outer)
    os.close(inner)
    for number in terminal.inherited()[1]:
        os.close(number)


def restored(outer: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What comes out of the terminal once its program is gone."""
    variables, _ = terminal.inherited()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal.restore()
    assert terminal.VARIABLE not in os.environ
    return os.read(outer, 100).decode() if select.select([outer], [], [], 0)[0] else ""


def edits_lines(inner: int) -> bool:
    return bool(termios.tcgetattr(inner)[3] & termios.ICANON)


def test_given_back_once(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = taken
    assert not edits_lines(inner)
    assert restored(outer, monkeypatch) == RESET and edits_lines(inner)
    assert restored(outer, monkeypatch) == ""


def test_not_after_a_normal_end(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.give_back()
    assert restored(taken[0], monkeypatch) == "" and not edits_lines(taken[1])


def test_attributes_that_somebody_else_has_set_stay(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = taken
    now = termios.tcgetattr(inner)
    now[0] ^= termios.IXON
    termios.tcsetattr(inner, termios.TCSANOW, now)
    monkeypatch.setattr(terminal, "_foreground", lambda _: (7, 7))
    monkeypatch.setattr(os, "getpgrp", lambda: 7)
    terminal.take(inner, now, [*now[:3], 0, *now[4:]], RESET)
    assert restored(outer, monkeypatch) == RESET and termios.tcgetattr(inner)[0] == now[0] and not edits_lines(inner)


def test_not_when_another_program_has_it(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_foreground", lambda _: (os.getpgrp() + 1, os.getpgrp() + 2))
    assert restored(taken[0], monkeypatch) == "" and not edits_lines(taken[1])


def test_no_other_file_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"something else")
        file.flush()
        monkeypatch.setenv(terminal.VARIABLE, str(file.fileno()))
        terminal.restore()
        assert os.stat(file.name).st_size == 14
    monkeypatch.setenv(terminal.VARIABLE, "9999")
    terminal.restore()


def test_not_while_its_program_runs(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_LOOKS", 2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", lambda: program.pid)
            terminal.take(taken[1], None, None, RESET)
        assert terminal.inherited()[1]
        assert restored(taken[0], monkeypatch) == ""


def test_the_engine_gives_it_back(taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        program.wait()
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: program.pid)
        terminal.take(taken[1], None, None, RESET)
    variables, numbers = terminal.inherited()
    command = [sys.executable, "-m", "outrider.core.service"]
    engine = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=numbers, env={**os.environ, **variables}
    )
    assert engine.stdin is not None and engine.stdout is not None and engine.stdout.read(4)
    engine.stdin.close()
    assert select.select([taken[0]], [], [], 60)[0] and os.read(taken[0], 100).decode() == RESET
    engine.kill()
    engine.wait()
    engine.stdout.close()
