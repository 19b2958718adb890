"""Finds words in the transcript: a line above the prompt, every hit marked, and the one that is looked at in sight."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.content import Content, Span
from textual.geometry import Region

from outrider.app.chat.palette import Palette

if TYPE_CHECKING:
    from outrider.app.chat.find_bar import FindBar
    from outrider.app.chat.finding import Finder, Hit
    from outrider.app.chat.flow import Flow
    from outrider.app.chat.leaf import Hits
    from outrider.app.chat.reply import ReplyView
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.chat.talk import Strand, Turn
    from outrider.app.chat.transcript import UserMessage

_PAUSE = 0.1  # seconds without a key before a search begins
_ABOVE = 3  # the hit stands below this part of the window's height


class Find:
    """One search at a time; its hits are those of the moment when it was made, or gone on with."""

    def __init__(self, screen: ChatScreen, palette: Palette) -> None:
        self._screen = screen
        self._palette = palette
        self._finder: Finder | None = None
        self.words = ""
        self.hits: list[Hit] = []
        self.at = 0
        self._bar: FindBar | None = None
        self._said: dict[UserMessage, Content] = {}  # as they were before hits were laid over them
        self._length = 0  # of all texts that were searched

    @property
    def open(self) -> bool:
        """Whether the line is there."""
        return self._bar is not None

    def begin(self, words: str = "") -> None:
        """Open the line, with words or for them to be typed."""
        from outrider.app.chat.find_bar import FindBar

        if self._bar is None:
            self._bar = FindBar(self, words)
            self._screen.query_one("#prompt-row").mount(self._bar, before=0)
        self._bar.take(words)

    def close(self) -> bool:
        """Take the line and all hits away; False if there is none."""
        if self._bar is None:
            return False
        self._bar.remove()
        self._bar, self.words, self.hits = None, "", []
        self._finder = None
        self._show()
        self._screen.prompt.focus()
        return True

    def search(self, words: str) -> None:
        """Look for other words, once the typing pauses."""
        self.words = words
        self._screen.run_worker(self._search(words, _PAUSE), group="find", exclusive=True)

    def step(self, by: int) -> None:
        """To the next hit, or by -1 to the one before; around at the ends."""
        if self._bar is None:
            self._screen.stage.flash("Nothing was searched for yet")
            return
        self._screen.run_worker(self._step(by), group="find", exclusive=True)

    def told(self) -> str:
        """`3/12`."""
        if not self.words.strip():
            return ""
        return f"{self.at + 1}/{len(self.hits)}" if self.hits else "none"

    async def _search(self, words: str, pause: float = 0.0) -> None:
        from outrider.app.chat.finding import nearest_from

        await asyncio.sleep(pause)
        await self._look(words)
        self.at = nearest_from(self.hits, self._screen.session.chat.turns, self._seen())
        await self._go()

    async def _look(self, words: str) -> None:
        from outrider.app.chat.finding import Finder  # brings Markdown with it

        self._finder = self._finder or Finder()
        hits: list[Hit] = []
        for turn in self._screen.session.chat.turns:
            hits += self._finder.hits(turn, words)
            await asyncio.sleep(0)
        self.hits, self._length = hits, self._lengths()

    async def _step(self, by: int) -> None:
        old = self.hits[self.at] if self.hits else None
        if self._length != self._lengths():  # more has been written
            await self._look(self.words)
            same = (place for place, hit in enumerate(self.hits) if old is not None and _alike(hit, old))
            self.at = next(same, 0)
        if self.hits:
            self.at = (self.at + by) % len(self.hits)
        await self._go()

    def _lengths(self) -> int:
        turns = self._screen.session.chat.turns
        return sum(len(turn.reply.answer.layers) + len(turn.reply.thought.layers) + 1 for turn in turns if turn.reply)

    def _seen(self) -> Turn | None:
        """The first turn that is in the window."""
        top = self._screen.transcript.region.y
        for widget in self._screen.transcript.children:
            if widget.region.bottom > top and hasattr(widget, "turn"):
                return getattr(widget, "turn", None)
        return None

    # ------------------------------------------------------------------------------------------------ showing

    async def _go(self) -> None:
        if self._bar is None:
            return
        self._bar.count(self.told())
        hit = self.hits[self.at] if self.hits else None
        if hit is not None:
            await self._screen.transcript.reveal(hit.turn)
        self._show()
        if hit is not None:
            await self._scroll_to(hit)

    async def _scroll_to(self, hit: Hit) -> None:
        transcript = self._screen.transcript
        if hit.part == "said":
            message = transcript.message_of(hit.turn)
            if message is not None:
                self._into_sight(message.region)
            return
        view = transcript.view_of(hit.turn)
        if view is None:
            return
        self._into_sight(view.region)
        await view.thaw()
        if hit.part == "thought" and view.thought is not None and view.thought.folded:
            await view.fold_thought()
        for _ in range(3):  # what was mounted is laid out in the end
            await self._painted()
        flow = view.thought if hit.part == "thought" and view.thought is not None else view.answer
        place = flow.place_of(hit.start)
        if place is not None:
            self._into_sight(Region(0, place, 1, 1))

    def _into_sight(self, region: Region) -> None:
        transcript = self._screen.transcript
        top = transcript.content_region.y
        if top + 1 <= region.y < top + transcript.size.height - 1:
            return
        target = region.y - top + transcript.scroll_y - transcript.size.height // _ABOVE
        transcript.release_anchor()
        transcript.scroll_to(y=max(0, target), animate=False, immediate=True)

    async def _painted(self) -> None:
        done = asyncio.Event()
        self._screen.call_after_refresh(done.set)
        try:
            await asyncio.wait_for(done.wait(), 0.25)
        except TimeoutError:  # a screen that is covered may not be refreshed
            return

    def _show(self) -> None:
        """Lay the hits over all messages that are mounted."""
        from outrider.app.chat.reply import ReplyView

        by_strand: dict[Strand, list[tuple[int, int, bool]]] = {}
        said: dict[Turn, list[tuple[int, int, bool]]] = {}
        for place, hit in enumerate(self.hits):
            one = (hit.start, hit.end, place == self.at)
            if hit.part == "said":
                said.setdefault(hit.turn, []).append(one)
            elif hit.turn.reply is not None:
                strand = hit.turn.reply.thought if hit.part == "thought" else hit.turn.reply.answer
                by_strand.setdefault(strand, []).append(one)
        for view in self._screen.transcript.query_children(ReplyView):
            for flow in _flows(view):
                flow.show_hits(by_strand.get(flow.strand, ()))
        self._show_said(said)

    def _show_said(self, said: dict[Turn, list[tuple[int, int, bool]]]) -> None:
        for message, content in self._said.items():
            message.update(content, layout=False)
        self._said = {}
        for turn, hits in said.items():
            message = self._screen.transcript.message_of(turn)
            if message is not None and isinstance(message.visual, Content):
                self._said[message] = message.visual
                message.update(with_hits(message.visual, hits, self._palette), layout=False)


def with_hits(content: Content, hits: Hits, palette: Palette) -> Content:
    """A text with hits laid over it, as far as it reaches."""
    spans = [Span(start, end, palette.hit(now)) for start, end, now in hits if end <= len(content.plain)]
    return Content(content.plain, [*content.spans, *spans])


def _alike(one: Hit, other: Hit) -> bool:
    return (one.turn, one.part, one.start) == (other.turn, other.part, other.start)


def _flows(view: ReplyView) -> list[Flow]:
    return [view.answer] if view.thought is None else [view.thought, view.answer]
