"""Cuts streamed Markdown into pieces that are settled: whatever is still to come, they will render the same.

The scanner works line by line and holds back only the block that is still open, so the work and the raw tail stay
small. Pieces are exact slices: all of them and the tail, joined, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

Form = Literal["paragraph", "heading", "rule", "fence", "code", "quote", "list", "table"]

FENCE_LINES = 40  # of an open fence before its first part settles
TABLE_ROWS = 20
PARAGRAPH = 1500  # characters of a paragraph before a part of it settles
_TOO_LONG = PARAGRAPH + 200
_SURE = 32  # an unfinished line this long has shown what it is

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}([ \t]|$)")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_QUOTE = re.compile(r" {0,3}>")
_ITEM = re.compile(r"( *)([-+*]|(\d{1,9})([.)]))( +|$)(.*)$")
_DELIMITERS = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_PIPE = re.compile(r"(?<!\\)\|")
_SPACES = re.compile(r"\s+")
_BREAK = re.compile(r"\n[ \t]*")
_SENTENCE_END = re.compile(r"[.!?…:;][\"')\]]? ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A settled slice of the text and what is needed to render it alone.

    `head` goes before `text` when rendering (the opening line of a fence, the header of a table); `joins` means that it
    continues the block of the piece before, `goes_on` that a later one continues this; `number` is the number of its
    first list item, where the text's own would not do; a piece that is not `shown` has nothing to see, such as the
    closing line of a fence.
    """

    text: str
    start: int
    form: Form
    head: str = ""
    joins: bool = False
    goes_on: bool = False
    number: int | None = None
    shown: bool = True

    @property
    def source(self) -> str:
        """The Markdown to render."""
        return self.head + self.text


@dataclass(frozen=True, slots=True)
class _Item:
    """What a list marker says: the kind of list, where the item's content begins, its number."""

    marker: str
    indent: int
    content: int
    number: int | None
    empty: bool


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _item(line: str) -> _Item | None:
    match = _ITEM.match(line)
    if match is None or _RULE.match(line):
        return None
    lead, marker, digits, mark, gap, rest = match.groups()
    width = len(lead) + len(marker)
    empty = not rest.strip()
    content = width + (len(gap) if 1 <= len(gap) <= 4 and not empty else 1)
    return _Item(mark or marker, len(lead), content, int(digits) if digits else None, empty)


def _columns(row: str) -> int:
    return len(_PIPE.findall(row.strip().strip("|"))) + 1


def _interrupts(line: str) -> bool:
    """Whether a line starts a new block even right under a paragraph."""
    if any(start.match(line) for start in (_FENCE, _HEADING, _RULE, _QUOTE)):
        return True
    item = _item(line)
    return item is not None and item.indent <= 3 and not item.empty and item.number in (None, 1)


def _form(line: str) -> Form:
    if _indent(line) >= 4:
        return "code"
    starts: tuple[tuple[re.Pattern[str], Form], ...] = (
        (_FENCE, "fence"),
        (_HEADING, "heading"),
        (_RULE, "rule"),
        (_QUOTE, "quote"),
    )
    for start, form in starts:
        if start.match(line):
            return form
    return "list" if _item(line) else "paragraph"


