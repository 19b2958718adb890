"""A growing text on the screen: settled pieces as rendered Markdown, the rest as a light raw tail."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalGroup

from outrider.app.chat.bare import Bare
from outrider.app.chat.blocks import Piece, Scanner, coalesce
from outrider.app.chat.clean import harmless
from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.leaf import Hits
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import Strand


class Flow(VerticalGroup, Bare):
    """Shows one `Strand` and follows it while it grows, unless it is put away. One task at a time may work on it."""

    def __init__(self, strand: Strand, palette: Palette, *, classes: str | None = None) -> None:
        super().__init__(classes=f"flow {classes or ''}")
        self.strand = strand
        self.away = False  # nothing is rendered
        self.raw = False  # shown as it was written
        self.tail = MarkedText(palette, classes="tail")
        self._palette = palette
        self._scanner = Scanner()
        self._pieces: list[Piece] = []
        self._hits: Hits = ()

    def compose(self) -> ComposeResult:
        """Pieces are mounted before the tail."""
        yield self.tail

    def settled(self) -> list[Settled]:
        """What is rendered, from top to bottom."""
        return [child for child in self.children if isinstance(child, Settled)]

    async def follow(self, *, ended: bool = False) -> None:
        """Bring the screen up to date with the strand; `ended`: no more of it will come."""
        pieces = self._scanner.feed(harmless(self.strand.fresh()))
        if ended:
            pieces += self._scanner.finish()
        await self._settle(pieces)
        if ended and "".join(piece.text for piece in self._pieces) != harmless(self.strand.text):
            await self._rebuild()
        self._show_tail()

    def redress(self) -> None:
        """Lay the marks and hits of now over what is rendered."""
        for view in self.settled():
            view.redress()
        self.tail.redress()

    def show_hits(self, hits: Hits) -> None:
        """Lay these over what is rendered, and over what will be."""
        self._hits = self.tail.hits = hits
        for view in self.settled():
            view.hits = hits
        self.redress()

    def place_of(self, offset: int) -> int | None:
        """The line of the screen where a character of the strand stands; None if it is not shown."""
        if self.tail.display and offset >= self.tail.start:
            return self.tail.line_of(offset)
        for view in self.settled():
            if view.piece.start <= offset < view.piece.start + len(view.piece.text):
                return view.line_of(offset)
        return None

    async def show_raw(self, raw: bool) -> None:
        """Show the text as it was written, or rendered."""
        self.raw = raw
        if self.away:
            return
        await self.query_children(Settled).remove()
        if not raw:
            await self._mount(self._pieces)
        self._show_tail()

    async def put_away(self) -> None:
        """Give up what is rendered; every widget costs in each layout."""
        self.away = True
        self.tail.display = False
        await self.query_children(Settled).remove()

    async def bring_back(self) -> None:
        """Render all of it again."""
        self.away = False
        await self._mount(self._pieces)
        self._show_tail()

    async def _settle(self, pieces: list[Piece]) -> None:
        self._pieces.extend(pieces)
        await self._mount(pieces)

    async def _mount(self, pieces: list[Piece]) -> None:
        if not self.is_attached or self.away or self.raw:  # a new chat may have taken it away meanwhile
            return
        shown = [piece for piece in coalesce(pieces) if piece.shown]
        views = [Settled(piece, self.strand.layers, self._palette, self._hits) for piece in shown]
        if views:
            await self.mount_all(views, before=self.tail)

    async def _rebuild(self) -> None:
        """The final text is not what was shown: render it anew."""
        await self.query_children(Settled).remove()
        self._scanner, self._pieces = Scanner(), []
        await self._settle(self._scanner.feed(harmless(self.strand.text)) + self._scanner.finish())

    def _show_tail(self) -> None:
        start = 0 if self.raw else self._scanner.settled
        tail = harmless(self.strand.text) if self.raw else self._scanner.tail
        lead = len(tail) - len(tail.lstrip("\n"))
        self.tail.display = bool(tail.strip()) and not self.away
        if self.tail.display:
            self.tail.show(tail[lead:].rstrip("\n"), self.strand.layers, start + lead)
