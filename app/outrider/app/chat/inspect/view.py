"""The inspector on the screen: a pane beside the text, or a screen of its own where there is no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.events import Key, Resize
from textual.screen import ModalScreen

from outrider.app.chat.inspect.cursor import Cursor
from outrider.app.chat.inspect.lines import lines
from outrider.app.chat.stats.view import Lines


class Inspector(VerticalScroll, can_focus=True):
    """Shows the token at a cursor; arrows walk, and what is typed goes to `typed`."""

    BINDINGS: ClassVar = [
        Binding("left", "step(-1)", "Token before", show=False),
        Binding("right", "step(1)", "Token after", show=False),
        Binding("up", "jump(-1)", "Pass before", show=False),
        Binding("down", "jump(1)", "Pass after", show=False),
        Binding("home", "start", "First token", show=False),
        Binding("end", "end", "Newest token", show=False),
    ]

    def __init__(self, cursor: Cursor, typed: Callable[[str], None]) -> None:
        self._typed = typed
        self._lines = Lines("inspected")
        super().__init__(self._lines, id="inspector")
        self.cursor = cursor

    def on_mount(self) -> None:
        """Show where it is."""
        self.paint()

    def on_key(self, event: Key) -> None:
        """Letters do nothing here."""
        if event.is_printable and event.character and "+" not in event.key:
            event.stop()
            self._typed(event.character)

    def on_resize(self, _: Resize) -> None:
        """As wide as there is room."""
        self.paint()

    def paint(self) -> None:
        """Show the token at the cursor."""
        width = self.content_size.width - 1
        if width > 16:
            told = lines(self.cursor, width)
            self._lines.show(told)
            chosen = [row for row, line in enumerate(told) if any(style == "reverse" for _, style in line.parts)]
            row = chosen[-1] if chosen else 0
            self.scroll_to(y=max(0, row - self.size.height + 4), animate=False)

    def action_step(self, by: int) -> None:
        """Another token."""
        self.cursor.step(by)
        self.paint()

    def action_jump(self, by: int) -> None:
        """Another pass."""
        self.cursor.jump(by)
        self.paint()

    def action_start(self) -> None:
        """The first token."""
        self.cursor.start()
        self.paint()

    def action_end(self) -> None:
        """The newest token, and those to come."""
        self.cursor.end()
        self.paint()


class InspectorScreen(ModalScreen[None]):
    """The inspector over the chat."""

    BINDINGS: ClassVar = [Binding("escape,f8,ctrl+c,q", "dismiss", "Close", show=False)]
    AUTO_FOCUS = "#inspector"

    def __init__(self, inspector: Inspector, grow: Callable[[], None], period: float) -> None:
        super().__init__()
        self._inspector, self._grow, self._period = inspector, grow, period

    def compose(self) -> ComposeResult:
        """Nothing else."""
        yield self._inspector

    def on_mount(self) -> None:
        """Follow a reply that runs."""
        self.set_interval(self._period, self._grow)
