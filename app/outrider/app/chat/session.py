"""The chat's side of the engine: brings it up and up again, sends messages, switches drafters. Knows no widgets.

What happens is told to a `View`. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

import msgspec

from outrider.app.chat import ChatOptions, context
from outrider.app.chat.branches import Branches
from outrider.app.chat.problem import Problem as Problem
from outrider.app.chat.state import BUSY as BUSY
from outrider.app.chat.state import State as State
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.chat.view import View as View
from outrider.app.client import EngineClient, EngineDied, EngineError
from outrider.app.store.diary import Diary
from outrider.app.store.keeper import Keeper
from outrider.app.store.problems import Repaired, StoreError
from outrider.app.store.records import Attachment, Node, Settings, copied
from outrider.app.store.replies import chat_of
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterChoice, ModelChoice

_DEAF = 3.0  # seconds after a stop without an answer, after which a second stop ends the engine
_RESTARTS = 3  # in a row without a finished reply; then the user decides
_RECALLED = 200  # messages of earlier chats that the prompt knows


class Session:
    """One engine and one chat."""

    def __init__(self, options: ChatOptions, view: View) -> None:
        self.options = options
        self.view = view
        make = EngineClient
        self.client = make(options.command, on_death=self._on_death, on_notice=self._on_notice, echo=False)
        self.training = make(options.command, echo=False)
        """The engine process of a training, which would keep the chat's own busy for long."""
        self.closing = False
        self.chat = Chat(options.system)
        self.sampling = msgspec.structs.replace(options.sampling)
        self.drafter = options.drafter
        self.think = options.think
        self.state = State.STARTING
        self.progress: protocol.Progress | None = None
        self.loaded: protocol.Loaded | None = None
        self.queue: deque[Turn] = deque()
        self.errands: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()  # go before what is queued
        self.current: Turn | None = None
        self._request: int | None = None
        self._resting = options.drafter if options.drafter.name != "none" else DrafterChoice()
        self._restarts = 0
        self._stopped_at = 0.0
        self._settled = False  # which chat it is
        self.opened = asyncio.Event()  # the same, to be waited for
        self._stood: Node | None = None  # the reply that goes on, as it was
        self.watchers: list[Callable[[Turn, protocol.Event], None]] = []  # hear all that comes of a reply
        self.details: set[str] = set()  # who asks for the details of each token
        self.wants_chances = False  # of tokens, also where they cost something
        self.keeper = Keeper(self._on_trouble, private=options.private)
        self.diary = Diary(self.keeper)
        self.branches = Branches(self)

    # ------------------------------------------------------------------------------------------------ the store

    async def begin(self) -> None:
        """Open the store and the chat that was asked for, then bring the engine up."""
        self.keeper.start()
        self.view.spawn(self.keeper.watch())
        if self.options.resume:
            await self.open_chat(self.options.resume, system=self.options.system)
        if self.options.notice:
            self.view.tell(self.options.notice)
        self._settled = True
        self.opened.set()
        for turn in self.queue:  # typed meanwhile
            self.diary.queued(self.chat, turn, self.settings())
        self.view.spawn(self._recall())
        await self.bring_up()

    async def _recall(self) -> None:
        with contextlib.suppress(StoreError):  # the keeper has told that nothing can be read
            self.view.recall(await self.keeper.ask(lambda store: store.prompts(_RECALLED)))

    async def open_chat(self, name: str, *, system: str | None = None) -> bool:
        """Go on with a chat from the store, `system` in place of its own prompt. False if it cannot be read.

        Of one that is open in another window it opens a copy, and says so: two windows never write into the same chat.
        """
        told = ""
        try:
            if not await self.keeper.ask(lambda store: store.claim(name)):
                name, told = await self._copy(name)
                if not name:
                    self.view.tell(told)
                    return False
            whole = await self.keeper.ask(lambda store: store.load(name))
            waiting = await self.keeper.ask(lambda store: store.waiting(name))
            files = await self.keeper.ask(lambda store: [one for node, _ in waiting for one in store.attached(node)])

            chat = chat_of(whole)
        except StoreError as error:
            self.view.complain(Problem("The chat could not be opened", error.message, error.hint))
            return False
        if self._settled:
            self.leave_chat()
            self.sampling, self.think = whole.chat.settings.sampling, whole.chat.settings.think
        chat.system = system or chat.system
        chat.waiting, chat.unsent = [node for node, _ in waiting], files
        self.chat = chat
        await self.view.chat_opened(chat, "\n\n".join(text for _, text in waiting))
        if told:
            self.view.tell(told)
        self._tell_room()
        return True

    async def _copy(self, name: str) -> tuple[str, str]:
        """A copy of a chat that is open elsewhere, which is then this window's, and what to say of it."""
        title = " ".join((await self.keeper.ask(lambda store: store.load(name))).chat.title.split())
        made = await self.keeper.ask(lambda store: store.copy(name))
        held = made or self.chat.id
        await self.keeper.ask(lambda store: store.hold(held))
        return made, copied(
            title
        ) if made else f"“{title}” is open in another window, and nothing in it is finished yet."

    def settings(self) -> Settings:
        """What the chat is held with now."""
        return Settings(
            model=self.options.model,
            drafter=self.drafter,
            sampling=msgspec.structs.replace(self.sampling),
            rule=self.options.rule,
            think=self.think,
            outrider=self.client.hello.outrider if self.client.hello else "",
        )

    def _on_trouble(self, error: StoreError) -> None:
        title = "The chats were repaired" if isinstance(error, Repaired) else "Chats are not saved"
        self.view.complain(Problem(title, error.message, error.hint))

    # ------------------------------------------------------------------------------------------------ the engine

    async def bring_up(self) -> None:
        """Start the engine and load the model; then send what waits."""
        self._enter(State.STARTING)
        try:
            await self.client.start()
            self._enter(State.LOADING)
            await self._load()
        except EngineError as error:
            self._failed(error)
            dead = self.state is State.DIED
            title = "The engine did not come up" if dead else "The model could not be loaded"
            told = Problem.of(title, error, "" if dead else "/models shows which others there are.")
            self.view.complain(dataclasses.replace(told, restart=dead))
            return
        self.progress = None
        self._enter(State.READY)
        self._tell_room()
        await self._pump()

    async def _load(self) -> None:
        request = protocol.Load(id=self.client.number(), model=self.options.model, drafter=self.drafter)
        async with aclosing(self.client.stream(request)) as events:
            async for event in events:
                self._on_loading(event)

    def _failed(self, error: EngineError) -> None:
        self.progress = None
        self._enter(State.DIED if isinstance(error, EngineDied) or not self.client.alive else State.FAILED)

    async def change_model(self, model: ModelChoice, drafter: DrafterChoice) -> EngineError | None:
        """Load another model for this chat. If it cannot be, the one before is loaded again and stays; then why."""
        before = self.options, self.drafter, self.loaded
        self.options, self.drafter = dataclasses.replace(self.options, model=model, drafter=drafter), drafter
        self._enter(State.LOADING)
        try:
            await self.client.start()
            await self._load()
        except EngineError as error:
            self._failed(error)
            self.options, self.drafter, self.loaded = before
            if self.loaded is not None:
                await self.bring_up()
            return error
        self.progress = None
        self._enter(State.READY)
        await self._pump()
        return None

    async def restart(self) -> None:
        """End the engine process, if there is one, and bring a new one up."""
        self._restarts = 0
        self._enter(State.STARTING)
        await self.client.close(patience=1.0)
        await self.bring_up()

    async def ask(
        self, request: Callable[[int], protocol.Request], on_event: Callable[[protocol.Event], None] | None = None
    ) -> Any:
        """Have the engine answer a question, or download, while a reply goes on; one that is gone is started again.

        `request` makes it of a number. `Result.data` comes back. Cancelling this stops it. Raises EngineError.
        """
        if self.closing:
            raise EngineError("The chat is being closed.")
        await self.client.start()
        return await self.client.ask(request(self.client.number()), on_event)

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
        self.view.complain(Problem("The engine stopped working", why, hint, restart=not again))
        if again:
            self.view.spawn(self.bring_up())

    def _on_notice(self, notice: protocol.Notice) -> None:
        self.view.tell(notice.text)

    def _enter(self, state: State) -> None:
        self.state = state
        self.view.status_changed()

    async def close(self) -> None:
        """Save what is left and end the engine processes."""
        self.closing = True
        await self.keeper.close()
        await self.training.close(patience=1.0)
        await self.client.close(patience=1.0)

    # ------------------------------------------------------------------------------------------------ turns

    def send(self, text: str, attachments: Sequence[Attachment] = (), place: int | None = None) -> Turn:
        """Queue a message, at `place` in the queue or behind all; it goes out as soon as the engine is free."""
        turn = Turn(text, attachments=tuple(attachments))
        self.queue.insert(len(self.queue) if place is None else place, turn)
        if self._settled:
            self.diary.queued(self.chat, turn, self.settings())
        self.see_to_it()
        return turn

    def see_to_it(self) -> None:
        """Do what waits, if the engine is free; if it is gone it is brought up first."""
        if self.state is State.READY:
            self.view.spawn(self._pump())
        elif self.state in (State.DIED, State.FAILED):
            self._restarts = 0
            self.view.spawn(self.bring_up())

    def recall(self, turn: Turn | None = None) -> Turn | None:
        """Take a waiting message back, the newest if none is named; None if it does not wait."""
        turn = turn or (self.queue[-1] if self.queue else None)
        if turn is None or turn not in self.queue:
            return None
        self.queue.remove(turn)
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
        if self.chat.id:
            self.keeper.do(lambda store: store.hold(""))  # others may have it
        self.chat = Chat(self.chat.system)

    def leave_chat(self) -> None:
        """Stop its reply and take back what waits."""
        self.errands.clear()
        while self.recall():
            pass
        self.stop()

    async def _pump(self) -> None:
        while (self.errands or self.queue) and self.state is State.READY:
            await (self.errands.popleft()() if self.errands else self.answer(self.queue.popleft()))

    def claim(self) -> None:
        """Take the engine, so that nobody else begins meanwhile; an answer follows."""
        self._enter(State.THINKING)

    def still(self, chat: Chat) -> bool:
        """Whether this chat is open; if not, the engine that was taken for it is free again."""
        if self.chat is not chat and self.state is State.THINKING and self._request is None:
            self._enter(State.READY)
            self.see_to_it()
        return self.chat is chat

    async def answer(self, turn: Turn, sampling: protocol.Sampling | None = None) -> None:
        """Have the engine answer a turn, which is the last one of the chat from now on."""
        chat = self.chat
        if turn not in chat.turns:
            chat.turns.append(turn)
        turn.reply = Reply()
        turn.reply.settings = self.settings()
        self.diary.sent(chat, turn, self.settings())
        chat.plant(turn)
        await self._hear(chat, turn, turn.reply, self._asking(chat.messages(), sampling or self.sampling))

    async def go_on(self, turn: Turn, reply: Reply) -> None:
        """Have the engine go on with the last reply, which was cut, as it would have if it had not been."""
        seed = reply.report.seed if reply.report is not None else self.sampling.seed
        sampling = msgspec.structs.replace(self.sampling, seed=seed)
        request = self._asking(self.chat.messages(going_on=True), sampling)
        request.continues = list(reply.ids)
        self._stood = self.diary.row(turn, self.settings())
        reply.go_on()
        await self._hear(self.chat, turn, reply, request)

    def _asking(self, messages: list[protocol.Message], sampling: protocol.Sampling) -> protocol.Generate:
        return protocol.Generate(
            id=self.client.number(),
            model=self.options.model,
            messages=messages,
            sampling=sampling,
            drafter=self.drafter,
            rule=self.options.rule,
            think=self.think,
            detail=bool(self.details),
            chances=self.wants_chances or (self.loaded is not None and self.loaded.device == "cpu"),
            lenient=True,
        )

    async def _hear(self, chat: Chat, turn: Turn, reply: Reply, request: protocol.Generate) -> None:
        self.current, self._request = turn, request.id
        self._enter(State.THINKING)
        self.view.turn_sent(turn)
        try:
            async with aclosing(self.client.stream(request)) as events:
                async for event in events:
                    self._on_answer(chat, turn, reply, event)
        except EngineError as error:
            self._broke_off(chat, turn, reply, error)
        self._request = self.current = self.progress = None
        if self.state in BUSY:
            self._enter(State.READY)
        if reply.end in (End.WHOLE, End.LENGTH):
            self._restarts = 0
        self.view.reply_ended(turn)
        if chat is self.chat and not turn.failed:
            self._tell_room(reply)

    def _tell_room(self, reply: Reply | None = None) -> None:
        """How full the context is after a reply, else after the last one of a chat that was opened."""
        reply = reply if reply is not None or self.chat.warned else self.chat.last_reply()
        told = context.ended(self, reply) if reply is not None else ""
        if isinstance(told, Problem):
            self.view.complain(told)
        elif told:
            self.view.tell(told)

    def _broke_off(self, chat: Chat, turn: Turn, reply: Reply, error: EngineError) -> None:
        nothing_new = reply.resuming
        reply.interrupt()
        died = isinstance(error, EngineDied)
        turn.failed = not died and not reply.begun
        if turn.failed:
            chat.uproot(turn)
        if not nothing_new:
            self.diary.interrupted(chat, turn)
        if not died:
            full = context.refused(self, turn, error)
            self.view.complain(full or Problem.of("The engine refused" if error.usage else "That failed", error))

    def _on_step(self, chat: Chat, turn: Turn, reply: Reply, step: protocol.Step) -> None:
        if reply.resuming and self._stood is not None:
            self.diary.goes_on(chat, self._stood, self.settings())
        reply.take(step)
        self.diary.grew(turn, step)
        if step.stands is not None:  # what was shown is not quite what stands
            self.view.turn_sent(turn)
        if self.state is State.THINKING:
            self.progress = None
            if not (step.tokens and step.tokens[-1].thinking):
                self._enter(State.WRITING)
        self.view.reply_grew(turn)

    def _on_answer(self, chat: Chat, turn: Turn, reply: Reply, event: protocol.Event) -> None:
        for watch in self.watchers:
            watch(turn, event)
        if isinstance(event, protocol.Step):
            self._on_step(chat, turn, reply, event)
        elif isinstance(event, protocol.Progress):
            self.progress = event
            self.view.status_changed()
        elif isinstance(event, protocol.Done):
            if not reply.resuming:
                self.diary.finished(turn, event.finish, event.report)
            reply.finish(event.finish, event.report)
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
            self.ride_with(self._resting)
        else:
            self.ride_with(DrafterChoice(name="none"))

    def choose_drafter(self, name: str) -> bool:
        """Switch to a drafter by name, also in mid-reply. False if there is none of that name."""
        known = {row.name for row in self.loaded.drafters} if self.loaded else None
        if known is not None and name not in ("auto", "none") and name not in known:
            return False
        asked = self.options.drafter
        self.ride_with(asked if name == asked.name else replace_name(asked, name))
        return True

    def ride_with(self, choice: DrafterChoice) -> None:
        """Switch to a drafter, with weights and a length of its own where it has them; also in mid-reply."""
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
            self.view.complain(Problem.of(f"{choice.name} cannot draft here", error))


def replace_name(asked: DrafterChoice, name: str) -> DrafterChoice:
    """Another drafter with the pinned draft length, but not with weights that belong to the one that was asked for."""
    return DrafterChoice(name=name, tokens=asked.tokens)
