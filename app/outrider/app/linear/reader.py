"""Lines from the user: with history and editing where there is a terminal, else as they come."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from time import monotonic
from typing import TextIO

_TWICE = 2.0  # seconds between two presses of ctrl+c that quit
_ASKS, _MORE = "You: ", "More: "


class Reader:
    """Asks for one message at a time. A backslash at the end of a line asks for another one."""

    def __init__(self, source: TextIO, out: TextIO) -> None:
        self._source, self._out = source, out
        self._terminal = source is sys.stdin and source.isatty()
        self._known = 0  # earlier prompts that the history has
        self._pressed = -_TWICE
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
                line = self._line(_MORE if lines else _ASKS, typed)
            except EOFError:
                self._say("")
                return "\n".join(lines) or None
            except KeyboardInterrupt:
                if self._quits():
                    return None
                lines, typed = [], ""
                continue
            typed = ""
            if line.endswith("\\"):
                lines.append(line[:-1])
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

    def _line(self, prompt: str, typed: str) -> str:
        if not self._terminal:
            line = self._source.readline()
            if not line:
                raise EOFError
            line = line.rstrip("\n")
            self._say(prompt + line)  # nobody else shows it
            return line
        if self._readline is None:
            return input(prompt)
        readline = self._readline
        readline.set_startup_hook((lambda: readline.insert_text(typed)) if typed else None)
        return input(prompt)

    def _remember(self, prompts: Sequence[str]) -> None:
        if self._readline is not None:
            for prompt in prompts[self._known :]:
                if "\n" not in prompt:
                    self._readline.add_history(prompt)
        self._known = len(prompts)

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
