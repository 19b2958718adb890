"""The chat's side of the engine: brings it up and up again, sends messages, switches drafters. Knows no widgets.

What happens is told to a `View`. All methods belong to one event loop.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, Protocol

import msgspec

from outrider.app.chat import ChatOptions
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.client import EngineClient, EngineDied, EngineError
from outrider.app.store.diary import Diary
from outrider.app.store.keeper import Keeper
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Settings
from outrider.app.store.replies import chat_of
from outrider.core import protocol
from outrider.core.protocol import DrafterChoice

_DEAF = 3.0  # seconds after a stop without an answer, after which a second stop ends the engine
_RESTARTS = 3  # in a row without a finished reply; then the user decides
_RECALLED = 200  # messages of earlier chats that the prompt knows


class State(Enum):
    """What the engine is doing, in the words of the status line."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    THINKING = "thinking…"
    WRITING = "writing"
    STOPPING = "stopping…"
    DIED = "engine died"
    FAILED = "no model"


BUSY = (State.THINKING, State.WRITING, State.STOPPING)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error for the transcript: what happened, what to do."""

    title: str
    text: str
    hint: str = ""


class View(Protocol):
    """What the session tells about."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else; its errors are the program's."""
        ...

    def status_changed(self) -> None:
        """State, progress, drafter or figures are new."""
        ...

    def turn_sent(self, turn: Turn) -> None:
        """A queued turn goes to the engine."""
        ...

    def reply_grew(self, turn: Turn) -> None:
        """More of a reply has come."""
        ...

    def reply_ended(self, turn: Turn) -> None:
        """A reply is complete, stopped or interrupted; a refused turn has `failed` set."""
        ...

    async def chat_opened(self, chat: Chat, typed: str) -> None:
        """A chat from the store takes the place of the one that was shown; `typed` was never sent."""
        ...

    def recall(self, prompts: list[str]) -> None:
        """What the user wrote in earlier chats, oldest first."""
        ...

    def tell(self, text: str) -> None:
        """A line for the transcript."""
        ...

    def flash(self, text: str) -> None:
        """A line that goes away by itself."""
        ...

    def complain(self, problem: Problem) -> None:
        """An error card for the transcript."""
        ...


