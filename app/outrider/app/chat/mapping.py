"""From a rendered character back to the source character it came from, block by block.

Strict by design: the walk follows the Markdown tokens from left to right and expects every sign of markup where it must
stand. A block that does not match to the last character is given up as a whole, never guessed.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from outrider.app.chat.inline import PICTURE
from outrider.app.chat.markdown_rules import add_rules

_ENTITY = re.compile(r"&(?:#[xX][0-9a-fA-F]{1,6}|#[0-9]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});")
_PIPE = re.compile(r"(?<!\\)\|")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@cache
def parser() -> MarkdownIt:
    """Markdown as the chat renders it: tables and strikethrough, HTML as plain text, no guessing of links.

    One for all, as making it takes longer than most pieces; its lists of rules are complete before it is handed out.
    """
    made = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    add_rules(made)
    made.parse("*a*\n\n- b\n")
    return made


_helpers = parser().helpers


class Lost(Exception):
    """The walk met something that it did not expect."""


def starts_of_lines(source: str) -> list[int]:
    """Offset of each line of `source`, and one past its end."""
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def map_code(source: str, starts: Sequence[int], first: int, code: str) -> list[int] | None:
    """Source offsets of the characters of a code block whose text begins in line `first`."""
    offsets: list[int] = []
    lines = code.split("\n")
    for number, line in enumerate(lines, first):
        if number >= len(starts) - 1:
            return None
        written = source[starts[number] : starts[number + 1] - 1]
        if number == first + len(lines) - 1:
            written = written.rstrip()  # as the code's end is
        if not written.endswith(line) or written[: len(written) - len(line)].strip(" \t>"):
            return None
        begin = starts[number] + len(written) - len(line)
        offsets.extend(range(begin, begin + len(line) + 1))
    offsets.pop()
    return offsets


def map_inline(source: str, starts: Sequence[int], token: Token, *, cell: int | None = None) -> list[int] | None:
    """Source offsets of the rendered characters of an inline token; `cell` is its place in a table's row."""
    if token.map is None or token.children is None:
        return None
    first = token.map[0]
    try:
        if cell is not None:
            places = _cell_places(source, starts, first, cell, token.content)
        else:
            places = _places(source, starts, first, token.content)
        return _Walk(token.content, places).over(token.children)
    except Lost:
        return None


def _places(source: str, starts: Sequence[int], first: int, content: str) -> list[int]:
    """Where each character of a paragraph's or heading's raw content stands in the source."""
    places: list[int] = []
    lines = content.split("\n")
    for number, line in enumerate(lines, first):
        if number >= len(starts) - 1:
            raise Lost
        begin, end = starts[number], starts[number + 1] - 1
        written = source[begin:end]
        trimmed = written.rstrip() if number == first + len(lines) - 1 else written
        if len(lines) == 1 and written.lstrip(" \t>-+*0123456789.)").startswith("#"):
            trimmed = re.sub(r"[ \t]+#+$", "", trimmed)
        if not trimmed.endswith(line):
            raise Lost
        at = begin + len(trimmed) - len(line)
        places.extend(range(at, at + len(line)))
        places.append(end)  # of the line break
    places.pop()
    return places


def _cell_places(source: str, starts: Sequence[int], row: int, cell: int, content: str) -> list[int]:
    if row >= len(starts) - 1:
        raise Lost
    line = source[starts[row] : starts[row + 1] - 1]
    cuts = [-1, *(match.start() for match in _PIPE.finditer(line)), len(line)]
    fields = [(low + 1, high) for low, high in pairwise(cuts)]
    if fields and not line[slice(*fields[0])].strip():
        fields.pop(0)
    if cell >= len(fields):
        raise Lost
    low, high = fields[cell]
    low += len(line[low:high]) - len(line[low:high].lstrip())
    places: list[int] = []
    if len(content) > high - low:  # with cells that have no column
        high = len(line.rstrip().removesuffix("|"))
    for char in content:
        if line[low : low + 2] == "\\|" and char == "|":
            low += 1
        if low >= high or line[low] != char:
            raise Lost
        places.append(starts[row] + low)
        low += 1
    if line[low:high].strip():
        raise Lost
    return places


