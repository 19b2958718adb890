"""What comes after the leader key: every letter with what it does, and the one that is pressed is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import HorizontalGroup, ItemGrid
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.actions import Action


class LeaderScreen(ModalScreen[str]):
    """Ends with the id of the action whose letter was pressed, empty if none was."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c,ctrl+o", "leave", "Close", show=False)]

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = {action.leader: action for action in actions if action.leader}

    def compose(self) -> ComposeResult:
        """As many columns as there is room for."""
        with ItemGrid(min_column_width=28, id="leader"):
            for letter, action in self._actions.items():
                with HorizontalGroup():
                    yield Static(letter, markup=False, classes="keys")
                    yield Static(action.title, markup=False, classes="words")

    def on_key(self, event: Key) -> None:
        """The first letter decides."""
        if event.is_printable and event.character and "+" not in event.key:
            event.stop()
            chosen = self._actions.get(event.character)
            self.dismiss(chosen.id if chosen else "")

    def action_leave(self) -> None:
        """Do nothing."""
        self.dismiss("")
