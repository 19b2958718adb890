"""What the chat screen does to show how drafters did: asks the store, then the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.client import EngineError
from outrider.app.store.problems import StoreError
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterRow

if TYPE_CHECKING:
    from outrider.app.chat.history.view import HistoryScreen
    from outrider.app.chat.screen import ChatScreen


class History:
    """The sums are made in the thread of the store."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def show(self) -> None:
        """Open the table; what takes its time comes when it is there."""
        from outrider.app.chat.history.view import HistoryScreen

        table = HistoryScreen()
        self._screen.app.push_screen(table)
        self._screen.stage.spawn(self._fill(table))

    async def _fill(self, table: HistoryScreen) -> None:
        from outrider.app.chat.history.lines import lines
        from outrider.app.chat.history.past import past

        session = self._screen.session
        model = session.options.model.model
        try:
            rows = await session.keeper.ask(lambda store: past(store.finished()))
        except StoreError as error:
            self._screen.stage.tell(" ".join(filter(None, (error.message, error.hint))))
            table.dismiss()
            return
        if table.is_attached:
            table.show(lines(rows, {}, model, table.room))
        choices = await self._choices()
        if choices and table.is_attached:
            table.show(lines(rows, choices, model, table.room))

    async def _choices(self) -> dict[str, str]:
        """What the engine makes of the drafters, where it can be asked now."""
        session = self._screen.session
        if session.current is not None or not session.client.alive or session.loaded is None:
            return {}
        request = protocol.Drafters(id=session.client.number(), model=session.options.model)
        try:
            told = protocol.as_type(await session.client.ask(request), list[DrafterRow])
        except EngineError:  # the sums stand without it
            return {}
        return {row.name: row.choice for row in told if row.choice}
