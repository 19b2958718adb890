"""The terminal as the screen library drives it: any bytes may come in, and the terminal is given back however it ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import termios
from collections.abc import Iterator
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from textual import constants
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.linux_inline_driver import LinuxInlineDriver
from textual.events import CursorPosition, Paste, Resize
from textual.message import Message

from outrider.app.chat.keyboard import Input, InputDecoder
from outrider.core.base import terminal

if TYPE_CHECKING:
    from textual.app import App

_READ = 4096
_LOOK = 0.1  # seconds between two looks whether the input is to end
_LARGEST = 10_000  # cells of a window; a terminal that says more is not believed
_ENDING = (signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGTERM)
_CARRIED = ("last_x", "last_y", "mouse_pixels", "terminal_size", "terminal_pixel_size")


class Translator:
    """Makes the screen library's events of whole sequences, so that nothing of one it does not know is left over."""

    def __init__(self) -> None:
        self._characters = XTermParser()  # never sees a sequence
        self._newest = XTermParser()  # knows mouse and window

    def events(self, item: Input) -> Iterator[Message]:
        """The events of one piece of input."""
        if item.kind == "paste":
            yield Paste(item.text)
        elif item.kind == "keys":
            yield from self._characters.feed(item.text)
        else:
            yield from self._parsed(item.text)

    def _parsed(self, sequence: str) -> list[Message]:
        """By a parser of its own, as the library's waits for more where it does not know one."""
        parser = XTermParser()
        for name in _CARRIED:
            setattr(parser, name, getattr(self._newest, name))
        try:
            found = list(parser.feed(sequence))
            if len(sequence) <= 2:  # ESC, or alt with a character: no more follows
                found += parser.feed("")
        except (ValueError, ArithmeticError):  # numbers in it that mean no character and no place
            return []
        if any(isinstance(event, Resize) and not 0 < min(event.size) <= max(event.size) <= _LARGEST for event in found):
            return []
        self._newest = parser
        return found


class _Output:
    """The terminal as a file. One that was hung up takes what it is given and keeps nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class _AnyBytes(Driver):
    """Reads whatever bytes come."""

    fileno: int
    exit_event: Event
    _first = True

    def run_input_thread(self) -> None:
        """Read until told to end, first what was typed before this began."""
        decoder, translator = InputDecoder(constants.ESCAPE_DELAY), Translator()
        first, self._first = self._first, False
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            if first and selector.select(0) and (data := self._read()):
                self._pass_on(translator, decoder.typed_ahead(data, monotonic()))
            while not self.exit_event.is_set():
                wait = decoder.wait(monotonic())
                if selector.select(_LOOK if wait is None else min(_LOOK, wait)):
                    if not (data := self._read()):
                        self._loop.call_soon_threadsafe(self._app.exit)
                        return
                    self._pass_on(translator, decoder.feed(data, monotonic()))
                else:
                    self._pass_on(translator, decoder.tick(monotonic()))

    def _read(self) -> bytes:
        """What has come; nothing if the terminal is gone."""
        try:
            return os.read(self.fileno, _READ)
        except OSError:
            return b""

    def _pass_on(self, translator: Translator, found: list[Input]) -> None:
        for item in found:
            for event in translator.events(item):
                if self.is_inline and isinstance(event, CursorPosition):
                    self.cursor_origin = event.x, event.y
                else:
                    self.process_message(event)  # type: ignore[arg-type]


class TerminalDriver(_AnyBytes, LinuxDriver):
    """Reads what was typed before it began too, stops with its whole job, and ends the chat when the terminal goes away."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file: Any = _Output(sys.__stderr__)  # type: ignore[arg-type]
        self._on = False
        unused = (number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL)
        terminal.restore_on(unused)

    # ------------------------------------------------------------------------------------------------ in and out

    def start_application_mode(self) -> None:
        """Take the terminal over."""
        before = self._writer_thread
        super().start_application_mode()
        if self._writer_thread is before:  # in the background there is none to take
            return
        self._on = True
        raw = None
        with contextlib.suppress(termios.error):
            raw = termios.tcgetattr(self.fileno)
        terminal.take(self.fileno, self.attrs_before, raw, terminal.SCREEN)

    def stop_application_mode(self) -> None:
        """Give the terminal back."""
        super().stop_application_mode()
        self._on = False
        terminal.give_back()

    # ------------------------------------------------------------------------------------------------ stopping

    def _sigtstp_application(self, *_: object) -> None:
        """Give the terminal back, then stop with all of the job: a shell waits for every process of it."""
        if self._auto_restart and self._on:
            self.suspend_application_mode()
            self._must_signal_resume = True
        handler = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        os.killpg(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Take the terminal again, also where it was stopped without being asked."""
        if not self._auto_restart:
            return
        if self._on:
            self.suspend_application_mode()
            self._must_signal_resume = True
        if self._must_signal_resume:
            self.resume_application_mode()


class InlineDriver(_AnyBytes, LinuxInlineDriver):
    """The same for a program below the shell's prompt."""
