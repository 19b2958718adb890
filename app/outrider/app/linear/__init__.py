"""The chat without a screen: plain lines from top to bottom, whole sentences, everything that happens in words.

For screen readers, and for terminals that can only print. It takes turns: one writes a line, then the answer comes, and
nothing is written over. Chats are kept and gone on with as on the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

from outrider.app.chat import ChatOptions
from outrider.core.base import terminal


def run_linear(options: ChatOptions) -> int:
    """Chat line by line until the user quits or the input ends; returns the exit code."""
    from outrider.app.linear.desk import Desk
    from outrider.app.linear.reader import Reader

    desk, reader = Desk(options, sys.stdout), Reader(sys.stdin, sys.stdout)
    with asyncio.Runner() as runner, _given_back():
        loop = runner.get_loop()
        try:
            with reader.listening(loop):
                runner.run(desk.begin())
            while not desk.left and (text := reader.ask(desk.prompts, desk.take_typed())) is not None:
                with reader.listening(loop):
                    runner.run(desk.take(text))
        finally:
            runner.run(desk.close())
    return desk.code


@contextlib.contextmanager
def _given_back() -> Iterator[None]:
    """The terminal edits lines as before, however the chat ends."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin.fileno())
    terminal.take(sys.stdin.fileno(), before, None, terminal.LINES if sys.stdout.isatty() else "")
    terminal.restore_on((signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGABRT))
    try:
        yield
    finally:
        terminal.give_back()
