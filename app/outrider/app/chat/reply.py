"""A reply on the screen: settled pieces as rendered Markdown, the rest as a light raw tail, figures below."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalGroup
from textual.widgets import Static

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.blocks import Piece, Scanner, coalesce
from outrider.app.chat.clean import harmless
from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.meter import summary
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import End, Reply

WAITING = "…"


class ReplyView(VerticalGroup, can_focus=True):
    """Shows one `Reply` and follows it while it grows; `paint` is called once a frame, never once a token."""

    BINDINGS: ClassVar = [
        Binding(key, f"screen.act('{action.id}')", action.title, show=False)
        for action in ACTIONS
        for key in action.on_message
    ]

    def __init__(self, reply: Reply, palette: Palette) -> None:
        super().__init__(classes="reply")
        self.reply = reply
        self._palette = palette
        self._scanner = Scanner()
        self._pieces: list[Piece] = []
        self._tail = MarkedText(palette, classes="tail")
        self._footer = Static(WAITING, markup=False, classes="footer")
        self.finished = False
        self.frozen = False

    def compose(self) -> ComposeResult:
        """Pieces are mounted between nothing and the tail."""
        yield self._tail
        yield self._footer

    async def paint(self) -> None:
        """Bring the screen up to date with the reply."""
        if not self.is_attached or self.finished:
            return
        ended = self.reply.end is not End.NOT_YET
        pieces = self._scanner.feed(harmless(self.reply.fresh()))
        if ended:
            pieces += self._scanner.finish()
        with self.app.batch_update():
            await self._settle(pieces)
            if ended:
                await self._finish()
            else:
                self._show_tail()

    def _show_tail(self) -> None:
        tail = self._scanner.tail
        lead = len(tail) - len(tail.lstrip("\n"))
        self._tail.show(tail[lead:].rstrip("\n"), self.reply.runs, self._scanner.settled + lead)
        self._tail.display = bool(tail.strip())
        if self.reply.begun:
            self._footer.update("")

    async def freeze(self) -> None:
        """Give up the rendered pieces, far from what is seen; the height stays. Every widget costs in each layout."""
        if self.frozen or not self.finished:
            return
        self.frozen = True
        self.styles.height = self.outer_size.height
        await self.query_children(Settled).remove()

    async def thaw(self) -> None:
        """Render the pieces again."""
        if not self.frozen:
            return
        self.frozen = False
        with self.app.batch_update():
            await self._mount(self._pieces)
            self.styles.height = None

    async def _settle(self, pieces: list[Piece]) -> None:
        self._pieces.extend(pieces)
        await self._mount(pieces)

    async def _mount(self, pieces: list[Piece]) -> None:
        views = [Settled(piece, self.reply.runs, self._palette) for piece in coalesce(pieces) if piece.shown]
        if views and self.is_attached:  # a new chat may have taken it away meanwhile
            await self.mount_all(views, before=self._tail)

    async def _finish(self) -> None:
        if "".join(piece.text for piece in self._pieces) != harmless(self.reply.text):
            await self._rebuild()
        self.finished = True
        self._tail.display = False
        self._footer.update(self._figures())
        self.set_class(self.reply.end in (End.STOPPED, End.INTERRUPTED), "-cut")

    async def _rebuild(self) -> None:
        """The final text is not what was shown: render it anew."""
        await self.query_children(Settled).remove()
        self._scanner, self._pieces = Scanner(), []
        await self._settle(self._scanner.feed(harmless(self.reply.text)) + self._scanner.finish())

    def _figures(self) -> str:
        end, report = self.reply.end, self.reply.report
        words = [] if end is End.WHOLE else [end.value]
        if report is not None and self.reply.begun:
            words += summary(report)
        elif end is End.WHOLE:
            words = ["no text"]
        return " · ".join(words)
