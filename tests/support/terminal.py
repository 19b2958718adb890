"""A program in a pseudo-terminal, and what its screen would show: for tests that need the whole way out to the bytes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len


class Look(NamedTuple):
    """How a cell looks. Colours are `#rrggbb`, a number of the terminal's own palette, or empty."""

    fg: str = ""
    bg: str = ""
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False
    strike: bool = False


PLAIN = Look()
_FLAGS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 21: "underline", 7: "reverse", 9: "strike"}
_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}
_SEQUENCE = re.compile(
    rb"\x1b\[([<-?]?)([0-9;:]*)([ -/]*)([@-~])"  # CSI
    rb"|\x1b([\]P_^X])([^\x07\x1b]*)(?:\x07|\x1b\\)"  # OSC, DCS, APC and the like
    rb"|\x1b[ -/]*[0-OQ-WYZ`-~\\]"  # others
)
_TEXT = re.compile(rb"[^\x00-\x1f\x7f]+")


class Screen:
    """A small terminal: places the cursor, sets colours, clears. What it does not know is in `strange`."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.title = ""
        self.strange: list[bytes] = []  # sequences and control characters that no screen of text needs
        self.strings: list[bytes] = []  # what was told to the terminal itself: titles, clipboards
        self._x = self._y = 0
        self._look = PLAIN
        self._rest = b""
        self._cells: list[list[tuple[str, Look]]] = []
        self._clear()

    def resize(self, width: int, height: int) -> None:
        """Another size, with nothing on it."""
        self.width, self.height = width, height
        self._clear()

    def lines(self) -> list[str]:
        """The text of each line, without spaces at its end."""
        return ["".join(char for char, _ in row).rstrip() for row in self._cells]

    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines())

    def rows(self) -> list[list[tuple[str, Look]]]:
        """A copy of all cells; the second half of a wide character is empty."""
        return [list(row) for row in self._cells]

    def feed(self, data: bytes) -> None:
        """Take what a program wrote."""
        data = self._rest + data
        at = 0
        while at < len(data):
            if match := _TEXT.match(data, at):
                whole = _whole(match[0]) if match.end() == len(data) else match[0]
                self._write(whole.decode("utf-8", "replace"))
                at += len(whole)
                if len(whole) < len(match[0]):
                    break
            elif data[at] == 0x1B:
                match = _SEQUENCE.match(data, at)
                if match is None:
                    if len(data) - at > 1 << 16:
                        self.strange.append(data[at : at + 20])
                        at += 1
                        continue
                    break
                self._do(match)
                at = match.end()
            else:
                self._control(data[at])
                at += 1
        self._rest = data[at:]

    # ------------------------------------------------------------------------------------------------ what comes

    def _clear(self) -> None:
        self._cells = [[(" ", PLAIN)] * self.width for _ in range(self.height)]

    def _control(self, code: int) -> None:
        if code == 0x0D:
            self._x = 0
        elif code == 0x0A:
            self._y = min(self.height - 1, self._y + 1)
        elif code == 0x08:
            self._x = max(0, self._x - 1)
        else:
            self.strange.append(bytes([code]))

    def _write(self, text: str) -> None:
        for char in text:
            width = cell_len(char)
            if self._y >= self.height:
                continue
            row = self._cells[self._y]
            if not width:
                if 0 < self._x <= self.width:
                    before, look = row[self._x - 1]
                    row[self._x - 1] = before + char, look
                continue
            for x, part in enumerate((char, "")[:width], self._x):
                if x < self.width:
                    row[x] = part, self._look
            self._x += width

    def _do(self, match: re.Match[bytes]) -> None:
        private, numbers, between, final, string, inside = match.groups()
        if string is not None:
            self.strings.append(string + inside)
            if string == b"]" and inside[:2] in (b"0;", b"2;"):
                self.title = inside[2:].decode("utf-8", "replace")
            return
        if final is None:
            if match[0] not in (b"\x1b7", b"\x1b8", b"\x1b=", b"\x1b>"):
                self.strange.append(match[0])
            return
        values = [int(number or 0) for number in re.split(rb"[;:]", numbers)]
        act = {b"H": self._go, b"f": self._go, b"J": self._erase, b"K": self._erase_line, b"m": self._paint}.get(final)
        if private or between:
            if final == b"h" and 1049 in values:
                self._clear()
        elif act is not None:
            act(values)
        elif final not in b"ABCDGtnch":
            self.strange.append(match[0])
        else:
            self._move(final, values[0] or 1)

    def _go(self, values: list[int]) -> None:
        row, column = (values[0], values[1]) if len(values) > 1 else (values[0], 1)
        self._y, self._x = max(0, row - 1), max(0, column - 1)

    def _move(self, final: bytes, by: int) -> None:
        if final == b"A":
            self._y = max(0, self._y - by)
        elif final == b"B":
            self._y = min(self.height - 1, self._y + by)
        elif final == b"C":
            self._x = min(self.width - 1, self._x + by)
        elif final == b"D":
            self._x = max(0, self._x - by)
        elif final == b"G":
            self._x = by - 1

    def _erase(self, values: list[int]) -> None:
        if values[0] in (2, 3):
            self._clear()
        elif values[0] == 0:
            self._erase_line([0])
            for row in self._cells[self._y + 1 :]:
                row[:] = [(" ", PLAIN)] * self.width

    def _erase_line(self, values: list[int]) -> None:
        start = 0 if values[0] == 2 else self._x
        end = self._x if values[0] == 1 else self.width
        for x in range(start, end):
            self._cells[self._y][x] = " ", PLAIN

    def _paint(self, values: list[int]) -> None:
        at = 0
        while at < len(values):
            code = values[at]
            if code in (38, 48) and at + 1 < len(values):
                taken = 5 if values[at + 1] == 2 else 3
                given = values[at + 2 : at + taken]
                color = "#{:02x}{:02x}{:02x}".format(*given) if taken == 5 else str(given[0])
                self._look = self._look._replace(**{"fg" if code == 38 else "bg": color})
                at += taken
                continue
            self._paint_one(code)
            at += 1

    def _paint_one(self, code: int) -> None:
        if code == 0:
            self._look = PLAIN
        elif code in _FLAGS:
            self._look = self._look._replace(**{_FLAGS[code]: True})
        elif code in _ENDS:
            self._look = self._look._replace(**dict.fromkeys(_ENDS[code], False))
        elif code in (39, 49):
            self._look = self._look._replace(**{"fg" if code == 39 else "bg": ""})
        elif 30 <= code % 60 <= 37 or 40 <= code % 60 <= 47:
            bright = 8 if code >= 90 else 0
            self._look = self._look._replace(
                **{"fg" if (code % 60) // 10 == 3 else "bg": str((code % 60) % 10 + bright)}
            )


def _whole(data: bytes) -> bytes:
    """Without the beginning of a character at the end."""
    for cut in range(1, min(4, len(data)) + 1):
        lead = data[-cut]
        if lead & 0xC0 != 0x80:
            need = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
            return data[:-cut] if need > cut else data
    return data


class Terminal:
    """A program in a pseudo-terminal. `screen` is what it shows, `seen` every byte that it wrote."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (80, 24),
        env: Mapping[str, str] | None = None,
        watch: Callable[[float, bytes], None] | None = None,
    ) -> None:
        self.fd, inner = pty.openpty()
        self.screen = Screen(*size)
        self._resize(size, inner)
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})},
        )
        os.close(inner)
        self.seen = b""
        self._watch = watch

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)

    def resize(self, width: int, height: int) -> None:
        """The window gets another size."""
        self._resize((width, height), self.fd)
        self.screen.resize(width, height)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def _resize(self, size: tuple[int, int], fd: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def read(self, patience: float = 0.05) -> bool:
        """Take what comes within `patience` seconds; False once the program has ended and all is read."""
        if not select.select([self.fd], [], [], patience)[0]:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:  # nobody is at the other end
            return False
        if self._watch is not None:
            self._watch(time.monotonic(), data)
        self.seen += data
        self.screen.feed(data)
        return bool(data)

    def rest(self, seconds: float) -> None:
        """Go on reading for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self.read(left):
            pass

    def until(self, words: str | bytes | Callable[[], object], patience: float = 60.0) -> None:
        """Read until the screen shows these words, these bytes have come, or something holds."""
        deadline = time.monotonic() + patience
        while not self._holds(words):
            assert time.monotonic() < deadline, f"{words!r} never came:\n{self.screen.text()}"
            if not self.read():
                assert self._holds(words), f"{words!r} never came, it has ended:\n{self.screen.text()}"

    def _holds(self, words: str | bytes | Callable[[], object]) -> object:
        if isinstance(words, str):
            return words in self.screen.text()
        return words in self.seen if isinstance(words, bytes) else words()

    def ends(self, patience: float = 60.0) -> int:
        """Read until the program has ended; returns its exit code."""
        deadline = time.monotonic() + patience
        while self.read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen.text()}"
        return self.process.wait(patience)

    def type(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self.fd, keys.encode() if isinstance(keys, str) else keys)

    def children(self) -> list[int]:
        """Process ids of the program's children."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def cpu(self, *, main: bool = False) -> float:
        """CPU seconds so far of the program's threads that live, or of its `main` one alone."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        which = [tasks / str(self.process.pid)] if main else list(tasks.iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in which) / 1e9
