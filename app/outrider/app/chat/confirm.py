"""One question that is answered with yes or no, by a key that is pressed for it and not on the way to elsewhere."""

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
from outrider.app.chat.letters import Burst


class ConfirmScreen(ModalScreen[bool]):
    """Ends with whether it is to be done. `also`: keys that mean yes too.

    Letters that follow each other quickly answer nothing, nor does enter right behind them.
    """

    BINDINGS: ClassVar = [
        Binding("enter", "answer(True)", "Yes", show=False),
        Binding("escape,ctrl+c", "answer(False)", "No", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str, also: Sequence[str] = ()) -> None:
        super().__init__()
        self._words = harmless(question), f"enter {yes} · esc {no}"
        self._also = also
        self._burst = Burst(self, self._said)

    def compose(self) -> ComposeResult:
        """Question over keys."""
        with Vertical(id="confirm"):
            yield Static(self._words[0], markup=False)
            yield Static(self._words[1], markup=False, classes="footer")

    def on_key(self, event: Key) -> None:
        """What asked for it may say yes as well; y and n count alone."""
        if event.key in self._also:
            event.stop()
            self.dismiss(True)
        elif event.is_printable and event.character:
            event.stop()
            self._burst.add(event.character, self)
        elif event.key == "enter" and self._burst.text:
            event.stop()

    def on_burst_quiet(self, event: Burst.Quiet) -> None:
        """No other letter has followed."""
        self._burst.settle(event)

    def _said(self, letters: str) -> None:
        if letters in ("y", "n"):
            self.dismiss(letters == "y")

    def action_answer(self, yes: bool) -> None:
        """That is it."""
        self.dismiss(yes)
