"""The column at the right of a reply: beside each line as it is wrapped, how much of it a drafter had guessed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip

from outrider.app.chat.flow import Flow
from outrider.app.chat.marked_text import Counts, summed

LEAST_WIDTH = 80  # cells of a window that has room for it
_BLOCKS = " ▁▂▃▄▅▆▇█"


def glyph(accepted: int, letters: int) -> str:
    """The share in eighths; some of it is never drawn as none."""
    if not letters or not accepted:
        return " "
    return _BLOCKS[max(1, round(8 * accepted / letters))]


def counts(flows: Iterable[Flow], top: int, height: int) -> Counts:
    """Accepted and all letters of the `height` lines of the screen from `top` on."""
    lines: Counts = [(0, 0)] * height
    for flow in flows:
        pieces = flow.settled()
        ends = bisect_right(pieces, top, key=lambda piece: piece.region.bottom)
        for piece in pieces[ends:]:
            first = piece.region.y - top
            if first >= height:
                break
            _add(lines, piece.counts(), first)
        if flow.tail.display:
            _add(lines, summed(flow.tail.tell_lines(), top, height), 0)
    return lines


def _add(lines: Counts, more: Counts, first: int) -> None:
    for y, (accepted, letters) in enumerate(more, first):
        if 0 <= y < len(lines) and letters:
            lines[y] = (lines[y][0] + accepted, lines[y][1] + letters)


def drawn(strips: list[Strip], crop: Region, column: int, lines: Counts, style: Style) -> list[Strip]:
    """`strips` of the part `crop` of a widget with a glyph for each line in its column `column`."""
    x = column - crop.x
    if not 0 <= x < crop.width:
        return strips
    made = []
    for strip, (accepted, letters) in zip(strips, lines, strict=True):
        sign = glyph(accepted, letters)
        if sign != " ":
            mark = Strip([Segment(sign, style)], 1)
            strip = Strip.join([strip.crop(0, x), mark, strip.crop(x + 1)])
        made.append(strip)
    return made
