"""What comes after the leader key: every letter with what it does, and the one that is pressed alone is done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.actions import Action
from outrider.app.chat.letters import Burst

_WIDE, _NARROW = 29, 17  # cells of a column where there is room, and at least
_FRAME = (4, 2)  # cells and lines around the letters


def laid_out(actions: Sequence[Action], size: tuple[int, int], idle: Collection[str] = ()) -> list[tuple[str, str]]:
    """Letters and titles in columns for so many cells and lines, in pieces with their styles; `idle` ones are dim."""
    width, height = max(_NARROW, size[0]), max(1, size[1])
    columns = max(1, width // _WIDE)
    while -(-len(actions) // columns) > height and width // (columns + 1) >= _NARROW:
        columns += 1
    rows = -(-len(actions) // columns)
    cell = width // columns
    parts: list[tuple[str, str]] = []
    for row in range(rows):
        for action in actions[row::rows]:
            room = cell - 4
            title = action.title if len(action.title) <= room else action.title[: room - 1] + "…"
            muted = action.id in idle
            parts.append((f"{action.leader} ", "$text-muted" if muted else "bold $text-primary"))
            parts.append((f"{title:<{room + 2}}", "$text-muted" if muted else ""))
        parts.append(("\n" if row < rows - 1 else "", ""))
    return parts


class LeaderScreen(ModalScreen[str]):
    """Ends with the id of the action whose letter was pressed, empty if none was. `idle`: what can do nothing now.

    Letters that follow each other quickly are text: then nothing is done, and `typed` is for the prompt.
    """

    BINDINGS: ClassVar = [
        Binding("escape,ctrl+c,ctrl+o", "leave", "Close", show=False),
        Binding("up,pageup", "scroll(-1)", "Up", show=False),
        Binding("down,pagedown", "scroll(1)", "Down", show=False),
    ]

    def __init__(self, actions: Sequence[Action], idle: Collection[str] = ()) -> None:
        super().__init__()
        self._actions = {action.leader: action for action in actions if action.leader}
        self._idle = idle
        self._burst = Burst(self, self._choose)
        self.typed = ""

    def compose(self) -> ComposeResult:
        """As many columns as there is room for."""
        with VerticalScroll(id="leader", can_focus=False):
            yield Static(id="leader-text", markup=False)

    def on_resize(self, event: Resize) -> None:
        """Once everything is there."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Lay the letters out for this size."""
        size = min(self.size.width, 120) - _FRAME[0], self.size.height - _FRAME[1]
        parts = laid_out(list(self._actions.values()), size, self._idle)
        self.query_one("#leader-text", Static).update(Content.assemble(*parts))

    def on_key(self, event: Key) -> None:
        """A letter alone decides; more of them at once were never meant for here."""
        if not (event.is_printable and event.character):
            return
        event.stop()
        if self.typed:
            self.typed += event.character
        elif self._burst.text or "+" in event.key:
            self.typed = self._burst.take() + event.character
            self.dismiss("")
        else:
            self._burst.add(event.character, self)

    def on_burst_quiet(self, event: Burst.Quiet) -> None:
        """No other letter has followed."""
        self._burst.settle(event)

    def _choose(self, letter: str) -> None:
        chosen = self._actions.get(letter)
        self.dismiss(chosen.id if chosen else "")

    def action_scroll(self, by: int) -> None:
        """Where they do not fit."""
        self.query_one("#leader", VerticalScroll).scroll_relative(y=3 * by, animate=False)

    def action_leave(self) -> None:
        """Do nothing."""
        self._burst.take()
        if not self.typed:
            self.dismiss("")
