"""What the chat does with drafters as a whole: lists them with their figures, switches, brings weights, tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outrider.app import render
from outrider.app.chat.problem import Problem
from outrider.app.chat.session import State
from outrider.app.client import EngineError
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterRow, ModelRow

if TYPE_CHECKING:
    from outrider.app.chat.drafters_list import Now, Rider
    from outrider.app.chat.screen import ChatScreen

_PROMPTS, _TOKENS = 4, 64  # of a test, as `outrider drafters test`


class Drafters:
    """The room behind the drafters' screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def show(self) -> None:
        """All drafters in a list."""
        from outrider.app.chat.drafters_screen import DraftersScreen

        self._screen.app.push_screen(DraftersScreen(self))

    @property
    def now(self) -> Now:
        """Who drafts."""
        from outrider.app.chat.drafters_list import Now

        session = self._screen.session
        reply = session.current.reply if session.current else session.chat.last_reply()
        return Now(session.drafter.name, session.drafter.weights, reply.meter.drafter if reply is not None else "")

    @property
    def rows(self) -> list[DrafterRow]:
        """What loading the model told, until more is known."""
        loaded = self._screen.session.loaded
        return loaded.drafters if loaded is not None else []

    async def look(self) -> list[DrafterRow]:
        """Every drafter with what was measured, the library and the catalogue included. Raises EngineError."""
        session = self._screen.session
        told = await session.beside.questions.ask(
            lambda number: protocol.Drafters(id=number, model=session.options.model, weights=None)
        )
        return protocol.as_type(told, list[DrafterRow])

    def ride(self, rider: Rider) -> bool:
        """Switch to a drafter, once its weights are here. False if that cannot be."""
        session = self._screen.session
        if rider.pull:
            self._bring(rider)
            return True
        if not rider.ready:
            return False
        if rider.known is None:
            return session.choose_drafter(rider.row.name)
        session.ride_with(rider.choice(session.drafter.tokens))
        return True

    def _bring(self, rider: Rider) -> None:
        session, known, model = self._screen.session, rider.known, self._screen.models.loaded

        def ride(_: ModelRow) -> None:
            if self._screen.models.loaded == model:
                session.ride_with(rider.choice(None))

        self._screen.models.pulls.add(rider.pull, known.nbytes if known else 0, ride)
        size = f" ({render.size(known.nbytes)})" if known and known.nbytes else ""
        self._screen.stage.tell(f"{rider.pull}{size} is on its way; it drafts here once it has come.")

    def busy(self) -> str:
        """Why nothing can be tested now."""
        state = self._screen.session.state
        return "" if state is State.READY else f"The engine is not free: {state.value}."

    async def test(
        self, rider: Rider, on_event: Callable[[protocol.Event], None], *, contract: bool = False
    ) -> dict[str, Any]:
        """Bundled prompts with this drafter and without, or the checks of the contract. Raises EngineError."""
        from outrider.app.commands import _prompts

        session = self._screen.session
        request = protocol.DrafterTest(
            id=session.client.number(),
            model=session.options.model,
            prompts=_prompts.varied(_prompts.read(), _PROMPTS),
            drafter=rider.choice(None),
            limit=_TOKENS,
            conformance=contract,
        )
        return await session.client.ask(request, on_event)

    def complain(self, title: str, error: EngineError) -> None:
        """A card in the transcript."""
        self._screen.stage.complain(Problem.of(title, error))