def _cut(text: str, limit: int) -> int:
    """Where to part a long paragraph: where a line was broken, which nobody sees, or else after a sentence or a word, and
    outside of inline markup.

    What follows begins with a letter, so it cannot be taken for the start of another block.
    """
    for ends in (_BREAK, _SENTENCE_END, _SPACES):
        places = [match.end() for match in ends.finditer(text, limit // 2, limit)]
        for place in reversed(places):
            left = text[:place]
            balanced = not any(left.count(mark) % 2 for mark in ("`", "**", "__", "~~"))
            if balanced and left.count("[") == left.count("]") and text[place].isalpha():
                return place
    return next((place for place in range(limit, limit // 2, -1) if text[place].isalpha()), limit)


class Scanner:
    """Feed it text as it comes; it gives back the pieces that have settled."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # complete lines that are not settled
        self._open = ""  # the last, unfinished line
        self._start = 0
        self._form: Form | None = None  # of the open block; None between blocks
        self._under_way = False  # the open line continues a paragraph that was parted in mid-line
        self._head = ""  # of the open fence or table
        self._joins = False
        self._count = 0  # lines of the fence, rows of the table since the last piece
        self._fence = ""
        self._item: _Item | None = None
        self._number = 0
        self._first_number: int | None = None
        self._inner_fence = ""
        self._after_blank = False
        self._done: list[Piece] = []
        self._takes: dict[Form, Callable[[str], None]] = {
            "paragraph": self._in_paragraph,
            "fence": self._in_fence,
            "code": self._in_code,
            "quote": self._in_quote,
            "list": self._in_list,
            "table": self._in_table,
        }

    @property
    def tail(self) -> str:
        """What has not settled yet."""
        return "".join(self._lines) + self._open

    @property
    def settled(self) -> int:
        """How many characters have."""
        return self._start

    def feed(self, text: str) -> list[Piece]:
        """Take more text; returns the pieces that it settled, in order."""
        self._open += text
        *lines, self._open = self._open.split("\n")
        for line in lines:
            self._take(line + "\n")
        self._bound()
        self._foresee_item()
        done, self._done = self._done, []
        return done

    def finish(self) -> list[Piece]:
        """Settle what is left: no more text will come."""
        if self._open:
            line, self._open = self._open, ""
            self._take(line)
        if self._lines:
            self._settle()
        done, self._done = self._done, []
        return done

    # ------------------------------------------------------------------------------------------------ settling

    def _settle(self, *, lines: int | None = None, ends: bool = True) -> None:
        """Make a piece of the first `lines` waiting lines; `ends`: the block is over."""
        count = len(self._lines) if lines is None else lines
        text = "".join(self._lines[:count])
        del self._lines[:count]
        self._emit(text, ends=ends)

    def _emit(self, text: str, *, ends: bool) -> None:
        form = self._form or "paragraph"
        shown = bool(text.strip())
        if form == "fence" and self._joins and not self._count:
            shown = False  # the closing line alone
        if text:
            head = self._head if self._joins else ""
            number = self._first_number if self._joins else None
            self._done.append(Piece(text, self._start, form, head, self._joins, not ends, number, shown))
            self._start += len(text)
        self._joins = not ends
        self._count = 0
        if ends:
            self._form = None
            self._head = ""
            self._under_way = False

    def _bound(self) -> None:
        """Part a paragraph that has grown long, in mid-line if need be."""
        sure = len(self._open) >= _SURE
        if self._form is None and len(self._open) >= _TOO_LONG and _form(self._open) == "paragraph":
            self._form, self._under_way = "paragraph", True
        while self._form == "paragraph":
            takes_open = sure and (self._under_way or not _interrupts(self._open))
            whole = "".join(self._lines) + (self._open if takes_open else "")
            last = self._open if takes_open else "".join(self._lines[-1:])
            pipe = whole.find("|", len(whole) - len(last), _TOO_LONG)  # it may head a table
            if len(whole) < _TOO_LONG or pipe >= 0:
                return
            cut = _cut(whole, PARAGRAPH)
            self._emit(whole[:cut], ends=False)
            *lines, last = whole[cut:].split("\n")
            self._lines = [line + "\n" for line in lines]
            if takes_open:
                self._open, self._under_way = last, self._under_way or not lines
                sure = len(last) >= _SURE
            elif last:
                self._lines.append(last)

    def _foresee_item(self) -> None:
        """Settle a list item as soon as the next one has begun, before its line is complete."""
        if self._form != "list" or not self._lines or self._item is None:
            return
        item = _item(self._open)
        begins = item is not None and item.indent < min(self._item.content, 4) and item.marker == self._item.marker
        if begins and any(sign.isalnum() for sign in self._open.lstrip(" 0123456789.)-+*")):
            self._settle(ends=False)

    # ------------------------------------------------------------------------------------------------ lines

    def _take(self, line: str) -> None:
        if self._form is None:
            self._between(line)
        else:
            self._takes[self._form](line)
        if self._form == "paragraph":
            self._bound_lines()

    def _bound_lines(self) -> None:
        held, self._open = self._open, ""
        self._bound()
        self._open = held

    def _between(self, line: str) -> None:
        self._lines.append(line)
        bare = line.expandtabs(4).rstrip()
        if not bare:
            return  # goes with the block to come
        self._joins = self._under_way = False
        self._form = _form(bare)
        if self._form in ("heading", "rule"):
            self._settle()
        elif self._form == "fence":
            match = _FENCE.match(bare)
            assert match is not None
            self._fence, self._head, self._count = match[1], line, 0
        elif self._form == "list":
            self._item = _item(bare)
            assert self._item is not None
            self._number = self._item.number or 0
            self._first_number = self._item.number
            self._inner_fence, self._after_blank = "", False
            self._watch_fence(bare[self._item.content :])

    def _restart(self, line: str) -> None:
        """The block ended before `line`."""
        if self._lines:
            self._settle()
        self._form = None
        self._between(line)

    def _in_paragraph(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        if self._under_way:
            self._under_way = False
            self._lines.append(line)
        elif not bare or (_SETEXT.match(bare) and any(held.strip() for held in self._lines)):
            self._lines.append(line)
            self._settle()
        elif self._heads_table(bare):
            self._begin_table(line)
        elif _interrupts(bare):
            self._restart(line)
        else:
            self._lines.append(line)

    def _heads_table(self, delimiters: str) -> bool:
        """Whether the line before is the header of a table and this one its rule."""
        if not self._lines or not _DELIMITERS.match(delimiters):
            return False
        header = self._lines[-1]
        return "|" in header and _columns(header) == _columns(delimiters)

    def _begin_table(self, line: str) -> None:
        if any(held.strip() for held in self._lines[:-1]):
            self._settle(lines=len(self._lines) - 1)
        self._form, self._joins, self._count = "table", False, 0
        self._head = self._lines[-1] + line
        self._lines.append(line)

    def _in_fence(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        self._lines.append(line)
        if _indent(bare) <= 3 and len(bare.strip()) >= len(self._fence) and not bare.strip().strip(self._fence[0]):
            self._settle()
            return
        self._count += 1
        if self._count >= FENCE_LINES and bare and line.endswith("\n"):
            self._settle(ends=False)

    def _in_code(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        if bare and _indent(bare) < 4:
            self._restart(line)
            return
        self._lines.append(line)
        self._count += 1
        if self._count >= FENCE_LINES and bare:
            self._settle(ends=False)

    def _in_quote(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        if bare and not _QUOTE.match(bare) and (_interrupts(bare) or _item(bare)):
            self._restart(line)
            return
        self._lines.append(line)
        if not bare:
            self._settle()

    def _in_table(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        if not bare or _form(bare) != "paragraph":
            self._restart(line)
            return
        self._lines.append(line)
        self._count += 1
        if self._count >= TABLE_ROWS and line.endswith("\n"):
            self._settle(ends=False)

    def _in_list(self, line: str) -> None:
        bare = line.expandtabs(4).rstrip()
        assert self._item is not None
        blank_before, self._after_blank = self._after_blank, not bare
        if not bare or _indent(bare) >= self._item.content:
            self._lines.append(line)
            self._watch_fence(bare[self._item.content :])
            return
        item = _item(bare)
        if item is not None and item.indent <= 3:
            self._next_item(item, line, bare)
        elif blank_before or self._inner_fence or _interrupts(bare) or not self._in_text():
            self._restart(line)
        else:
            self._lines.append(line)  # lazy continuation of the item's paragraph

    def _in_text(self) -> bool:
        """Whether the item ends in a paragraph, which a line can lazily continue: not in a bare marker or a fence."""
        assert self._item is not None
        bare_marker = self._item.empty and sum(bool(held.strip()) for held in self._lines) == 1
        return not bare_marker and not _FENCE.match(self._lines[-1].strip())

    def _next_item(self, item: _Item, line: str, bare: str) -> None:
        assert self._item is not None
        if item.marker != self._item.marker:
            self._restart(line)
            return
        self._settle(ends=False)
        self._item, self._inner_fence, self._after_blank = item, "", False
        self._number += 1
        self._first_number = self._number if item.number is not None else None
        self._lines.append(line)
        self._watch_fence(bare[item.content :])

    def _watch_fence(self, inside: str) -> None:
        match = _FENCE.match(inside.lstrip(" "))
        if not match:
            return
        if not self._inner_fence:
            self._inner_fence = match[1]
        elif match[1].startswith(self._inner_fence) and not inside.strip().strip(match[1][0]):
            self._inner_fence = ""


def coalesce(pieces: list[Piece]) -> list[Piece]:
    """Neighbours that render alike as one piece: fewer widgets when many settle at once."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and _mergeable(last, piece):
            shown = last.shown or piece.shown
            merged[-1] = replace(last, text=last.text + piece.text, form=piece.form, goes_on=piece.goes_on, shown=shown)
        else:
            merged.append(piece)
    return merged


def _mergeable(last: Piece, piece: Piece) -> bool:
    if piece.joins:
        return piece.form == last.form == "list"
    return not (last.goes_on or last.head or piece.goes_on) and last.number is None
