"""A reply on the screen: what the model thought, what it said, figures below."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalGroup
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import Static

from outrider.app.chat import gutter
from outrider.app.chat.bare import Bare
from outrider.app.chat.flow import Flow
from outrider.app.chat.meter import summary
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import End, Reply
from outrider.app.chat.thought import ThoughtView
from outrider.app.chat.transcript import SIDEWAYS, place_words

WAITING = "…"


class ReplyView(VerticalGroup, Bare, can_focus=True):
    """Shows one `Reply` and follows it while it grows; `paint` is called once a frame, never once a token."""

    BINDINGS: ClassVar = SIDEWAYS

    def __init__(self, reply: Reply, palette: Palette) -> None:
        super().__init__(classes="reply")
        self.reply = reply
        self._palette = palette
        self.thought: ThoughtView | None = None  # once there is one
        self._answer = Flow(reply.answer, palette)
        self._footer = Static(WAITING, markup=False, classes="footer")
        self._legend: Static | None = None
        self._one_at_a_time = asyncio.Lock()  # frames, scrolling and keys all work on what is mounted
        self.finished = False
        self.frozen = False
        self.replaces: ReplyView | None = None  # shows the same reply, until this one is painted
        self._place, self._end, self._hint = (1, 1), "", ""

    def compose(self) -> ComposeResult:
        """A thought is mounted above the answer when it begins."""
        yield self._answer
        yield self._footer

    async def paint(self) -> None:
        """Bring the screen up to date with the reply."""
        if not self.is_attached or self.finished:
            return
        async with self._one_at_a_time:
            ended = self.reply.end is not End.NOT_YET
            with self.app.batch_update():
                await self._think(ended)
                await self._answer.follow(ended=ended)
                if ended:
                    self._finish()
                elif self.reply.begun:
                    self._footer.update("")
                self._refresh_gutter()

    async def take_over(self) -> None:
        """Once it is painted: the view that it replaces goes, and leaves it the focus."""
        old, self.replaces = self.replaces, None
        if old is not None and old.is_attached:
            if old.has_focus:
                self.focus(scroll_visible=False)
            await old.remove()

    def placed(self, place: tuple[int, int], end: str = "", hint: str = "") -> None:
        """Say which of how many branches it is, how it ended, and what can be done about a reply that was cut."""
        if (place, end, hint) != (self._place, self._end, self._hint):
            self._place, self._end, self._hint = place, end, hint
            if self.finished:
                self._footer.update(self._figures())

    async def freeze(self) -> None:
        """Give up what is rendered, far from what is seen; the height stays."""
        if self.frozen or not self.finished:
            return
        async with self._one_at_a_time:
            self.frozen = True
            self.styles.height = self.outer_size.height
            for flow in self.flows():
                await flow.put_away()

    async def thaw(self) -> None:
        """Render it again."""
        if not self.frozen:
            return
        async with self._one_at_a_time:
            self.frozen = False
            with self.app.batch_update():
                for flow in self.flows():
                    await flow.bring_back()
                self.styles.height = None

    def render_lines(self, crop: Region) -> list[Strip]:
        """With the gutter, which takes the last column."""
        strips = super().render_lines(crop)
        if not self._palette.gutter or self.frozen or not self.is_attached:  # a new chat may just have taken it away
            return strips
        if self.screen.size.width < gutter.LEAST_WIDTH:
            return strips
        lines = gutter.counts(self.flows(), self.region.y + crop.y, crop.height)
        return gutter.drawn(strips, crop, self.outer_size.width - 1, lines, self._edge())

    def _edge(self) -> Style:
        """How the gutter looks where colours may have to be left out."""
        segment = Segment("█", (self.visual_style + self._palette.edge).rich_style)
        for each in self.get_line_filters():
            (segment,) = each.apply([segment], self.background_colors[1])
        return segment.style or Style.null()

    def _refresh_gutter(self) -> None:
        tail = self._answer.tail if self.reply.answer.begun or self.thought is None else self.thought.tail
        if self._palette.gutter and tail.display and tail.size.height:
            self.refresh(Region(self.size.width, tail.region.y - self.content_region.y, 1, tail.size.height + 1))

    @property
    def raw(self) -> bool:
        """Whether it is shown as it was written."""
        return self._answer.raw

    async def show_raw(self, raw: bool) -> None:
        """Show the answer as it was written, or rendered."""
        await self.thaw()
        async with self._one_at_a_time:
            with self.app.batch_update():
                await self._answer.show_raw(raw)

    def explain(self, words: str) -> None:
        """Say under the figures what the marks mean."""
        if self._legend is None:
            self._legend = Static("", markup=False, classes="legend")
            self.add_class("-explained")
            self.mount(self._legend, after=self._footer)
        self._legend.update(words)

    async def fold_thought(self) -> None:
        """Fold the thought, or unfold it."""
        if self.thought is None:
            return
        await self.thaw()
        async with self._one_at_a_time:
            self.thought.chosen = not self.thought.folded
            with self.app.batch_update():
                await self.thought.fold(self.thought.chosen)

    def on_fold_line_pressed(self) -> None:
        """Its line was clicked."""
        self.run_worker(self.fold_thought())

    @property
    def answer(self) -> Flow:
        """What shows the answer."""
        return self._answer

    def flows(self) -> list[Flow]:
        """What is rendered unless the reply is frozen."""
        return [self._answer] if self.thought is None or self.thought.folded else [self.thought, self._answer]

    async def _think(self, ended: bool) -> None:
        thought, answer = self.reply.thought, self.reply.answer
        if thought.begun and self.thought is None:
            self.thought = ThoughtView(thought, self._palette)
            await self.mount(self.thought, before=self._answer)
        if self.thought is not None:
            await self.thought.think(answering=answer.begun, ended=ended)

    def _finish(self) -> None:
        self.finished = True
        self._footer.update(self._figures())
        self.set_class(self.reply.end in (End.STOPPED, End.INTERRUPTED), "-cut")

    def _figures(self) -> str:
        end, report = self.reply.end, self.reply.report
        words = [place_words(self._place)] if self._place[1] > 1 else []
        words += [] if end is End.WHOLE else [self._end or end.value, self._hint]
        if end is End.WHOLE and not self.reply.text:
            words.append("no answer" if self.reply.thought.begun else "no text")
        if report is not None and self.reply.begun:
            words += summary(report)
        if self.reply.parts:
            words.append(f"in {len(self.reply.parts) + 1} parts")
        if self.reply.lead:
            words.append("begun by you")
        return " · ".join(filter(None, words))
