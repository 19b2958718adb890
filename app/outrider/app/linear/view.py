"""What the session tells, as lines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TextIO

from outrider.app.chat.actions import BY_ID
from outrider.app.chat.clean import harmless
from outrider.app.chat.context import cut_words
from outrider.app.chat.problem import Problem
from outrider.app.chat.session import Session, State
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.linear import speech
from outrider.app.store.keeper import Keeper

_PATIENCE = 10.0  # seconds after which it is said how far something is
_ENDS = {
    End.STOPPED: "Stopped. What was written is kept.",
    End.INTERRUPTED: "The reply was interrupted. What was written is kept.",
}


class LinearView:
    """The `View` of a session that prints. What it is told at once it says at once; a reply it says in sentences."""

    def __init__(self, out: TextIO) -> None:
        self.session: Session | None = None
        self.prompts: list[str] = []
        self.typed = ""
        """What was never sent, to be typed again."""
        self.standing: Problem | None = None
        self.chips: list[Any] = []  # of a status line, which there is not
        self.faults: list[BaseException] = []
        self._out = out
        self._open = False  # a line that is not ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._state: State | None = None
        self._told_at = 0.0
        self._saying: Turn | None = None
        self._said = 0  # characters of the answer
        self._sentences = speech.Sentences()
        self._thinks = False
        self._announced: Reply | None = None  # whose beginning was said

    # ------------------------------------------------------------------------------------------------ lines

    def line(self, text: str = "") -> None:
        """A line of its own."""
        self._write(("\n" if self._open else "") + harmless(text) + "\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._open = not text.endswith("\n")

    async def settled(self) -> None:
        """Wait until nothing is under way. Raises what went wrong in the program itself."""
        while not self._idle():
            self._changed.clear()
            await self._changed.wait()
        if self.faults:
            raise self.faults[0]

    def _idle(self) -> bool:
        return bool(self.faults) or not self._tasks

    # ------------------------------------------------------------------------------------------------ View

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside everything else; but for what only watches, its end is waited for."""
        watches = getattr(work, "cr_code", None) is Keeper.watch.__code__
        task = asyncio.ensure_future(work)
        if not watches:
            self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(error)
        self._changed.set()

    def status_changed(self) -> None:
        """Say what the engine does where that takes a while or is new."""
        assert self.session is not None
        session, state = self.session, self.session.state
        if state is not self._state:
            before, self._state = self._state, state
            self._told_at = monotonic()
            if state is State.LOADING:
                self.line(f"Loading {session.options.model.model}.")
            elif state is State.READY and before is State.LOADING and session.loaded is not None:
                self.line(f"Ready: {session.loaded.title or session.loaded.model}, drafter {session.drafter.name}.")
        elif session.progress is not None and monotonic() - self._told_at > _PATIENCE:
            self._told_at = monotonic()
            doing = state.value.rstrip("…").capitalize()
            self.line(f"{doing}, {speech.progress_words(session.progress)}")

    def turn_sent(self, turn: Turn) -> None:
        """The answer begins, or goes on."""
        if turn is not self._saying:
            self._said = 0
        self._saying = turn
        self._sentences = speech.Sentences()
        reply = turn.reply
        self._said = min(self._said, len(reply.text)) if reply is not None else 0
        if reply is not None and (not reply.begun or reply.resuming):
            self._announced, self._thinks = None, False

    def reply_grew(self, turn: Turn) -> None:
        """Say the sentences that are whole."""
        reply = turn.reply
        if reply is None or turn is not self._saying:
            return
        if reply.thought.begun and not reply.answer.begun and not self._thinks:
            self._thinks = True
            self.line("The model is thinking.")
        self._say(reply, self._sentences.add(self._fresh(reply)))

    def _fresh(self, reply: Reply) -> str:
        text = reply.text[self._said :]
        self._said += len(text)
        return text

    def _say(self, reply: Reply, text: str) -> None:
        if not text:
            return
        if self._announced is not reply:
            self._announced = reply
            if self._thinks:
                self.line(f"{speech.thought_words(reply.thought)} /thought tells what.")
            self._write("Assistant: ")
        self._write(harmless(text))

    def reply_ended(self, turn: Turn) -> None:
        """Say the rest, how it ended and its figures."""
        reply = turn.reply
        if turn.failed or reply is None:
            self.typed = turn.text
            self.line("The message was not taken; it is typed again.")
            return
        self._say(reply, self._sentences.add(self._fresh(reply)) + self._sentences.rest())
        if self._open:
            self._write("\n")
        self._end(reply)
        if reply.report is not None:
            self.line(speech.figures(reply.report))
        self.line()

    def _end(self, reply: Reply) -> None:
        """Say how a reply ended that is not whole."""
        assert self.session is not None
        if reply.end is End.LENGTH:
            words = cut_words(reply, self.session.branches.room).replace("cut off:", "cut off: the")
            self.line(f"The reply was {words}.")
        elif reply.end in _ENDS:
            self.line(_ENDS[reply.end])

    async def chat_opened(self, chat: Chat, typed: str) -> None:
        """Say how it ended."""
        turns = chat.turns
        self.line(f"This chat has {len(turns)} message{'s' if len(turns) != 1 else ''}.")
        self._last(chat)
        if typed:
            self.typed = typed
            self.line("A message was never sent; it is typed again.")
        self.line()

    def _last(self, chat: Chat) -> None:
        """Say the last message and its answer."""
        for turn in chat.turns[-1:]:
            if turn.text:
                self.line(f"You: {turn.text}")
            if turn.reply is not None and turn.reply.text:
                self.line(f"Assistant: {turn.reply.text.rstrip()}")
                self._end(turn.reply)

    async def path_changed(self, chat: Chat, kept: int) -> None:
        """Another branch is shown; say how it ends, if no answer is about to follow."""
        if chat.turns and chat.turns[-1].reply is None:
            return
        if chat.turns:
            self.line(f"The chat goes on after {len(chat.turns)} message{'s' if len(chat.turns) != 1 else ''}:")
            self._last(chat)
        else:
            self.line("The chat is empty.")

    def recall(self, prompts: list[str]) -> None:
        """What the up key knows."""
        self.prompts[:0] = prompts

    def tell(self, text: str) -> None:
        """A line."""
        self.line(text)

    def flash(self, text: str) -> None:
        """A line too: nothing goes away by itself here."""
        self.line(text if text.endswith((".", "!", "?")) else f"{text}.")

    def complain(self, problem: Problem) -> None:
        """An error in words, or what can be done now, as commands."""
        self.line(f"{'Note' if problem.offers else 'Error'}: {problem.title}.")
        for text in (problem.text, *problem.reasons, problem.hint):
            if text:
                self.line(text)
        for offer in problem.offers:
            if slash := BY_ID[offer.action].slash:
                self.line(f"/{slash}: {offer.words}.")

    def forget(self) -> None:
        """A new chat."""
        self.line("A new chat.")
