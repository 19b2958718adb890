"""Stands over the chat while something runs on its engine: how far it is, and escape stops it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.compare.runner import Asker, Stopped
from outrider.app.chat.letters import TypeThrough
from outrider.app.client import EngineError

_BAR = 40  # cells
_PERIOD = 0.2  # seconds between two looks


class RunningScreen(TypeThrough[Any], ModalScreen[Any]):
    """Ends with what `work` gives, the EngineError that ended it, or None if it was stopped."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c", "stop", "Stop", show=False)]

    def __init__(self, title: str, asker: Asker, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._title, self._asker, self._run = title, asker, work
        self._stopping = False

    def compose(self) -> ComposeResult:
        """A heading, what runs, a bar."""
        with Vertical(id="compare-running"):
            yield Static(self._title, markup=False, classes="group")
            yield Static("", markup=False, id="compare-now")
            yield Static("esc stops", markup=False, classes="footer")

    def on_mount(self) -> None:
        """Set off."""
        self.set_interval(_PERIOD, self._show)
        self.run_worker(self._work())
        self._show()

    async def _work(self) -> None:
        outcome: Any = None
        try:
            outcome = await self._run()
        except Stopped:
            pass
        except EngineError as error:
            outcome = error
        if self.is_current:
            self.dismiss(outcome)

    def _show(self) -> None:
        now = self._asker.now
        full = round(_BAR * min(1.0, now.done / now.of)) if now.of else 0
        words = "Stopping…" if self._stopping else harmless(now.words)
        count = f" {now.done} of {now.of} tokens at most" if now.of else ""
        if now.reading and not now.done:
            count = f" {now.reading}"
        bar = ("━" * full, "$primary"), ("─" * (_BAR - full), "$text-muted")
        self.query_one("#compare-now", Static).update(Content.assemble(words, "\n", *bar, (count, "$text-muted")))

    def action_stop(self) -> None:
        """Stop at the next pass; again, without waiting for it."""
        if self._stopping:
            self.dismiss(None)
            return
        self._stopping = True
        self._asker.stop()
        self._show()
