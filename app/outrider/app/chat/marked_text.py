"""A plain text with marks, and what everything that shows marked text can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from textual.content import Content, Span
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat.leaf import Hits, Leaf, spans_of
from outrider.app.chat.marks import Layers
from outrider.app.chat.palette import Palette
from outrider.app.chat.wrapped import line_at, wrapped

Counts = list[tuple[int, int]]  # accepted and all letters of each line


def named(palette: Palette, names: tuple[str, ...]) -> Style | None:
    """The style of a mark, if that is what is asked for."""
    return palette.style(names[0]) if len(names) == 1 else None


class Marked(Protocol):
    """What shows a text with marks."""

    def redress(self) -> None:
        """Lay the marks and hits of now over the text."""
        ...

    def tell_lines(self) -> list[tuple[Widget, Counts]]:
        """Each widget that shows a text of it, with the accepted and all letters of its lines as they are wrapped."""
        ...

    def lines_of(self, offset: int) -> Iterator[int]:
        """The lines of the screen where a character of the strand stands."""
        ...


class MarkedText(Static):
    """A plain text with marks: what of a reply is not settled yet, or all of it as it was written."""

    def __init__(self, palette: Palette, *, classes: str | None = None) -> None:
        super().__init__("", markup=False, classes=classes)
        self._palette = palette
        self._text, self._layers, self._start = "", Layers(), 0
        self.hits: Hits = ()

    def show(self, text: str, layers: Layers, start: int) -> None:
        """Show `text`, which begins at `start` of what `layers` cover."""
        self._text, self._layers, self._start = text, layers, start
        self.update(self._dressed())

    def redress(self) -> None:
        """Lay the marks of now over it."""
        self.update(self._dressed(), layout=False)

    def tell_lines(self) -> list[tuple[Widget, Counts]]:
        """Counts of its lines as they are wrapped."""
        width = self.size.width
        leaf = Leaf(Content(self._text), range(self._start, self._start + len(self._text)))
        return [(self, leaf.shares(self._layers, wrapped(self._text, width)))] if width else []

    @property
    def start(self) -> int:
        """Where its text begins in the strand."""
        return self._start

    def line_of(self, offset: int) -> int | None:
        """The line of the screen where a character of the strand stands."""
        lines = wrapped(self._text, self.size.width)
        return self.content_region.y + line_at(lines, offset - self._start) if self.size.width else None

    def _dressed(self) -> Content:
        start, end = self._start, self._start + len(self._text)
        spans = spans_of(self._layers.marks(self._palette.mode, start, end), self._palette, -start)
        for begin, stop, now in self.hits:
            if begin < end and stop > start:
                spans.append(Span(max(0, begin - start), stop - start, self._palette.hit(now)))
        return Content(self._text, spans)

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Also knows the marks."""
        found = named(self._palette, component_classes)
        return found if found is not None else super().get_visual_style(*component_classes, partial=partial)


def summed(found: list[tuple[Widget, Counts]], top: int, height: int) -> Counts:
    """Counts of widgets that stand in lines of the screen, as counts of the `height` lines from `top` on."""
    accepted, letters = [0] * height, [0] * height
    for widget, lines in found:
        first = widget.content_region.y - top
        for y, (early, all_) in enumerate(lines, first):
            if 0 <= y < height:
                accepted[y] += early
                letters[y] += all_
    return list(zip(accepted, letters, strict=True))
