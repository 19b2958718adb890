"""Text for terminals and pipes: tables, sizes, safe text, the marks of accepted words."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TextIO

import click
import msgspec

from outrider.app.text import padded, sanitize
from outrider.app.text import width as cells
from outrider.core.base import protocol

_JSON_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u206f\ufff9-\ufffb]")


def printable(text: str) -> str:
    """Text without what a terminal would act on; newlines and tabs stay."""
    return sanitize(text, drop=True)


class Failure(Exception):
    """The command failed: what and why, what to do next, the exit code."""

    def __init__(self, message: str, hint: str = "", code: int = 1) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code


class WrongUsage(click.UsageError):
    """Wrong usage with a next step of its own."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def clean_text(text: str) -> str:
    """Text from the shell or a file with every byte that is no UTF-8 replaced, so that it can travel."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def say(message: str, hint: str = "") -> None:
    """One message for the person, on stderr, with the next step on a line of its own."""
    click.echo(printable(message), err=True)
    if hint:
        click.echo(printable(hint), err=True)


def size(nbytes: float) -> str:
    """A size as people write it: `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 99.95 else f"{nbytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """A duration as people say it: `4 s`, `2 min 10 s`, `1 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Columns under a heading, two spaces apart. `right`: the columns with figures."""
    lines = [tuple(head), *(tuple(printable(cell).replace("\n", " ") for cell in row) for row in rows)]
    widths = [max(cells(line[i]) for line in lines) for i in range(len(head))]
    aligned = set(right)

    fitted = [[padded(cell, widths[i], right=i in aligned) for i, cell in enumerate(line)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in fitted)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line, the values in one column."""
    lines = [(printable(name), printable(value)) for name, value in rows]
    width = max((cells(name) for name, _ in lines), default=0)
    return "\n".join(f"{padded(name, width)}  {value}" for name, value in lines)


def json_text(value: Any, *, pretty: bool = True) -> bytes:
    """JSON in UTF-8 without raw control characters, so that it is safe on a terminal too."""
    data = msgspec.json.encode(protocol.plain(value))
    text = msgspec.json.format(data, indent=2 if pretty else 0).decode()
    return _JSON_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def echo_json(value: Any, *, pretty: bool = True) -> None:
    """Exactly one JSON value on stdout, always UTF-8."""
    click.echo(json_text(value, pretty=pretty))


def markdown_cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table or begin markup."""
    clean = printable(text).replace("\n", " ")
    for sign in "\\|`*_<":
        clean = clean.replace(sign, f"\\{sign}")
    return clean


class AnswerWriter:
    """Writes an answer, or a thought, while it comes, flushed with every pass.

    `safe` drops control characters of the model; `mark` is an SGR code that is put around accepted drafts, `base` one for
    all of the text.
    """

    def __init__(self, stream: TextIO, *, safe: bool, mark: str = "", base: str = "") -> None:
        self._stream, self._safe, self._mark = stream, safe, mark
        self._on = f"\x1b[{base}m" if base else ""
        self._last = "\n"
        self._taken = 0  # characters of the answer that came with tokens

    def tokens(self, tokens: Sequence[protocol.Token]) -> None:
        """The tokens of one pass."""
        pieces: list[str] = []
        early = False
        for token in tokens:
            self._taken += len(token.text)
            text = printable(token.text) if self._safe or self._mark else token.text
            if not text:
                continue
            if self._mark and (token.kind == "A") != early:
                early = not early
                pieces.append(f"\x1b[{self._mark}m" if early else "\x1b[0m" + self._on)
            pieces.append(text)
            self._last = text[-1]
        if pieces:
            off = "\x1b[0m" if early or self._on else ""
            self._stream.write(self._on + "".join(pieces) + off)
            self._stream.flush()

    def rest(self, whole: str) -> None:
        """What the engine held back to the end: text that might have become a stop string, half a character."""
        if left := whole[self._taken :]:
            self.tokens([protocol.Token(-1, left, "P")])

    def end(self, *, blank: bool = False) -> None:
        """Close the last line if it is open; with `blank` an empty one follows what was written."""
        if self._last != "\n":
            self._stream.write("\n\n" if blank else "\n")
            self._last = "\n"
        self._stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees this stream."""
    return stream is not None and not stream.closed and stream.isatty()


def is_screen(stream: TextIO | None) -> bool:
    """Whether a person sees this stream on a terminal that knows control sequences."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


def stdin_is_terminal() -> bool:
    """Whether a person can answer a question."""
    return is_terminal(sys.stdin)


class Writer(Protocol):
    """Takes an answer while it comes."""

    def tokens(self, tokens: Sequence[protocol.Token]) -> None:
        """The tokens of one pass."""
        ...

    def rest(self, whole: str) -> None:
        """The whole answer, of which the end may have been held back."""
        ...

    def end(self, *, blank: bool = False) -> None:
        """Nothing more comes now."""
        ...


def stdout_writer(marks: str) -> Writer:
    """The writer for this process's stdout: rendered Markdown where a person sees it."""
    if is_screen(sys.stdout):
        from outrider.app.live import LiveWriter  # brings the libraries of the screen

        return LiveWriter(sys.stdout, mark=marks, colour=not os.environ.get("NO_COLOR"))
    seen = is_terminal(sys.stdout)
    return AnswerWriter(sys.stdout, safe=seen, mark="" if seen else marks)


def thought_writer(marks: str) -> AnswerWriter | None:
    """A dim one on stderr for what the model thinks; None unless a person sees it beside the answer."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        return None
    able = is_screen(sys.stderr)
    return AnswerWriter(sys.stderr, safe=True, mark=marks if able else "", base="2" if able else "")