class Session:
    """One engine and one chat."""

    def __init__(self, options: ChatOptions, view: View) -> None:
        self.options = options
        self.view = view
        self.client = EngineClient(options.command, on_death=self._on_death, on_notice=self._on_notice, echo=False)
        self.chat = Chat(options.system)
        self.sampling = msgspec.structs.replace(options.sampling)
        self.drafter = options.drafter
        self.think = options.think
        self.state = State.STARTING
        self.progress: protocol.Progress | None = None
        self.loaded: protocol.Loaded | None = None
        self.queue: deque[Turn] = deque()
        self.current: Turn | None = None
        self._request: int | None = None
        self._resting = options.drafter if options.drafter.name != "none" else DrafterChoice()
        self._restarts = 0
        self._stopped_at = 0.0
        self._settled = False  # which chat it is
        self.keeper = Keeper(self._on_trouble, private=options.private)
        self.diary = Diary(self.keeper)

    # ------------------------------------------------------------------------------------------------ the store

    async def begin(self) -> None:
        """Open the store and the chat that was asked for, then bring the engine up."""
        self.keeper.start()
        self.view.spawn(self.keeper.watch())
        if self.options.resume:
            await self.open_chat(self.options.resume, system=self.options.system)
        self._settled = True
        for turn in self.queue:  # typed meanwhile
            self.diary.queued(self.chat, turn, self.settings())
        self.view.spawn(self._recall())
        await self.bring_up()

    async def _recall(self) -> None:
        try:
            self.view.recall(await self.keeper.ask(lambda store: store.prompts(_RECALLED)))
        except StoreError as error:
            self._on_trouble(error)

    async def open_chat(self, name: str, *, system: str | None = None) -> bool:
        """Go on with a chat from the store, `system` in place of its own prompt. False if it cannot be read."""
        try:
            whole = await self.keeper.ask(lambda store: store.load(name))
            waiting = await self.keeper.ask(lambda store: store.waiting(name))
            chat = chat_of(whole)
        except StoreError as error:
            self.view.complain(Problem("The chat could not be opened", error.message, error.hint))
            return False
        if self._settled:
            self.leave_chat()
            self.sampling, self.think = whole.chat.settings.sampling, whole.chat.settings.think
        chat.system = system or chat.system
        chat.waiting = [node for node, _ in waiting]
        self.chat = chat
        self.keeper.do(lambda store: store.hold(name))
        await self.view.chat_opened(chat, "\n\n".join(text for _, text in waiting))
        return True

    def settings(self) -> Settings:
        """What the chat is held with now."""
        return Settings(
            model=self.options.model,
            drafter=self.drafter,
            sampling=msgspec.structs.replace(self.sampling),
            rule=self.options.rule,
            think=self.think,
        )

    def _on_trouble(self, error: StoreError) -> None:
        self.view.complain(Problem("Chats are not saved", error.message, error.hint))

    # ------------------------------------------------------------------------------------------------ the engine

    async def bring_up(self) -> None:
        """Start the engine and load the model; then send what waits."""
        self._enter(State.STARTING)
        try:
            await self.client.start()
            self._enter(State.LOADING)
            request = protocol.Load(id=self.client.number(), model=self.options.model, drafter=self.drafter)
            async with aclosing(self.client.stream(request)) as events:
                async for event in events:
                    self._on_loading(event)
        except EngineError as error:
            self.progress = None
            dead = isinstance(error, EngineDied) or not self.client.alive
            self._enter(State.DIED if dead else State.FAILED)
            title = "The engine did not come up" if dead else "The model could not be loaded"
            self.view.complain(Problem(title, error.message, error.hint))
            return
        self.progress = None
        self._enter(State.READY)
        await self._pump()

    def _on_loading(self, event: protocol.Event) -> None:
        if isinstance(event, protocol.Progress):
            self.progress = event
            self.view.status_changed()
        elif isinstance(event, protocol.Result):
            self.loaded = protocol.as_type(event.data, protocol.Loaded)
        elif isinstance(event, protocol.Notice):
            self.view.tell(event.text)

    def _on_death(self, why: str) -> None:
        loading = self.state in (State.STARTING, State.LOADING)
        self._enter(State.DIED)
        self._request = None
        if loading:
            return  # `bring_up` has it
        self._restarts += 1
        again = self._restarts <= _RESTARTS
        kept = "Every word so far is kept. "
        hint = kept + ("It starts again by itself; just go on." if again else "Send a message to start it again.")
        self.view.complain(Problem("The engine stopped working", why, hint))
        if again:
            self.view.spawn(self.bring_up())

    def _on_notice(self, notice: protocol.Notice) -> None:
        self.view.tell(notice.text)

    def _enter(self, state: State) -> None:
        self.state = state
        self.view.status_changed()

    async def close(self) -> None:
        """Save what is left and end the engine process."""
        await self.keeper.close()
        await self.client.close(patience=1.0)

    # ------------------------------------------------------------------------------------------------ turns

    def send(self, text: str) -> Turn:
        """Queue a message; it goes out as soon as the engine is free."""
        turn = Turn(text)
        self.queue.append(turn)
        if self._settled:
            self.diary.queued(self.chat, turn, self.settings())
        if self.state is State.READY:
            self.view.spawn(self._pump())
        elif self.state in (State.DIED, State.FAILED):
            self._restarts = 0
            self.view.spawn(self.bring_up())
        return turn

    def recall(self) -> Turn | None:
        """Take the newest waiting message back."""
        if not self.queue:
            return None
        turn = self.queue.pop()
        if turn.node:
            self.diary.recalled(self.chat, turn)
        return turn

    def stop(self) -> bool:
        """Stop the running reply; it keeps its text. False if none runs."""
        if self._request is None or self.state not in BUSY:
            return False
        if self.state is not State.STOPPING:
            with contextlib.suppress(EngineError):
                self.client.send(protocol.Cancel(id=self.client.number(), request=self._request))
            self._stopped_at = monotonic()
            self._enter(State.STOPPING)
        elif monotonic() - self._stopped_at > _DEAF:
            self.client.kill()
        return True

    def new_chat(self) -> None:
        """Forget the turns, keep system prompt, drafter and settings."""
        self.leave_chat()
        self.chat = Chat(self.chat.system)

    def leave_chat(self) -> None:
        """Stop its reply and take back what waits."""
        while self.recall():
            pass
        self.stop()

    async def _pump(self) -> None:
        while self.queue and self.state is State.READY:
            await self._answer(self.queue.popleft())

    async def _answer(self, turn: Turn) -> None:
        chat = self.chat
        chat.turns.append(turn)
        self.current = turn
        turn.reply = Reply()
        self.diary.sent(chat, turn, self.settings())
        self._enter(State.THINKING)
        self.view.turn_sent(turn)
        request = protocol.Generate(
            id=self.client.number(),
            model=self.options.model,
            messages=self.chat.messages(),
            sampling=self.sampling,
            drafter=self.drafter,
            rule=self.options.rule,
            think=self.think,
            lenient=True,
        )
        self._request = request.id
        try:
            async with aclosing(self.client.stream(request)) as events:
                async for event in events:
                    self._on_answer(turn, turn.reply, event)
        except EngineDied:
            turn.reply.interrupt()
            self.diary.interrupted(chat, turn)
        except EngineError as error:
            turn.reply.interrupt()
            turn.failed = not turn.reply.begun
            self.diary.interrupted(chat, turn)
            self.view.complain(
                Problem("The engine refused" if error.usage else "That failed", error.message, error.hint)
            )
        self._request = self.current = self.progress = None
        if self.state in BUSY:
            self._enter(State.READY)
        if turn.reply.end in (End.WHOLE, End.LENGTH):
            self._restarts = 0
        self.view.reply_ended(turn)

    def _on_answer(self, turn: Turn, reply: Reply, event: protocol.Event) -> None:
        if isinstance(event, protocol.Step):
            reply.take(event)
            self.diary.grew(turn, event)
            if self.state is State.THINKING:
                self.progress = None
                if not (event.tokens and event.tokens[-1].thinking):
                    self._enter(State.WRITING)
            self.view.reply_grew(turn)
        elif isinstance(event, protocol.Progress):
            self.progress = event
            self.view.status_changed()
        elif isinstance(event, protocol.Done):
            reply.finish(event.finish, event.report)
            self.diary.finished(turn, event.finish, event.report)
        elif isinstance(event, protocol.Notice):
            self.view.tell(event.text)

    # ------------------------------------------------------------------------------------------------ drafters

    def drafters(self) -> list[str]:
        """What F2 goes through: the engine's own choice, none, and every drafter that can be used now."""
        rows = self.loaded.drafters if self.loaded else []
        names = ["auto", "none", *(row.name for row in rows if row.usable)]
        return names if self.drafter.name in names else [*names, self.drafter.name]

    def cycle_drafter(self, by: int) -> None:
        """The next drafter, or one `by` places further."""
        names = self.drafters()
        self.choose_drafter(names[(names.index(self.drafter.name) + by) % len(names)])

    def toggle_drafting(self) -> None:
        """Off, or back to the drafter that was on."""
        if self.drafter.name == "none":
            self._switch_to(self._resting)
        else:
            self._switch_to(DrafterChoice(name="none"))

    def choose_drafter(self, name: str) -> bool:
        """Switch to a drafter by name, also in mid-reply. False if there is none of that name."""
        known = {row.name for row in self.loaded.drafters} if self.loaded else None
        if known is not None and name not in ("auto", "none") and name not in known:
            return False
        asked = self.options.drafter
        self._switch_to(asked if name == asked.name else replace_name(asked, name))
        return True

    def _switch_to(self, choice: DrafterChoice) -> None:
        before, self.drafter = self.drafter, choice
        if choice.name != "none":
            self._resting = choice
        self.view.flash(self._words_for(choice))
        self.view.status_changed()
        if self.loaded is not None and self.client.alive:
            self.view.spawn(self._tell_engine(choice, before))

    def _words_for(self, choice: DrafterChoice) -> str:
        if choice.name == "none":
            return "Drafting off: one token a pass"
        if choice.name == "auto":
            return "Drafter: auto, whichever is fastest here"
        rows = self.loaded.drafters if self.loaded else []
        reason = next((row.reason for row in rows if row.name == choice.name), "")
        return f"Drafter: {choice.name}" + (f" · {reason}" if reason else "")

    async def _tell_engine(self, choice: DrafterChoice, before: DrafterChoice) -> None:
        try:
            request = protocol.SetDrafter(id=self.client.number(), drafter=choice)
            await self.client.ask(request, self._on_loading)
        except EngineDied:
            return
        except EngineError as error:
            if self.drafter == choice:
                self.drafter = before
                self.view.status_changed()
            self.view.tell(" ".join(filter(None, (error.message, error.hint))))


def replace_name(asked: DrafterChoice, name: str) -> DrafterChoice:
    """Another drafter with the pinned draft length, but not with weights that belong to the one that was asked for."""
    return DrafterChoice(name=name, tokens=asked.tokens)
