"""Settled Markdown as lines for a plain terminal: SGR codes and nothing else, in the terminal's own colours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content, Span

from outrider.app.chat.blocks import Piece
from outrider.app.chat.inline import content_of
from outrider.app.chat.mapping import parser
from outrider.app.chat.places import Places, shown_code
from outrider.app.chat.wrapped import wrapped
from outrider.app.text import sanitize
from outrider.app.text import width as cells

Line = list[tuple[str, str]]
"""Texts with their SGR codes, such as `1;32`."""
Codes = Callable[[int], str]
"""The SGR code of the mark on a character of the answer, empty for none."""

_DIM = "2"
_STYLES = {".em": "3", ".strong": "1", ".s": "9", ".code_inline": "36"}
_COLOURS = {"36", "34"}
_HEADINGS = {"h1": "1;4", "h2": "1"}
_LEAST = 20  # cells


def shown(line: Line) -> str:
    """A line as it is written to a terminal."""
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for text, code in line)


def plain_lines(text: str, start: int, width: int, codes: Codes) -> list[Line]:
    """Raw text that begins at `start` of the answer, wrapped, with its marks."""
    letters = [(char, codes(start + place)) for place, char in enumerate(text)]
    return [_joined(letters[begin:end]) for begin, end in wrapped(text, width)]


class Lines:
    """Renders piece after piece. `colour` False leaves hues out."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._loose = False  # the piece before ended with an empty line
        self._first = True
        self._width, self._codes = 80, _no_codes
        self._piece = Piece("", 0, "paragraph")
        self._places = Places(self._piece)

    def of(self, piece: Piece, width: int, codes: Codes) -> list[Line]:
        """The lines of one piece, with an empty one before it where a block begins."""
        lines: list[Line] = []
        if piece.shown:
            self._piece, self._places, self._codes = piece, Places(piece), codes
            tree = SyntaxTreeNode(parser().parse(piece.source))
            lines = self._blocks(tree.children, max(width, _LEAST), tight=False)
            begins = not piece.joins or (piece.form == "list" and self._loose)
            if lines and begins and not self._first:
                lines.insert(0, [])
            self._first = self._first and not lines
        elif piece.form == "fence":
            lines = [[("```", _DIM)]]
        self._loose = piece.text.endswith("\n\n")
        return lines

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], width: int, *, tight: bool) -> list[Line]:
        lines: list[Line] = []
        for node in nodes:
            made = list(self._block(node, width))
            if lines and made and not tight:
                lines.append([])
            lines += made
        return lines

    def _block(self, node: SyntaxTreeNode, width: int) -> Iterator[Line]:
        kind = node.type
        if kind in ("paragraph", "heading"):
            for child in node.children:
                yield from self._text(child.token, width, _HEADINGS.get(node.tag, "1" if kind == "heading" else ""))
        elif kind in ("fence", "code_block"):
            yield from self._code(node.token)
        elif kind in ("bullet_list", "ordered_list"):
            yield from self._list(node, width)
        elif kind == "blockquote":
            for line in self._blocks(node.children, width - 2, tight=False):
                yield [("│ ", _DIM), *line]
        elif kind == "table":
            yield from self._table(node, width)
        elif kind == "hr":
            yield [("─" * min(width, 40), _DIM)]

    def _code(self, token: Token | None) -> Iterator[Line]:
        assert token is not None
        code = shown_code(token)
        offsets = self._places.code(token)
        if not self._piece.joins:
            yield [(f"```{sanitize(token.info.strip())}", _DIM)]
        letters = self._letters(code, offsets, [""] * len(code))
        at = 0
        for line in code.split("\n"):
            yield _joined(letters[at : at + len(line)])
            at += len(line) + 1
        if not self._piece.goes_on:
            yield [("```", _DIM)]

    def _list(self, node: SyntaxTreeNode, width: int) -> Iterator[Line]:
        first = int(node.attrs.get("start", 1))
        if node.level == 0 and self._piece.number is not None:
            first = self._piece.number
        ordered = node.type == "ordered_list"
        lead = len(f"{first + len(node.children) - 1}. ") if ordered else 2
        tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
        for number, item in enumerate(node.children, first):
            if number > first and not tight:
                yield []
            sign = f"{number}. ".rjust(lead) if ordered else "• "
            lines = self._blocks(item.children, width - lead - 1, tight=tight) or [[]]
            for place, line in enumerate(lines):
                yield [(f" {sign}" if place == 0 else " " * (lead + 1), ""), *line] if line or place == 0 else []

    def _table(self, node: SyntaxTreeNode, width: int) -> Iterator[Line]:
        rows = [[self._cell(cell) for cell in row.children] for part in node.children for row in part.children]
        if self._piece.joins:
            rows = rows[1:]  # its header has been shown
        columns = max((len(row) for row in rows), default=0)
        natural = [max((_width(row[at]) for row in rows if at < len(row)), default=0) for at in range(columns)]
        room = _shares(natural, width - 3 * (columns - 1))
        for number, row in enumerate(rows):
            wraps = [_wrap(cell, room[at]) for at, cell in enumerate(row)]
            for y in range(max(map(len, wraps), default=0)):
                line: Line = []
                for at, wrap in enumerate(wraps):
                    part = wrap[y] if y < len(wrap) else []
                    line += [(" │ ", _DIM)] if at else []
                    line += [*part, (" " * (room[at] - sum(cells(text) for text, _ in part)), "")]
                yield line
            if number == 0 and not self._piece.joins:
                yield [("─┼─".join("─" * size for size in room), _DIM)]

    def _cell(self, node: SyntaxTreeNode) -> list[tuple[str, str]]:
        token = node.children[0].token if node.children else None
        if token is None:
            return []
        return self._inline(token, "1" if node.type == "th" else "", cell=True)

    def _text(self, token: Token | None, width: int, code: str) -> Iterator[Line]:
        if token is not None:
            yield from _wrap(self._inline(token, code), width)

    def _inline(self, token: Token, code: str, *, cell: bool = False) -> list[tuple[str, str]]:
        """Letters of an inline token with their codes, each link followed by where it leads."""
        content = content_of(token)
        codes = _styles(content, code)
        if not self._colour:
            codes = [";".join(one for one in each.split(";") if one not in _COLOURS) for each in codes]
        letters = self._letters(content.plain, self._places.inline(token, cell=cell), codes)
        for span in sorted(content.spans, key=lambda span: -span.end):
            target = _target(span)
            if target and target != content.plain[span.start : span.end]:
                letters[span.end : span.end] = [(char, _DIM) for char in f" <{target}>"]
        return letters

    def _letters(self, text: str, offsets: Sequence[int] | None, codes: Sequence[str]) -> list[tuple[str, str]]:
        if offsets is None or len(offsets) != len(text):
            return list(zip(text, codes, strict=True))
        marks = [self._codes(offset) if offset >= 0 else "" for offset in offsets]
        return [(char, ";".join(filter(None, pair))) for char, *pair in zip(text, codes, marks, strict=True)]


