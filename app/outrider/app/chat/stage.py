"""Puts on the screen what the session tells: the one place that turns engine events into widget calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from outrider.app.chat.frames import Frames
from outrider.app.chat.session import Problem, Session
from outrider.app.chat.status import Chip, StatusLine, chips
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.chat.transcript import Card, Note, Transcript

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.timer import Timer

    from outrider.app.chat.prompt import Prompt
    from outrider.app.chat.reply import ReplyView

_FLASH = 3.0  # seconds
_COVERED = 0.25  # seconds
_UNSEEN = 0.5  # seconds between paints of a reply that is scrolled out of sight


class Stage:
    """The `View` of a session, over the widgets of one screen."""

    def __init__(self, screen: Screen[Any], transcript: Transcript, prompt: Prompt, status: StatusLine) -> None:
        self.session: Session | None = None
        self.frames = Frames(self._paint, self._painted)
        self._screen = screen
        self._transcript = transcript
        self._prompt = prompt
        self._status = status
        self.live: dict[Turn, ReplyView] = {}
        self.heads: list[Callable[[Session], None]] = []  # what else shows the session, once a frame
        self.ended: list[Callable[[ReplyView], None]] = []  # what is told of each reply that is shown to its end
        self.chips: list[Callable[[], list[Chip]]] = []  # what the status line says besides
        self._flash: Timer | None = None
        self._introduced = False
        self._tidy = False
        self._painted_at = 0.0
        self._taught = False  # how to see a thought again
        self.standing: Problem | None = None  # told again under every chat that is opened

    def attach(self, session: Session) -> None:
        """Begin to paint for this session."""
        self.session = session
        self.spawn(self.frames.run())
        self.status_changed()

    def scrolled(self) -> None:
        """Render what comes near and give up what is far, with the next frame."""
        self._tidy = True
        self.frames.wake()

    def forget(self) -> None:
        """A new chat: replies of the old one are not painted any more."""
        self.live.clear()

    # ------------------------------------------------------------------------------------------------ View

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a worker of the screen."""
        self._screen.run_worker(work, exit_on_error=True)

    def status_changed(self) -> None:
        """With the next frame."""
        self.frames.wake()

    def turn_sent(self, turn: Turn) -> None:
        """Put an empty reply under the message."""
        self.live[turn] = self._transcript.begin_reply(turn)
        self.frames.wake()

    def reply_grew(self, turn: Turn) -> None:
        """With the next frame."""
        self.frames.wake()

    def reply_ended(self, turn: Turn) -> None:
        """With the next frame; a refused message goes back into the prompt."""
        if turn.failed and turn in self.live:
            self.live.pop(turn).remove()
            message = self._transcript.message_of(turn)
            again = self.session is not None and turn.node in self.session.chat.tree  # it was answered before
            back = not (self._prompt.text or self._prompt.attachments) and not again
            if back:
                self._prompt.put(turn.text, turn.attachments)
            if message is not None and back:  # never in both places
                message.remove()
            elif message is not None:
                message.add_class("-failed")
        self.frames.wake()

    async def path_changed(self, chat: Chat, kept: int) -> None:
        """Show what is another, where the reader is."""
        assert self.session is not None
        self._transcript.release_anchor()
        await self._transcript.drop(chat.turns, self.session.queue)
        if self.session.chat is not chat:  # the user was quicker
            return
        if not chat.turns and not self.session.queue:
            self._transcript.clear(
                self.session.loaded.title if self.session.loaded else self.session.options.model.model
            )
        shown = await self._transcript.fill(chat.turns, kept, self.session.queue)
        self.live = {turn: view for turn, view in self.live.items() if turn in chat.turns} | shown
        self.scrolled()

    async def chat_opened(self, chat: Chat, typed: str) -> None:
        """Show it from its end."""
        if self._prompt.companion is not None:
            await self._prompt.companion.opened(typed, chat.unsent)
        self.forget()
        self.live.update(await self._transcript.show(chat.turns, self.session.queue if self.session else ()))
        if self.standing is not None:
            self.complain(self.standing)
        self.frames.wake()

    def recall(self, prompts: list[str]) -> None:
        """The prompt's up key knows them."""
        self._prompt.remember(prompts)

    def tell(self, text: str, about: Reply | None = None) -> None:
        """Append a note, under the reply that it is about; where the end is not seen it is flashed too."""
        self._transcript.add_note(Note(text, about))
        if about is None and not self._transcript.sees_end():
            self.flash(text)

    def complain(self, problem: Problem) -> None:
        """Append a card; what can be done now takes the place of what could be done before."""
        if problem.offers:
            self.settle()
        self._transcript.add(Card(problem))

    def settle(self) -> None:
        """What a card asked to be done has been done."""
        for card in self._transcript.query_children(Card):
            if card.problem.offers:
                card.remove()

    def flash(self, text: str) -> None:
        """Show a line for a moment."""
        if self._flash is not None:
            self._flash.stop()
        self._status.flash(text)
        self._flash = self._screen.set_timer(_FLASH, self._status.unflash)

    # ------------------------------------------------------------------------------------------------ frames

    async def _paint(self) -> None:
        assert self.session is not None
        self._status.show([*chips(self.session), *(chip for more in self.chips for chip in more())])
        for head in self.heads:
            head(self.session)
        if self.session.loaded and not self._introduced:
            self._introduced = True
            self._transcript.introduce(self.session.loaded.title)
        if self._tidy:
            self._tidy = False
            await self._transcript.tidy()
            await self._transcript.show_earlier()
        unseen = not self._transcript.sees_end() and monotonic() - self._painted_at < _UNSEEN
        for turn, view in list(self.live.items()):
            if unseen and turn.reply is not None and turn.reply.end is End.NOT_YET:
                continue
            self._painted_at = monotonic()
            with self._screen.app.batch_update():
                await view.paint()
                await view.take_over()
            self._teach(view)
            if view.finished and self.live.get(turn) is view:  # the turn may have got another one meanwhile
                del self.live[turn]
                for told in self.ended:
                    told(view)
                self.scrolled()

    def _teach(self, view: ReplyView) -> None:
        """Say once how to see a thought that has just folded."""
        if not self._taught and view.thought is not None and view.thought.folded:
            self._taught = True
            self.flash(f"{self._status.keymap.first('thought')} shows what the model thought")

    async def _painted(self) -> None:
        done = asyncio.Event()
        self._screen.call_after_refresh(done.set)
        with contextlib.suppress(TimeoutError):  # a screen that is covered may not be refreshed
            await asyncio.wait_for(done.wait(), _COVERED)
