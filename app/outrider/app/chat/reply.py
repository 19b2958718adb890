"""A reply on the screen: what the model thought, what it said, figures below."""

from __future__ import annotations

import asyncio

from textual.app import ComposeResult
from textual.containers import VerticalGroup
from textual.widgets import Static

from outrider.app.chat.flow import Flow
from outrider.app.chat.meter import summary
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import End, Reply
from outrider.app.chat.thought import ThoughtView

WAITING = "…"


class ReplyView(VerticalGroup, can_focus=True):
    """Shows one `Reply` and follows it while it grows; `paint` is called once a frame, never once a token."""

    def __init__(self, reply: Reply, palette: Palette) -> None:
        super().__init__(classes="reply")
        self.reply = reply
        self._palette = palette
        self.thought: ThoughtView | None = None  # once there is one
        self._answer = Flow(reply.answer, palette)
        self._footer = Static(WAITING, markup=False, classes="footer")
        self._one_at_a_time = asyncio.Lock()  # frames, scrolling and keys all work on what is mounted
        self.finished = False
        self.frozen = False

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

    async def freeze(self) -> None:
        """Give up what is rendered, far from what is seen; the height stays."""
        if self.frozen or not self.finished:
            return
        async with self._one_at_a_time:
            self.frozen = True
            self.styles.height = self.outer_size.height
            for flow in self._flows():
                await flow.put_away()

    async def thaw(self) -> None:
        """Render it again."""
        if not self.frozen:
            return
        async with self._one_at_a_time:
            self.frozen = False
            with self.app.batch_update():
                for flow in self._flows():
                    await flow.bring_back()
                self.styles.height = None

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

    def _flows(self) -> list[Flow]:
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
        words = [] if end is End.WHOLE else [end.value]
        if end is End.WHOLE and not self.reply.text:
            words.append("no answer" if self.reply.thought.begun else "no text")
        if report is not None and self.reply.begun:
            words += summary(report)
        return " · ".join(words)