def _no_codes(_place: int) -> str:
    return ""


def _styles(content: Content, code: str) -> list[str]:
    found = [[code] if code else [] for _ in content.plain]
    for span in content.spans:
        one = "34" if _target(span) else _STYLES.get(str(span.style), "")
        for place in range(span.start, span.end) if one else ():
            found[place].append(one)
    return [";".join(dict.fromkeys(each)) for each in found]


def _target(span: Span) -> str:
    """Where a link leads, empty for other styles."""
    meta = getattr(span.style, "meta", None) or {}
    action = str(meta.get("@click", ""))
    return str(ast.literal_eval(action[5:-1])) if action.startswith("link(") else ""


def _width(letters: Sequence[tuple[str, str]]) -> int:
    text = "".join(char for char, _ in letters)
    return max(map(cells, text.split("\n")))


def _wrap(letters: Sequence[tuple[str, str]], width: int) -> list[Line]:
    text = "".join(char for char, _ in letters)
    return [_joined(_trimmed(letters[begin:end])) for begin, end in wrapped(text, max(1, width))]


def _trimmed(letters: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    end = len(letters)
    while end and letters[end - 1][0] == " ":
        end -= 1
    return letters[:end]


def _joined(letters: Sequence[tuple[str, str]]) -> Line:
    """Neighbours with the same codes as one."""
    line: Line = []
    for char, code in letters:
        if line and line[-1][1] == code:
            line[-1] = (line[-1][0] + char, code)
        else:
            line.append((char, code))
    return line


def _shares(natural: list[int], room: int) -> list[int]:
    """Widths of columns: their own where all fit, else the widest give way."""
    widths = [max(1, width) for width in natural]
    while sum(widths) > max(room, len(widths)):
        widest = max(range(len(widths)), key=lambda at: widths[at])
        widths[widest] -= 1
    return widths
