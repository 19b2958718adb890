"""The line in which one types what to find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Key
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from outrider.app.chat.find import Find

_ROOM = 72  # cells of a line that tells its keys


class FindBar(Horizontal):
    """Words, and which of how many hits is looked at."""

    def __init__(self, find: Find, words: str) -> None:
        super().__init__(id="find")
        self._find = find
        self._words = Input(words, placeholder="words in this chat", compact=True)
        self._count = Static("", markup=False, classes="count")

    def compose(self) -> ComposeResult:
        """Words, count, keys."""
        yield Static("Find", markup=False, classes="label")
        yield self._words
        yield self._count
        yield Static("enter next · up before · esc closes", markup=False, classes="keys")

    def on_mount(self) -> None:
        """Type at once."""
        self._words.focus()

    def on_resize(self) -> None:
        """Keys are told where there is room."""
        self.query_one(".keys").display = self.size.width >= _ROOM

    def take(self, words: str) -> None:
        """Put in other words; with none, those that are there may be replaced."""
        if words:
            self._words.value = words
            self._find.search(words)
        elif self.is_mounted:
            self._words.focus()
            self._words.action_select_all()

    def count(self, told: str) -> None:
        """Say which of how many."""
        self._count.update(told)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while one types."""
        event.stop()
        if event.value != self._find.words:
            self._find.search(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """To the next hit."""
        event.stop()
        self._find.step(1)

    def on_key(self, event: Key) -> None:
        """Up goes back, down forward."""
        by = {"up": -1, "shift+enter": -1, "down": 1}.get(event.key)
        if by is not None:
            event.stop()
            event.prevent_default()
            self._find.step(by)
