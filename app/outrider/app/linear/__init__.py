"""The chat without a screen: plain lines from top to bottom, whole sentences, everything that happens in words.

For screen readers, and for terminals that can only print. It takes turns: one writes a line, then the answer comes, and
nothing is written over. Chats are kept and gone on with as on the screen.
"""

from __future__ import annotations

import asyncio
import sys

from outrider.app.chat import ChatOptions


def run_linear(options: ChatOptions) -> int:
    """Chat line by line until the user quits or the input ends; returns the exit code."""
    from outrider.app.linear.desk import Desk
    from outrider.app.linear.reader import Reader

    desk, reader = Desk(options, sys.stdout), Reader(sys.stdin, sys.stdout)
    with asyncio.Runner() as runner:
        try:
            runner.run(desk.begin())
            while not desk.left and (text := reader.ask(desk.prompts, desk.take_typed())) is not None:
                runner.run(desk.take(text))
        finally:
            runner.run(desk.close())
    return desk.code
