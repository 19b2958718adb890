"""The help screen: what works where one is, every action with its keys and commands, marks and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from outrider.app.chat.helptext import Place, Section, having, laid_out
from outrider.app.chat.keymap import shown
from outrider.app.chat.prompt import Prompt


def place_of(focused: Widget | None) -> Place:
    """What has the focus. A widget may have `HELP_KEYS`: what it is called, and its keys, each with what it does."""
    if focused is None or isinstance(focused, Prompt):
        return Place()
    if told := getattr(focused, "HELP_KEYS", None):
        return Place(*told)
    if hasattr(focused, "reply") or hasattr(focused, "turn"):
        return Place("message")
    bound = [one for one in type(focused).BINDINGS if isinstance(one, Binding) and one.description]
    name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(focused).__name__).lower()
    return Place(name, [(", ".join(map(shown, one.key.split(","))), one.description) for one in bound])


class HelpScreen(ModalScreen[None]):
    """Shows what is told; typing looks for words, the arrow keys scroll. `keys` are those that open it."""

    BINDINGS: ClassVar = [
        Binding("escape,ctrl+c", "back", "Close", show=False, priority=True),
        Binding("up", "scroll(-1)", "Up", show=False, priority=True),
        Binding("down", "scroll(1)", "Down", show=False, priority=True),
        Binding("pageup", "scroll(-10)", "Page up", show=False, priority=True),
        Binding("pagedown", "scroll(10)", "Page down", show=False, priority=True),
    ]
    AUTO_FOCUS = "#help Input"

    def __init__(self, told: Sequence[Section], keys: Sequence[str] = (), words: str = "") -> None:
        super().__init__()
        self._told, self._keys, self._begin = told, keys, words

    def compose(self) -> ComposeResult:
        """What to look for over what is told."""
        with Vertical(id="help"):
            yield Input(self._begin, placeholder="Words to look for, such as copy, marks or tokens/pass", compact=True)
            with VerticalScroll(can_focus=False, id="help-scroll"):
                yield Static(id="help-text", markup=False)
            yield Static("↑ ↓ scroll · // begins a message with a slash · esc closes", markup=False, classes="footer")

    def on_resize(self, event: Resize) -> None:
        """Lay it out for the new width."""
        self.call_after_refresh(self._fill)

    def on_input_changed(self, _: Input.Changed) -> None:
        """Only what has the words."""
        self._fill()

    def _fill(self) -> None:
        words = self.query_one(Input).value
        room = self.query_one("#help-scroll", VerticalScroll)
        parts = laid_out(having(self._told, words), max(20, room.size.width - 2))
        text = Content.assemble(*parts) if parts else Content(f"Nothing here has all of: {words}")
        self.query_one("#help-text", Static).update(text)
        room.scroll_home(animate=False)

    def action_scroll(self, by: int) -> None:
        """Scroll so many lines; ten stand for a page."""
        room = self.query_one("#help-scroll", VerticalScroll)
        room.scroll_relative(y=by if abs(by) < 10 else by // 10 * max(1, room.size.height - 1), animate=False)

    def action_back(self) -> None:
        """Forget the words, or close."""
        field = self.query_one(Input)
        if field.value:
            field.value = ""
        else:
            self.dismiss()

    def on_key(self, event: Key) -> None:
        """The keys that open it close it too."""
        if event.key in self._keys:
            event.stop()
            self.dismiss()
