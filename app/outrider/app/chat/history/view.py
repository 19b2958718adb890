"""The history of drafters over the chat."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.letters import TypeThrough
from outrider.app.chat.stats.lines import Line
from outrider.app.chat.stats.view import Lines


class HistoryScreen(TypeThrough[None], ModalScreen[None]):
    """A table that scrolls."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c,q", "dismiss", "Close", show=False)]
    AUTO_FOCUS = "#past"

    def compose(self) -> ComposeResult:
        """The table over what the keys do."""
        with Vertical(id="history"):
            yield Static("How drafters did in all chats", markup=False, classes="group")
            with VerticalScroll(id="past"):
                yield Lines("past-lines")
            yield Static("Measured in the replies that were kept · esc closes", markup=False, classes="footer")

    def show(self, lines: list[Line]) -> None:
        """Fill the table."""
        self.query_one(Lines).show(lines)

    @property
    def room(self) -> int:
        """Cells of a line."""
        return self.query_one(Lines).content_size.width or 80
