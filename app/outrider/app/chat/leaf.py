"""One rendered text and where its characters come from: what marks and hits are laid over, as often as they change."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

from textual.content import Content, Span

from outrider.app.chat.marks import Layers, Run, extent, project
from outrider.app.chat.palette import Palette

Hits = Sequence[tuple[int, int, bool]]  # begin and end in the strand, whether it is the one that is looked at


class Leaf:
    """`bare` is the text with its own styles; its character i came from `offsets[i]` of the strand, -1 from nowhere.

    Without offsets it is not known where anything came from, and nothing is marked.
    """

    def __init__(self, bare: Content, offsets: Iterable[int] | None) -> None:
        known = None if offsets is None else array("l", offsets)
        self.bare = bare
        self.offsets = known if known is not None and len(known) == len(bare.plain) else None
        self._extent = (0, 0) if self.offsets is None else extent(self.offsets)
        self._sums: tuple[list[int], list[int]] | None = None

    def dressed(self, layers: Layers, palette: Palette, hits: Hits = ()) -> Content:
        """The text with the marks of the mode that is on, and with what was searched for."""
        if self.offsets is None:
            return self.bare
        low, high = self._extent
        spans = spans_of(project(layers.marks(palette.mode, low, high), self.offsets), palette)
        for start, end, now in hits:
            if end <= low or start >= high:
                continue
            places = [index for index, offset in enumerate(self.offsets) if start <= offset < end]
            if places:
                spans.append(Span(places[0], places[-1] + 1, palette.hit(now)))
        return Content(self.bare.plain, [*self.bare.spans, *spans]) if spans else self.bare

    def find(self, offset: int) -> int | None:
        """Where a character of the strand stands in the text, None if it does not."""
        low, high = self._extent
        if self.offsets is None or not low <= offset < high or offset not in self.offsets:
            return None
        return self.offsets.index(offset)

    def recolored(self, bare: Content) -> Leaf:
        """The same text with other styles of its own."""
        return Leaf(bare, self.offsets)

    def shares(self, layers: Layers, lines: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Accepted and all letters of each line, a range of the text; letters that came from nowhere do not count."""
        if self.offsets is None:
            return [(0, 0)] * len(lines)
        if self._sums is None:
            self._sums = _sums(layers, self.bare.plain, self.offsets)
        accepted, letters = self._sums
        return [(accepted[end] - accepted[start], letters[end] - letters[start]) for start, end in lines]


def _sums(layers: Layers, text: str, offsets: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many accepted and how many letters there are before each place of the text."""
    letters = [offset >= 0 and not char.isspace() for char, offset in zip(text, offsets, strict=True)]
    accepted = [False] * len(text)
    for run in project(layers.kinds.between(*extent(offsets)), offsets):
        if run.kind == "A":
            accepted[run.start : run.end] = letters[run.start : run.end]
    return list(accumulate(accepted, initial=0)), list(accumulate(letters, initial=0))


def spans_of(runs: Iterable[Run[str]], palette: Palette, shift: int = 0) -> list[Span]:
    """Content spans for those runs that can be seen, moved by `shift`."""
    return [Span(run.start + shift, run.end + shift, f".{run.kind}") for run in runs if not palette.plain(run.kind)]
