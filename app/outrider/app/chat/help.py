"""The help screen: every action with its keys and its command, made from the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import HorizontalGroup, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.actions import ACTIONS, PROMPT_KEYS, Action
from outrider.app.chat.keymap import shown

_ORDER = ["Writing", *dict.fromkeys(action.group for action in ACTIONS)]


def rows(actions: Sequence[Action] = ACTIONS) -> Iterator[tuple[str, str, str, str]]:
    """Group, keys, slash command and help of everything there is."""
    for keys, words in PROMPT_KEYS:
        yield "Writing", keys, "", words
    for action in actions:
        keys = ", ".join(map(shown, (*action.keys, *action.empty_prompt)))
        slash = f"/{action.slash} {action.argument}".rstrip() if action.slash else ""
        yield action.group, keys, slash, action.help


class HelpScreen(ModalScreen[None]):
    """Lists actions, keys and commands; scrolls with the arrow keys."""

    BINDINGS: ClassVar = [Binding("escape,f1,q,ctrl+c", "dismiss", "Close", show=False)]
    AUTO_FOCUS = "#help"

    def __init__(self, actions: Sequence[Action] = ACTIONS) -> None:
        super().__init__()
        self._actions = actions

    def compose(self) -> ComposeResult:
        """A heading and a grid for each group."""
        with VerticalScroll(id="help"):
            group = ""
            for name, keys, slash, words in sorted(rows(self._actions), key=lambda row: _ORDER.index(row[0])):
                if name != group:
                    group = name
                    yield Static(name, markup=False, classes="group")
                with HorizontalGroup():
                    yield Static(keys, markup=False, classes="keys")
                    yield Static(slash, markup=False, classes="slash")
                    yield Static(words, markup=False, classes="words")
            letters = [f"{letter} {one.title.lower()}" for one in self._actions for letter in one.on_message]
            yield Static(f"On a focused reply: {' · '.join(letters)}", markup=False, classes="footer")
            yield Static("// begins a message with a slash · esc closes", markup=False, classes="footer")

    def on_key(self, event: Key) -> None:
        """The keys that open it close it too."""
        if event.key in next((one.keys for one in self._actions if one.id == "help"), ()):
            event.stop()
            self.dismiss()
