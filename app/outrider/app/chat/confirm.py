"""One question that is answered with yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.clean import harmless


class ConfirmScreen(ModalScreen[bool]):
    """Ends with whether it is to be done. `also`: keys that mean yes too."""

    BINDINGS: ClassVar = [
        Binding("y,enter", "answer(True)", "Yes", show=False),
        Binding("n,escape,ctrl+c", "answer(False)", "No", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str, also: Sequence[str] = ()) -> None:
        super().__init__()
        self._words = harmless(question), f"enter {yes} · esc {no}"
        self._also = also

    def compose(self) -> ComposeResult:
        """Question over keys."""
        with Vertical(id="confirm"):
            yield Static(self._words[0], markup=False)
            yield Static(self._words[1], markup=False, classes="footer")

    def on_key(self, event: Key) -> None:
        """What asked for it may say yes as well."""
        if event.key in self._also:
            event.stop()
            self.dismiss(True)

    def action_answer(self, yes: bool) -> None:
        """That is it."""
        self.dismiss(yes)
