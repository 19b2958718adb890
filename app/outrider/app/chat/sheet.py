"""A table in one widget: a widget for each of its cells makes every layout of a long chat slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content, Span
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

from outrider.app.chat.wrapped import wrapped

_LINE = "$foreground 30%"
_BETWEEN, _CROSS, _LEVEL = " │ ", "─┼─", "─"
_EDGE = 1  # cells at the left


@dataclass(frozen=True, slots=True)
class Part:
    """What of a cell stands in a line of the screen: `start:end` of its text."""

    cell: int
    start: int
    end: int


Row = list[Part | None]  # one for each column, None where the cell has no more lines


class Sheet(Visual):
    """`rows` of cells of equal number, the first one the header; `aligned` has left, center or right for each column."""

    def __init__(self, rows: Sequence[Sequence[Content]], aligned: Sequence[str]) -> None:
        self._cells = [_flat(cell) for row in rows for cell in row]
        self._columns = len(aligned)
        self._aligned = aligned
        self._laid: tuple[int, Content, list[Row | None]] | None = None

    def text(self, width: int) -> Content:
        """All of it in lines of at most `width` cells."""
        return self._lay(width)[0]

    def lines(self, width: int) -> list[Row | None]:
        """Which parts of cells stand in each line of the screen, None in a line that is drawn."""
        return self._lay(width)[1]

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        """Its lines."""
        return self.text(width).render_strips(width, height, style, options) if width else []

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        """With no cell wrapped, as far as there is room."""
        return min(container_width, _EDGE + sum(self._natural()) + len(_BETWEEN) * (self._columns - 1))

    def get_height(self, rules: RulesMap, width: int) -> int:
        """How many lines it has."""
        return len(self.lines(width)) if width else 0

    # ------------------------------------------------------------------------------------------------ layout

    def _natural(self) -> list[int]:
        columns = range(self._columns)
        return [max(1, *(cell.cell_length for cell in self._cells[at :: self._columns])) for at in columns]

    def _lay(self, width: int) -> tuple[Content, list[Row | None]]:
        if self._laid is None or self._laid[0] != width:
            room = width - _EDGE - len(_BETWEEN) * (self._columns - 1)
            widths = fitted(self._natural(), room)
            lines = list(self._rows(widths))
            drawn = [self._drawn(line, widths).truncate(width) for line in lines]
            self._laid = width, Content("\n").join(drawn), lines
        return self._laid[1:]

    def _rows(self, widths: list[int]) -> Iterator[Row | None]:
        """Lines of the screen, parts of cells; lines are drawn under the header, and between all rows if some cell is wrapped."""
        starts = range(0, len(self._cells), self._columns)
        rows = [[wrapped(self._cells[start + at].plain, width) for at, width in enumerate(widths)] for start in starts]
        ruled = any(len(lines) > 1 for row in rows for lines in row)
        for number, row in enumerate(rows):
            if number == 1 or (number and ruled):
                yield None
            for line in range(max(map(len, row))):
                first = number * self._columns
                yield [Part(first + at, *lines[line]) if line < len(lines) else None for at, lines in enumerate(row)]

    def _drawn(self, line: Row | None, widths: list[int]) -> Content:
        if line is None:
            return Content.styled(" " * _EDGE + _CROSS.join(_LEVEL * width for width in widths), _LINE)
        parts = [Content(" " * _EDGE)]
        for at, (part, width) in enumerate(zip(line, widths, strict=True)):
            if at:
                parts.append(Content.styled(_BETWEEN, _LINE))
            shown = self._cells[part.cell][part.start : part.end].rstrip() if part else Content()
            free = max(0, width - shown.cell_length)
            left = {"right": free, "center": free // 2}.get(self._aligned[at], 0)
            parts += [Content(" " * left), shown, Content(" " * (free - left))]
        return Content("").join(parts).rstrip()


def _flat(cell: Content) -> Content:
    """In one line, character by character."""
    if "\t" not in cell.plain and "\n" not in cell.plain:
        return cell
    return Content(cell.plain.replace("\t", " ").replace("\n", " "), list(cell.spans))


def header(cell: Content) -> Content:
    """A cell of the first row."""
    return Content(cell.plain, [Span(0, len(cell.plain), "bold $text-primary"), *cell.spans])


def fitted(natural: Sequence[int], room: int) -> list[int]:
    """Widths of columns: what they would like, or as fair a share of the room as can be, one cell at least."""
    widths = list(natural)
    left, open_ = room, sorted(range(len(widths)), key=lambda at: widths[at])
    for number, at in enumerate(open_):
        share = max(1, left // (len(open_) - number))
        widths[at] = min(widths[at], share)
        left -= widths[at]
    return widths
