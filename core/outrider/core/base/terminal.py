"""A terminal that a program had taken over is given back, also where the program was killed.

The program notes in an open file what it changed. The engine process inherits the file; when its client is gone and the
note is still there, it undoes what the note says. Needs nothing but the standard library, and no terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VARIABLE = "OUTRIDER_TERMINAL"  # the number of the inherited file
SCREEN = "".join(
    (
        "\x1b\\\x1b[?2026l",  # ends what was being written
        "\x1b[?2004l\x1b[?7h\x1b[?2048l",  # pastes unmarked, long lines wrap, sizes by signal alone
        "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l",  # no mouse
        "\x1b[<u\x1b[?1049l",  # ordinary keys, ordinary screen
        "\x1b[?25h\x1b[?1004l\x1b[0m",  # cursor, no reports of focus, no colours
    )
)
"""Undoes everything that the chat on a screen asks of a terminal."""
LINES = "\x1b[?2004l"
"""The same for a prompt of one line."""
_LOOKS, _PAUSE = 50, 0.02  # how often, and how many seconds apart, it is looked whether the program has ended
_MARK = b"# a terminal to give back\n"

_note: int | None = None


def _open_note() -> int:
    global _note
    if _note is None:
        with tempfile.TemporaryFile() as file:
            _note = os.dup(file.fileno())
    return _note


def inherited() -> tuple[dict[str, str], tuple[int, ...]]:
    """Environment and descriptors for the process that is to watch over the terminal; empty if none was ever taken."""
    return ({}, ()) if _note is None else ({VARIABLE: str(_note)}, (_note,))


def take(terminal: int, before: list[Any] | None, during: list[Any] | None, reset: str) -> None:
    """Note that the terminal behind this descriptor is taken, and what gives it back.

    `before` and `during` are its attributes; without `during` they are only set back while nobody else has it.
    """
    with contextlib.suppress(OSError):
        path = os.ttyname(terminal)
        note = {
            "process": os.getpid(),
            "path": path,
            "made": os.stat(path).st_ctime_ns,
            "group": os.getpgrp(),
            "session": os.getsid(0),
            "before": before,
            "during": during,
            "reset": reset,
        }
        file = _open_note()
        os.ftruncate(file, 0)
        os.pwrite(file, _MARK + repr(note).encode(), 0)


def give_back() -> None:
    """Note that the terminal is as it was."""
    if _note is not None:
        os.ftruncate(_note, 0)


def restore_on(signals: Iterable[signal.Signals]) -> None:
    """Let these signals end the process as they do, with the terminal given back before."""

    def end(number: int, _frame: object) -> None:
        if _note is not None:
            _restore(_note)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in signals:
        signal.signal(number, end)


def restore() -> None:
    """The program that started this process is gone: give its terminal back unless it did."""
    if number := os.environ.pop(VARIABLE, ""):
        with contextlib.suppress(OSError, ValueError):
            _restore(int(number))


def _restore(note: int) -> None:
    import fcntl
    from ast import literal_eval

    if os.fstat(note).st_nlink:  # another file has this number
        return
    fcntl.lockf(note, fcntl.LOCK_EX)  # one of several that inherited it
    try:
        data = os.pread(note, 1 << 16, 0)
        if data.startswith(_MARK) and _gone((taken := literal_eval(data[len(_MARK) :].decode()))["process"]):
            os.ftruncate(note, 0)
            _undo(taken)
    finally:
        fcntl.lockf(note, fcntl.LOCK_UN)


def _undo(note: dict[str, Any]) -> None:
    import termios

    path = note["path"]
    group, leader = _foreground(note["session"])
    if os.stat(path).st_ctime_ns != note["made"] or group not in (None, note["group"], leader):
        return  # another terminal under its name, or another program has it by now
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(termios.error):
            untouched = note["during"] == termios.tcgetattr(terminal) if note["during"] else group != leader
            if note["before"] and (untouched or group is None):
                termios.tcsetattr(terminal, termios.TCSANOW, note["before"])
        os.write(terminal, note["reset"].encode())
    finally:
        os.close(terminal)


def _gone(process: int) -> bool:
    """Whether a process has ended, or is this one. One that ends closes its pipes before; one that runs may close one too."""
    for _ in range(_LOOKS):
        try:
            os.kill(process, 0)
            ended = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except ProcessLookupError:
            ended = True
        except OSError:  # there is no /proc, or it is just gone
            ended = False
        if ended or process == os.getpid():
            return True
        time.sleep(_PAUSE)
    return False


def _foreground(session: int) -> tuple[int | None, int | None]:
    """The group of processes that has the session's terminal, and the one of the session's shell; None if unknown."""
    try:
        fields = Path(f"/proc/{session}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None, None
    group, leader = int(fields[5]), int(fields[2])
    return (group if group > 0 else None), leader
