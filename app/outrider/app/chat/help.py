"""The help screen: every action with its keys and its command, made from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import HorizontalGroup, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from outrider.app.chat.actions import ACTIONS, PROMPT_KEYS

_ORDER = ["Writing", *dict.fromkeys(action.group for action in ACTIONS)]


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Group, keys, slash command and help of everything there is."""
    for keys, words in PROMPT_KEYS:
        yield "Writing", keys, "", words
    for action in ACTIONS:
        keys = ", ".join((*action.keys, *action.empty_prompt))
        slash = f"/{action.slash} {action.argument}".rstrip() if action.slash else ""
        yield action.group, keys, slash, action.help


class HelpScreen(ModalScreen[None]):
    """Lists actions, keys and commands; scrolls with the arrow keys."""

    BINDINGS: ClassVar = [Binding("escape,f1,q,ctrl+c", "dismiss", "Close", show=False)]
    AUTO_FOCUS = "#help"

    def compose(self) -> ComposeResult:
        """A heading and a grid for each group."""
        with VerticalScroll(id="help"):
            group = ""
            for name, keys, slash, words in sorted(rows(), key=lambda row: _ORDER.index(row[0])):
                if name != group:
                    group = name
                    yield Static(name, markup=False, classes="group")
                with HorizontalGroup():
                    yield Static(keys, markup=False, classes="keys")
                    yield Static(slash, markup=False, classes="slash")
                    yield Static(words, markup=False, classes="words")
            yield Static(
                "c copies a focused reply, t shows its thought · // begins a message with a slash · esc closes",
                classes="footer",
            )
