"""A growing text on the screen: settled pieces as rendered Markdown, the rest as a light raw tail."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalGroup

from outrider.app.chat.blocks import Piece, Scanner, coalesce
from outrider.app.chat.clean import harmless
from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import Strand


class Flow(VerticalGroup):
    """Shows one `Strand` and follows it while it grows, unless it is put away. One task at a time may work on it."""

    def __init__(self, strand: Strand, palette: Palette, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.strand = strand
        self.away = False  # nothing is rendered
        self._palette = palette
        self._scanner = Scanner()
        self._pieces: list[Piece] = []
        self._tail = MarkedText(palette, classes="tail")

    def compose(self) -> ComposeResult:
        """Pieces are mounted before the tail."""
        yield self._tail

    async def follow(self, *, ended: bool = False) -> None:
        """Bring the screen up to date with the strand; `ended`: no more of it will come."""
        pieces = self._scanner.feed(harmless(self.strand.fresh()))
        if ended:
            pieces += self._scanner.finish()
        await self._settle(pieces)
        if ended and "".join(piece.text for piece in self._pieces) != harmless(self.strand.text):
            await self._rebuild()
        self._show_tail()

    async def put_away(self) -> None:
        """Give up what is rendered; every widget costs in each layout."""
        self.away = True
        self._tail.display = False
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
        views = [Settled(piece, self.strand.runs, self._palette) for piece in coalesce(pieces) if piece.shown]
        if views and self.is_attached and not self.away:  # a new chat may have taken it away meanwhile
            await self.mount_all(views, before=self._tail)

    async def _rebuild(self) -> None:
        """The final text is not what was shown: render it anew."""
        await self.query_children(Settled).remove()
        self._scanner, self._pieces = Scanner(), []
        await self._settle(self._scanner.feed(harmless(self.strand.text)) + self._scanner.finish())

    def _show_tail(self) -> None:
        tail = self._scanner.tail
        lead = len(tail) - len(tail.lstrip("\n"))
        self._tail.display = bool(tail.strip()) and not self.away
        if self._tail.display:
            self._tail.show(tail[lead:].rstrip("\n"), self.strand.runs, self._scanner.settled + lead)