class _Walk:
    """One pass over the children of an inline token beside its raw content."""

    def __init__(self, content: str, places: list[int]) -> None:
        self._content = content
        self._places = places
        self._at = 0
        self._offsets: list[int] = []
        self._links: list[tuple[str, str]] = []

    def over(self, children: Sequence[Token]) -> list[int]:
        """Offsets of all rendered characters. Raises Lost."""
        for child in children:
            self._step(child)
        if self._content[self._at :].strip():
            raise Lost
        return self._offsets

    def _step(self, child: Token) -> None:
        kind = child.type
        if kind == "text":
            self._text(child.content)
        elif kind == "maths":
            self._maths(child.content)
        elif kind in ("softbreak", "hardbreak"):
            self._break(hard=kind == "hardbreak")
        elif kind == "code_inline":
            self._code(child)
        elif kind in ("em_open", "em_close", "strong_open", "strong_close", "s_open", "s_close"):
            self._expect(child.markup)
        elif kind == "link_open":
            self._links.append((child.markup, child.meta.get("shown", "")))
            self._expect("<" if child.markup == "autolink" else "[")
        elif kind == "link_close":
            self._close_link()
        elif kind == "image":
            self._image(child)
        else:
            raise Lost

    def _expect(self, markup: str) -> None:
        if not markup or not self._content.startswith(markup, self._at):
            raise Lost
        self._at += len(markup)

    def _note(self, at: int) -> None:
        self._offsets.append(self._places[at])

    def _text(self, text: str) -> None:
        """Literal text with escapes and entities; runs of white space render as one space."""
        places: list[int] = []
        index = 0
        while index < len(text):
            at, taken = self._letter(text, index)
            places.extend([at] * taken)
            index += taken
        spaces = False
        for char, at in zip(text, places, strict=True):
            if not (char.isspace() and spaces):
                self._note(at)
            spaces = char.isspace()

    def _maths(self, text: str) -> None:
        for at in range(self._at, self._at + len(text)):
            self._note(at)
        self._expect(text)

    def _letter(self, text: str, index: int) -> tuple[int, int]:
        """Match what stands at the cursor with `text[index:]`: its place and how many characters it made."""
        content, at = self._content, self._at
        here, char = content[at : at + 1], text[index]
        if here == "\\" and content[at + 1 : at + 2] == char and char in _PUNCTUATION:
            self._at += 2
            return at + 1, 1
        if here == "&" and (match := _ENTITY.match(content, at)):
            meant = html.unescape(match[0])
            if meant != match[0] and text.startswith(meant, index):
                self._at = match.end()
                return at, len(meant)
        if here != char:
            raise Lost
        self._at += 1
        return at, 1

    def _break(self, *, hard: bool) -> None:
        content = self._content
        if hard and content.startswith("\\\n", self._at):
            self._at += 1
        while content[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        self._expect("\n")
        self._note(self._at - 1)
        while content[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _code(self, child: Token) -> None:
        self._expect(child.markup)
        content = self._content.replace("\n", " ")
        close = content.find(child.markup, self._at)
        for shift in (0, 1):
            end = self._at + shift + len(child.content)
            if (
                close >= 0
                and content[self._at + shift : end] == child.content
                and content[end:].startswith(" " * shift + child.markup)
            ):
                for at in range(self._at + shift, end):
                    self._note(at)
                self._at = end + shift + len(child.markup)
                return
        raise Lost

    def _close_link(self) -> None:
        if not self._links:
            raise Lost
        markup, shown = self._links.pop()
        if markup == "autolink":
            self._expect(">")
            return
        self._expect("]")
        self._target(shown)

    def _target(self, shown: str) -> None:
        """Skip `(destination "title")` behind a link's text; `shown` is the destination in place of a text."""
        content, at = self._content, self._at
        if content.startswith("(", at):
            at = self._spaces(at + 1)
            if shown:
                begin = at + content.startswith("<", at)
                known = content.startswith(shown, begin)  # else it was encoded
                self._offsets.extend(self._places[begin : begin + len(shown)] if known else [-1] * len(shown))
            link = _helpers.parseLinkDestination(content, at, len(content))
            at = self._spaces(link.pos if link.ok else at)
            title = _helpers.parseLinkTitle(content, at, len(content))
            at = self._spaces(title.pos if title.ok else at)
            if content.startswith(")", at):
                self._at = at + 1
                return
        raise Lost

    def _spaces(self, at: int) -> int:
        while self._content[at : at + 1] in (" ", "\t", "\n"):
            at += 1
        return at

    def _image(self, child: Token) -> None:
        self._expect("![")
        self._offsets.extend([-1] * len(PICTURE))
        for part in child.children or ():
            if part.type == "image":
                raise Lost
            self._step(part)
        self._expect("]")
        self._target(child.meta.get("shown", ""))
