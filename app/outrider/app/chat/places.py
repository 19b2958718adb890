"""Where the rendered characters of one settled piece stand in the text that it is a part of."""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it.token import Token

from outrider.app.chat import mapping
from outrider.app.chat.blocks import Piece
from outrider.app.chat.inline import content_of

_TAB = 4  # cells, in code


class Places:
    """Ask for the tokens of a piece in their order: cells of a table are told apart by it."""

    def __init__(self, piece: Piece) -> None:
        self._source = piece.source
        self._starts = mapping.starts_of_lines(piece.source)
        self._head, self._start = len(piece.head), piece.start
        self._cells: dict[int, int] = {}

    def inline(self, token: Token, *, cell: bool = False) -> list[int] | None:
        """Of the characters of an inline token, -1 for those from nowhere; None if it cannot be mapped in full."""
        number = None
        if cell:
            row = token.map[0] if token.map else -1
            number = self._cells[row] = self._cells.get(row, -1) + 1
        return self._placed(mapping.map_inline(self._source, self._starts, token, cell=number))

    def code(self, token: Token) -> list[int] | None:
        """The same of the characters that `shown_code` makes of a code block."""
        assert token.map is not None
        first = token.map[0] + (1 if token.type == "fence" else 0)
        code = token.content.rstrip()
        offsets = mapping.map_code(self._source, self._starts, first, code)
        if offsets is not None and "\t" in code:
            offsets = _expand(code, offsets)
        return self._placed(offsets)

    def _placed(self, offsets: list[int] | None) -> list[int] | None:
        if offsets is None:
            return None
        head, start = self._head, self._start
        return [offset - head + start if offset >= head else -1 for offset in offsets]


def shown_code(token: Token) -> str:
    """The text of a code block as it is shown."""
    return token.content.rstrip().expandtabs(_TAB)


def texts(piece: Piece) -> Iterator[tuple[str, list[int] | None]]:
    """Every text that a piece renders to, with the place of each character; None where that is not known."""
    places, cell = Places(piece), False
    for token in mapping.parser().parse(piece.source):
        if token.type == "inline":
            yield content_of(token).plain, places.inline(token, cell=cell)
        elif token.type in ("fence", "code_block"):
            yield shown_code(token), places.code(token)
        else:
            cell = token.type in ("th_open", "td_open")


def _expand(code: str, offsets: list[int]) -> list[int]:
    """Offsets after tabs became spaces, every space of a tab coming from that tab."""
    expanded: list[int] = []
    column = 0
    for char, offset in zip(code, offsets, strict=True):
        width = _TAB - column % _TAB if char == "\t" else 1
        expanded.extend([offset] * width)
        column = 0 if char == "\n" else column + width
    return expanded
