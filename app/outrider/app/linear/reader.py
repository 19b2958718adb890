"""Lines from the user: with history and editing where there is a terminal, else as they come.

Lines of a terminal that come together were pasted: all of them are one message.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TextIO

from outrider.app.render import clean_text

_TWICE = 2.0  # seconds between two presses of ctrl+c that quit
_ASKS, _MORE = "You: ", "More: "
_TOGETHER = 0.05  # seconds between lines that nobody typed one after the other
_READ = 4096
_NO_TEXT = re.compile("\x1b\\[20[01]~|[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # marks of a paste, control characters
_LINE_END = re.compile("\r\n?|\n")


class _Stopped(Exception):
    """The key that stops programs was pressed while `line` stood there."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


@contextlib.contextmanager
def _stoppable(line: Callable[[], str]) -> Iterator[None]:
    """Leave the line before the program stops: the shell gets its terminal back as it was, and so do we afterwards."""

    def stop(_number: int, _frame: object) -> None:
        raise _Stopped(line())

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


class Reader:
    """Asks for one message at a time. A backslash at the end of a line asks for another one."""

    def __init__(self, source: TextIO, out: TextIO) -> None:
        self._source, self._out = source, out
        self._terminal = source is sys.stdin and source.isatty()
        self._known = 0  # earlier prompts that the history has
        self._pressed = -_TWICE
        self._ahead: list[str] = []  # messages that were typed while nothing was asked
        self._ahead_at = -_TOGETHER  # when the newest line of them came
        self._closed = False
        self._readline = None
        if self._terminal:
            with contextlib.suppress(ImportError):  # not on every system
                import readline

                self._readline = readline

    def ask(self, prompts: Sequence[str] = (), typed: str = "") -> str | None:
        """The next message that is not blank, None at the end. `prompts`: earlier ones; `typed` stands there already."""
        self._remember(prompts)
        lines: list[str] = []
        while True:
            try:
                line, rest = self._next(_MORE if lines else _ASKS, typed)
            except EOFError:
                self._say("")
                return "\n".join(lines) or None
            except KeyboardInterrupt:
                if self._quits():
                    return None
                lines, typed = [], ""
                continue
            typed = rest
            if line.endswith("\\") or rest:
                lines.append(line.removesuffix("\\"))
                continue
            text = "\n".join([*lines, line]).strip("\n")
            lines = []
            if text.strip():
                return text

    def _quits(self) -> bool:
        """Whether this ctrl+c is the second one."""
        try:
            again = monotonic() - self._pressed < _TWICE
            self._pressed = monotonic()
            self._say("" if again else "\nPress ctrl+c again to quit.")
        except KeyboardInterrupt:  # while that was said
            return True
        return again

    def _next(self, prompt: str, typed: str) -> tuple[str, str]:
        """The next line with all that came with it, and the beginning of a line that is still to be ended."""
        if self._ahead and not typed:
            line = self._ahead.pop(0)
            self._say(prompt + line.replace("\n", f"\n{_MORE}"))
            return line, ""
        if self._closed:
            raise EOFError
        return self._together(self._line(prompt, typed))

    def _line(self, prompt: str, typed: str) -> str:
        if not self._terminal:
            line = self._source.readline()
            if not line:
                raise EOFError
            line = line.rstrip("\n")
            self._say(prompt + line)  # nobody else shows it
            return line
        if self._readline is None:
            return clean_text(input(prompt))
        readline = self._readline
        while True:
            readline.set_startup_hook(partial(readline.insert_text, typed) if typed else None)
            try:
                with _stoppable(readline.get_line_buffer):
                    return clean_text(input(prompt))
            except _Stopped as stopped:
                typed = stopped.line
                os.kill(os.getpid(), signal.SIGTSTP)

    # ------------------------------------------------------------------------------------------------ lines that come together

    def _together(self, line: str) -> tuple[str, str]:
        if not self._terminal or not (data := self._waiting()):
            return line, ""
        *more, begun = _LINE_END.split(data.decode("utf-8", "replace"))
        for another in (more := [_NO_TEXT.sub("", another) for another in more]):
            self._say(_MORE + another)
        return "\n".join([line, *more]), _NO_TEXT.sub("", begun)

    def _waiting(self) -> bytes:
        """What waits behind a line; the terminal shows whole lines alone unless it is told otherwise."""
        try:
            import termios
        except ImportError:  # not on every system
            return b""
        terminal = self._source.fileno()
        attributes = termios.tcgetattr(terminal)
        at_once = [*attributes[:3], attributes[3] & ~(termios.ICANON | termios.ECHO), *attributes[4:]]
        termios.tcsetattr(terminal, termios.TCSANOW, at_once)
        found = b""
        try:
            while select.select([terminal], [], [], _TOGETHER)[0] and (data := os.read(terminal, _READ)):
                found += data
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        return found

    @contextlib.contextmanager
    def listening(self, loop: AbstractEventLoop) -> Iterator[None]:
        """Take lines that are typed meanwhile, each for a message of its own unless they come together."""
        if not self._terminal or self._closed:
            yield
            return
        terminal = self._source.fileno()
        loop.add_reader(terminal, self._take, loop, terminal)
        try:
            yield
        finally:
            loop.remove_reader(terminal)

    def _take(self, loop: AbstractEventLoop, terminal: int) -> None:
        data = os.read(terminal, _READ)
        if not data:
            self._closed = True
            loop.remove_reader(terminal)
            return
        line = _NO_TEXT.sub("", data.decode("utf-8", "replace").rstrip("\n"))
        now = monotonic()
        if self._ahead and now - self._ahead_at < _TOGETHER:
            self._ahead[-1] += f"\n{line}"
        else:
            self._ahead.append(line)
        self._ahead_at = now

    # ------------------------------------------------------------------------------------------------ history

    def _remember(self, prompts: Sequence[str]) -> None:
        if self._readline is not None:
            for prompt in prompts[self._known :]:
                if "\n" not in prompt:
                    self._readline.add_history(prompt)
        self._known = len(prompts)

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
