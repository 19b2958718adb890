"""Texts that go to the model with a message: files, and long pastes that are folded to one line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

from outrider.app.render import size
from outrider.app.store.records import Attachment

LIMIT = 4_000_000  # bytes of a file
_LINES, _CHARACTERS = 20, 2000  # a longer paste is folded
_SAMPLE = 60_000  # characters that are counted for an estimate
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(rb"(?:coding|charset)[:=][ \t]*[\"']?([-\w.]+)")
_TICKS = re.compile(r"^\s*(`{3,})", re.MULTILINE)
_PIECES = re.compile(r"[A-Za-z]+|\d|[^\x00-\x7f]|[^\w\s]+|\n+|[ \t]{2,}|_")


class Refused(Exception):
    """A file that cannot go with a message: why, and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def read_file(path: Path, folder: Path | None = None) -> Attachment:
    """A text file, named as seen from `folder`. Raises `Refused` with words for what is no text or too long."""
    name = name_of(path, folder)
    try:
        if path.is_dir():
            raise Refused(f"{name} is a folder.", "Name one of its files.")
        if not path.is_file():
            raise Refused(f"There is no file {name}." if not path.exists() else f"{name} is no ordinary file.")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        whole = path.stat().st_size
    except OSError as error:
        raise Refused(f"{name} cannot be read ({error.strerror}).") from error
    if len(data) > LIMIT:
        raise Refused(f"{name} has {size(whole)}; the most is {size(LIMIT)}.", "Attach the part that matters.")
    return Attachment(name=name, text=_lines(decoded(data, name)), path=str(path.absolute()))


def decoded(data: bytes, name: str, convert: str = "") -> str:
    """Text that is UTF-8, or says itself what it is. Raises `Refused` for anything else; `convert`: a command that helps."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decode(data, encoding, name)
    if b"\0" in data:
        raise Refused(f"{name} is not {'text' if convert else 'a text file'}.", "Only text can be attached.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = _DECLARED.search(data[:1024])
        if found is not None:
            return _decode(data, found[1].decode(), name)
        raise Refused(
            f"{name} is not UTF-8 text (byte {error.start:,}) and does not say what it is.",
            f"Make it UTF-8, as in {convert or f'iconv -t UTF-8 {name}'}.",
        ) from error


def _decode(data: bytes, encoding: str, name: str) -> str:
    try:
        return data.decode(encoding)
    except (LookupError, ValueError) as error:
        raise Refused(f"{name} is not the {encoding} text that it says it is.") from error


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def name_of(path: Path, folder: Path | None = None) -> str:
    """A path as people write it: from the folder they are in, else from home."""
    whole = path.expanduser().absolute()
    for root, lead in ((folder or Path.cwd(), ""), (Path.home(), "~/")):
        if whole.is_relative_to(root) and whole != root:
            return lead + whole.relative_to(root).as_posix()
    return whole.as_posix()


def is_long(text: str) -> bool:
    """Whether a paste is folded to one line."""
    return len(text) > _CHARACTERS or text.count("\n") >= _LINES


def pasted(text: str, others: Sequence[Attachment] = ()) -> Attachment:
    """A paste beside `others`, named by its place among the pastes."""
    number = sum(not one.path for one in others) + 1
    return Attachment(name="pasted text" if number == 1 else f"pasted text {number}", text=_lines(text))


def label(attachment: Attachment) -> str:
    """`notes.md · 3.1 kB`, `pasted 340 lines · 12 kB`."""
    nbytes = len(attachment.text.encode("utf-8", "replace"))
    if attachment.path:
        return f"{attachment.name} · {size(nbytes)}"
    count = len(attachment.text.splitlines())
    return f"pasted {count:,} line{'s' if count != 1 else ''} · {size(nbytes)}"


def estimate(text: str) -> int:
    """About how many tokens a text is: words and signs of a sample, long words counted by their length."""
    sample = text[:_SAMPLE]
    count = sum(1 + (len(piece) - 1) // 7 if piece.isascii() else 1 for piece in _PIECES.findall(sample))
    return round(count * len(text) / max(1, len(sample)))


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """What the model sees: every text in a fence of its own under its name, then the message."""
    return "\n\n".join([*map(_block, attachments), *([text] if text else [])])


def _block(attachment: Attachment) -> str:
    longest = max((len(ticks) for ticks in _TICKS.findall(attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    title = f"File: {attachment.name}" if attachment.path else attachment.name.capitalize()
    end = "" if attachment.text.endswith("\n") or not attachment.text else "\n"
    return f"{title}\n{fence}\n{attachment.text}{end}{fence}"
