"""The chat behind the lines: takes what was typed, runs commands, waits until all is said."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from time import monotonic
from typing import Any, TextIO, cast
from weakref import WeakKeyDictionary

from outrider.app.chat import ChatOptions
from outrider.app.chat.actions import BY_SLASH, parse_slash
from outrider.app.chat.choices import Choices
from outrider.app.chat.compare.runner import Asker
from outrider.app.chat.follow import Follower
from outrider.app.chat.keymap import Keymap
from outrider.app.chat.models.room import Models
from outrider.app.chat.session import Session, State
from outrider.app.chat.settings import Board
from outrider.app.chat.shelf import Shelf
from outrider.app.chat.stats.tally import Tally
from outrider.app.chat.talk import Reply, Turn
from outrider.app.config.fields import nearest
from outrider.app.linear.commands import HERE
from outrider.app.linear.view import LinearView
from outrider.app.store.records import Attachment
from outrider.core.base import protocol

_TWICE = 2.0  # seconds between two presses of ctrl+c that quit


class _Follower(Follower):
    """Follows the settings; how a screen looks is nothing here."""

    def _look(self, screen: Any, name: str, value: Any) -> None:
        return


class _Nowhere:
    """There is no transcript: what was said was said."""

    def introduce(self, title: str) -> None:
        return


class Desk:
    """Stands for the chat screen: the actions of the registry that make sense in lines work on it."""

    def __init__(self, options: ChatOptions, out: TextIO) -> None:
        self.left = False
        self.code = 0
        self.stage = LinearView(out)
        self.follower = _Follower(options.asked)
        self.session = self.stage.session = Session(options, self.stage)
        screen = cast(Any, self)  # the rooms ask for no more of it than is here
        self.shelf = Shelf(screen)
        self.choices = Choices(screen, self.follower)
        self.board = Board(screen, self.follower)
        self.models = Models(screen, self.follower)
        self.transcript = _Nowhere()
        self.editing: Turn | None = None  # whose place the next message takes
        self.attached: list[Attachment] = []  # what goes with it
        self.tallies: WeakKeyDictionary[Reply, Tally] = WeakKeyDictionary()
        self.asker: Asker | None = None  # of a check that runs
        self.session.watchers.append(self._hear)
        self._pressed = -_TWICE

    @property
    def prompts(self) -> list[str]:
        """Earlier messages, oldest first."""
        return self.stage.prompts

    @property
    def keymap(self) -> Keymap:
        """The keys that would hold on a screen."""
        return self.follower.keymap

    def take_typed(self) -> str:
        """What was never sent and is typed again; once."""
        typed, self.stage.typed = self.stage.typed, ""
        return typed

    # ------------------------------------------------------------------------------------------------ turns

    async def begin(self) -> None:
        """Open the chat and load the model, and say so."""
        self.stage.line(
            "Outrider, a chat in plain lines. /help lists the commands; ctrl+c stops a reply, twice it quits."
        )
        if (card := self.follower.card()) is not None:
            self.stage.complain(card)
        with self._interrupting():
            self.stage.spawn(self.session.begin())
            await self.stage.settled()

    async def take(self, text: str) -> None:
        """Answer a message or run a command, and wait until all of it is said."""
        self.follower.check(cast(Any, self))
        with self._interrupting():
            command = parse_slash(text)
            if command is None:
                self.stage.prompts.append(text)
                self._send(text[1:] if text.startswith("//") else text)
            else:
                self._run(*command)
            await self.stage.settled()
            if self.session.queue and self.session.state not in (State.READY, State.LOADING):
                self.stage.typed = "\n\n".join(turn.text for turn in self._taken_back())

    def _send(self, text: str) -> None:
        editing, self.editing = self.editing, None
        attached, self.attached = self.attached, []
        if editing is not None:
            self.session.branches.edit(editing, text, attached or editing.attachments)
        else:
            self.session.send(text, attached)

    def _hear(self, turn: Turn, event: protocol.Event) -> None:
        if isinstance(event, protocol.Step) and turn.reply is not None:
            self.tallies.setdefault(turn.reply, Tally()).take(event)

    def _taken_back(self) -> list[Any]:
        """What could not be sent."""
        found = []
        while (turn := self.session.recall()) is not None:
            found.insert(0, turn)
        return found

    def _run(self, name: str, argument: str) -> None:
        action = BY_SLASH.get(name)
        if action is None:
            near = nearest(name, [one.slash for one in HERE_ACTIONS])
            self.stage.tell(f"There is no command /{name}. {near or '/help lists them.'}")
            return
        if action.id not in HERE:
            self.stage.tell(f"/{name} works only on the screen.")
            return
        own = HERE[action.id]
        if own is not None:
            own(self, argument)
        elif reason := action.unavailable(cast(Any, self)):
            self.stage.tell(f"{action.title}: {reason}.")
        elif argument and not action.argument:
            self.stage.tell(f"/{name} takes nothing after it.")
        else:
            action.run(cast(Any, self), argument)

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        """ctrl+c goes to the reply meanwhile."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not on every system, nor in every thread
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
        try:
            yield
        finally:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    # ------------------------------------------------------------------------------------------------ what actions ask for

    def interrupt(self) -> None:
        """Stop the reply; twice quits."""
        now = monotonic()
        if now - self._pressed < _TWICE:
            self.quit()
            self.session.client.kill()
        self._pressed = now
        if self.asker is not None:
            self.asker.stop()
        self.session.stop()

    def stop(self) -> None:
        """Nothing runs while one can type."""
        self.stage.tell("No reply is running. ctrl+c stops one.")

    def new_chat(self) -> None:
        """Begin again."""
        self.session.new_chat()
        self.stage.forget()

    def use_keys(self, keymap: Keymap) -> None:
        """Keys are the screen's."""

    def quit(self) -> None:
        """Leave."""
        self.left = True

    async def close(self) -> None:
        """Save what is left and end the engine."""
        await self.session.close()
        if parting := self.session.keeper.parting:
            self.stage.line(parting)
        self.stage.line("Goodbye.")


HERE_ACTIONS = [action for action in BY_SLASH.values() if action.id in HERE]
