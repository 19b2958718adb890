"""The log over the chat: figures, and what the engines printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app import render
from outrider.app.chat.clean import harmless
from outrider.app.chat.gauge import Reading, rates
from outrider.app.chat.letters import TypeThrough

if TYPE_CHECKING:
    from outrider.app.chat.log import Log

_PERIOD = 1.0  # seconds between two looks


class LogScreen(TypeThrough[None], ModalScreen[None]):
    """Follows what is printed until one scrolls up."""

    BINDINGS: ClassVar = [
        Binding("escape,f12,q,ctrl+c", "dismiss", "Close", show=False),
        Binding("c,ctrl+y", "copy", "Copy", show=False),
        Binding("s", "save", "Save", show=False),
        Binding("g", "edge('home')", "To the beginning", show=False),
        Binding("G", "edge('end')", "To the end", show=False),
    ]
    AUTO_FOCUS = "#log VerticalScroll"

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._before: Reading | None = None
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """Figures over lines over keys."""
        with Vertical(id="log"):
            yield Static("", markup=False, classes="figures")
            with VerticalScroll():
                yield Static("", markup=False, classes="lines")
            yield Static("", markup=False, classes="notice")
            yield Static("c copies · s saves · g G to the ends · esc closes", markup=False, classes="footer")

    def on_mount(self) -> None:
        """Look now and then."""
        self.query_one(VerticalScroll).anchor()
        self._look()
        self.set_interval(_PERIOD, self._look)

    def _look(self) -> None:
        now = self._log.reading()
        pace = rates(self._before, now) if self._before is not None else None
        self._before = now
        self.query_one(".figures", Static).update(harmless(render.pairs(self._log.figures(pace))))
        lines = self._log.lines()
        if lines != self._lines or not lines:
            self._lines = lines
            self.query_one(".lines", Static).update(harmless("\n".join(lines)) or "The engine has printed nothing.")

    def action_copy(self) -> None:
        """All of it."""
        self._log.copy()
        self.query_one(".notice", Static).update("Copied.")

    def action_save(self) -> None:
        """Into the working folder."""
        self.query_one(".notice", Static).update(self._log.save())

    def action_edge(self, way: str) -> None:
        """Scroll."""
        getattr(self.query_one(VerticalScroll), f"scroll_{way}")(animate=False)
