"""What the chat does with models: lists them, brings them, deletes them, and goes on with another one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outrider.app import render
from outrider.app.chat.context import why_not_larger
from outrider.app.chat.follow import Follower
from outrider.app.chat.meter import stored
from outrider.app.chat.problem import Problem
from outrider.app.chat.session import BUSY, State
from outrider.app.chat.status import Chip
from outrider.app.client import EngineError
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterChoice, DrafterRow, ModelChoice, ModelRow

if TYPE_CHECKING:
    from outrider.app.chat.models.pairs import Pair
    from outrider.app.chat.models.pulls import Pull, Pulls
    from outrider.app.chat.models.rows import Room
    from outrider.app.chat.screen import ChatScreen

_LOOK = 0.25  # seconds between two looks whether the chat is free


class Models:
    """Asks a second engine process, so that the chat goes on meanwhile."""

    def __init__(self, screen: ChatScreen, follower: Follower) -> None:
        self._screen, self._follower = screen, follower
        self.rows: list[ModelRow] = []
        """The list as it was last told."""
        self._chip = ""
        screen.stage.chips.append(self.chips)

    @cached_property
    def pulls(self) -> Pulls:
        """The downloads."""
        from outrider.app.chat.models.pulls import Pulls

        return Pulls(
            lambda request, take: self._screen.session.beside.downloads.ask(request, take),
            lambda work: self._screen.stage.spawn(work),
            self._moved,
            self._over,
        )

    def show(self) -> None:
        """All models in a list."""
        from outrider.app.chat.models.screen import ModelsScreen

        self._screen.app.push_screen(ModelsScreen(self))

    # ------------------------------------------------------------------------------------------------ what there is

    @property
    def loaded(self) -> str:
        """The name of the chat's own model, empty if none is loaded."""
        session = self._screen.session
        return session.options.model.model if session.loaded is not None else ""

    @property
    def memory(self) -> Room:
        """What another model would have: the loaded one is given up first."""
        from outrider.app.chat.models.rows import Room

        session = self._screen.session
        return Room(session.loaded.nbytes if session.loaded is not None and session.client.alive else 0)

    @property
    def choice(self) -> ModelChoice:
        """How another model would be loaded, as far as that does not hang on the model."""
        return msgspec.structs.replace(self._screen.session.options.model, model="starter", context=None, exact=None)

    def uses(self, row: ModelRow) -> bool:
        """Whether this is the model that the chat was told to use."""
        return self._screen.session.options.model.model in (row.name, row.path)

    def known(self) -> list[ModelRow]:
        """The list as it was last told; empty if the chat's own model has come since, so that it says nothing wrong."""
        stale = self.loaded and any(self.uses(row) and row.path is None for row in self.rows)
        return [] if stale else self.rows

    async def look(self, *, here: bool = False) -> list[ModelRow]:
        """Every model, here or not, with its memory plan; the old list where the engine fails.

        `here`: those alone that are, without plans, which takes a fraction of the time.
        """
        try:
            told = await self._screen.session.beside.questions.ask(
                lambda number: protocol.Models(id=number, everything=not here, choice=self.choice)
            )
        except EngineError as error:
            self._complain("The models could not be listed", error)
            return self.rows
        rows = protocol.as_type(told, list[ModelRow])
        if not here:
            self.rows = rows
        return rows

    async def pairs(self, row: ModelRow) -> list[Pair]:
        """Which drafters go with a model that is here."""
        from outrider.app.chat.models.pairs import Pair, pairs

        name = row.path or row.name
        try:
            told = await self._screen.session.beside.questions.ask(
                lambda number: protocol.Drafters(id=number, model=ModelChoice(model=name))
            )
        except EngineError as error:
            return [Pair("drafters", False, error.message, error.hint)]
        return pairs(protocol.as_type(told, list[DrafterRow]), row.plan, self.memory)

    # ------------------------------------------------------------------------------------------------ another model

    def busy(self) -> str:
        """Why no other model can be loaded now."""
        state = self._screen.session.state
        if state in BUSY:
            return "a reply is running; stop it first"
        return "the engine is busy loading" if state in (State.STARTING, State.LOADING) else ""

    def refuses(self, row: ModelRow) -> str:
        """Why the chat cannot go on with a model, empty if it can, or can once it is here."""
        if row.name == self.loaded:
            return f"This chat uses {row.name} already."
        if row.unsupported:
            return f"{row.name}: {row.unsupported}."
        if row.problem:
            return f"{row.name}: {row.problem}"
        return f"Not now: {self.busy()}." if row.path and self.busy() else ""

    def use(self, row: ModelRow, drafter: DrafterChoice | None = None) -> None:
        """Chat with a model; one that is not here is brought first."""
        if row.path:
            self._screen.stage.spawn(self._switch(row.name, drafter))
            return
        self.pulls.add(row.name, row.nbytes, lambda _: self._screen.stage.spawn(self._switch(row.name, drafter)))
        size = f" ({render.size(row.nbytes)})" if row.nbytes else ""
        self._screen.stage.tell(f"{row.name}{size} is on its way; this chat goes on with it once it is here.")

    def choose(self, name: str) -> None:
        """Go on with the model of that name; without one show all."""
        if name:
            self._screen.stage.spawn(self._choose(name))
        else:
            self.show()

    def why_not_enlarge(self) -> str:
        """Why the context cannot be made larger now."""
        return self.busy() or why_not_larger(self._screen.session)

    def enlarge(self) -> None:
        """Load the model again with a larger context."""
        self._screen.stage.spawn(self._enlarge())

    async def _enlarge(self) -> None:
        session, stage = self._screen.session, self._screen.stage
        before = session.loaded.context if session.loaded is not None else 0
        model = msgspec.structs.replace(session.options.model, context=None)
        error = await session.change_model(model, session.drafter)
        now = session.loaded.context if session.loaded is not None else 0
        if error is not None:
            stage.complain(Problem.of("The context could not be made larger", error))
        elif now > before:
            session.chat.warned = 0.0
            if (
                prompt := getattr(self._screen, "prompt", None)
            ) is not None:  # in lines there is none, nor are there cards
                stage.settle()
                prompt.focus()
            stage.tell(f"The context has {now:,} tokens now; it had {before:,}.")
        else:
            stage.tell(f"The context has {now:,} tokens; the model and the memory allow no more.")

    async def _choose(self, name: str) -> None:
        row = next((row for row in self.rows if row.name == name and row.path), None)
        if row is None and Path(name).expanduser().exists():
            row = ModelRow(name=name, path=name)
        if row is None:
            self._screen.stage.flash(f"Looking for {name} …")
            try:
                told = await self._screen.session.beside.questions.ask(
                    lambda number: protocol.Models(id=number, name=name, choice=self.choice)
                )
            except EngineError as error:
                self._complain(f"{name} cannot be used", error)
                return
            row = protocol.as_type(told, ModelRow)
        reason = self.refuses(row)
        if not reason:
            self.use(row)
        elif row.name == self.loaded:
            self._screen.stage.flash(reason)
        else:
            self._screen.stage.complain(Problem(f"{name} cannot be used", reason, "/models lists what can be."))

    def _free(self) -> bool:
        """Whether nobody needs the model that is loaded: no reply, no test, no comparison."""
        if self.busy():
            return False
        app = getattr(self._screen, "app", None)
        if app is None:  # in lines there are no screens
            return True
        from outrider.app.chat.models.screen import ModelsScreen

        return app.screen is self._screen or isinstance(app.screen, ModelsScreen)

    async def _switch(self, name: str, drafter: DrafterChoice | None = None) -> None:
        session, stage = self._screen.session, self._screen.stage
        if not self._free():
            stage.tell(f"{name} is loaded as soon as the engine is free.")
        while not self._free():
            await asyncio.sleep(_LOOK)
        before = self.loaded
        asked = dataclasses.replace(self._follower.asked, flags={**self._follower.asked.flags, "engine.model": name})
        wanted = drafter or DrafterChoice(name=session.drafter.name, tokens=session.drafter.tokens)
        error = await session.change_model(asked.settle().model(), wanted)
        if error is not None:
            stays = f"The chat goes on with {before}." if before and session.loaded is not None else ""
            stage.complain(Problem.of(f"{name} could not be loaded", error, stays))
            return
        self._arrived(name)

    def _arrived(self, name: str) -> None:
        """Everything that goes with the model follows."""
        session, stage = self._screen.session, self._screen.stage
        values = self._follower.settings.values
        told = self._follower.loaded(self._screen, name)
        changed = {path for path, value in self._follower.settings.values.items() if values[path] != value}
        if changed - {"engine.model"}:
            stage.tell(told)
        loaded = session.loaded
        if loaded is None:
            return
        self._screen.transcript.introduce(loaded.title)
        usable = session.drafters()
        rows = {row.name: row for row in loaded.drafters}
        mine = rows.get(session.drafter.name)
        if mine is not None and not mine.usable and session.drafter.weights is None:
            stage.tell(f"{mine.name} does not go with this model ({mine.reason or mine.fit}): the drafter is auto.")
            session.ride_with(DrafterChoice(tokens=session.drafter.tokens))
        count = len([one for one in usable if one not in ("auto", "none")])
        chat = "" if loaded.chat else " It has no chat template, so it cannot answer messages."
        stage.tell(
            f"This chat goes on with {loaded.title}: {render.size(loaded.nbytes)} {stored(loaded)} on {loaded.device}, "
            f"{count} drafter{'s' if count != 1 else ''} ready.{chat}"
        )

    # ------------------------------------------------------------------------------------------------ delete

    def keeps(self, row: ModelRow) -> str:
        """Why a model cannot be deleted, empty if it can."""
        if not row.name or (self.loaded and self.uses(row)):
            return f"{row.name} is in use. Choose another model first."
        if any(pull.name == row.name for pull in self.pulls.open):
            return f"{row.name} is on its way. ctrl+x stops that."
        if row.path is None and not row.partial:
            return f"{row.name} is not here, so nothing is to be deleted."
        if row.path and row.source != "library":
            return f"{row.name} lies with {row.source or 'you'}, not in the library, so it is not deleted here."
        return ""

    async def remove(self, row: ModelRow) -> str:
        """Delete it; what was done, in a sentence."""
        try:
            told = await self._screen.session.beside.questions.ask(
                lambda number: protocol.Remove(id=number, name=row.name)
            )
        except EngineError as error:
            self._complain(f"{row.name} was not deleted", error)
            return error.message
        gone = protocol.as_type(told, ModelRow)
        return f"Removed {gone.name}, {render.size(gone.partial or gone.nbytes)} are free again."

    # ------------------------------------------------------------------------------------------------ downloads

    def chips(self) -> list[Chip]:
        """What the status line says of downloads."""
        return [Chip(self._chip, 5, "$text-primary")] if self._chip else []

    def quit(self, leave: Callable[[], None]) -> bool:
        """Ask before downloads are cut off. False if none runs, or if this is asked already."""
        if "pulls" not in self.__dict__ or not self.pulls.open:
            return False
        from outrider.app.chat.confirm import ConfirmScreen

        running = self.pulls.open
        if isinstance(self._screen.app.screen, ConfirmScreen):
            return False
        share = f" ({running[0].share:.0%})" if running[0].share is not None else ""
        more = f", {len(running) - 1} more wait" if len(running) > 1 else ""
        question = f"A download runs: {running[0].name}{share}{more}.\nQuit all the same? What has come is kept."
        ask = ConfirmScreen(question, "quits", "stays", also=("ctrl+d",))
        self._screen.app.push_screen(ask, lambda yes: leave() if yes else None)
        return True

    def _moved(self) -> None:
        running = self.pulls.open
        share = running[0].share if running else None
        words = f"↓ {running[0].name}" + (f" {share:.0%}" if share is not None else "") if running else ""
        if len(running) > 1:
            words += f" +{len(running) - 1}"
        if words != self._chip:
            self._chip = words
            self._screen.stage.status_changed()

    def _over(self, pull: Pull) -> None:
        if pull.error is not None:
            self._complain(f"{pull.name} could not be brought", pull.error)
        elif pull.then is None:
            self._screen.stage.tell(f"{pull.name} is here: {render.size(pull.nbytes)}.")

    def _complain(self, title: str, error: EngineError) -> None:
        self._screen.stage.complain(Problem.of(title, error))
