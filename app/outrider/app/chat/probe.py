"""Shows what the terminal makes of a key: its name, and what the chat does with it."""

from __future__ import annotations

import sys
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.driver import Driver
from textual.events import Key
from textual.widgets import Static

from outrider.app.chat.bindings import unbind
from outrider.app.chat.keymap import REFUSED, Keymap, risky, shown

_SHOWN = 12  # lines
_ENDS = "ctrl+q"


class Probe(App[None]):
    """Lists the keys that are pressed until ctrl+q or a second escape in a row."""

    CSS: ClassVar = "Screen { height: auto; } Static { height: auto; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        for key in (_ENDS, "ctrl+c"):
            unbind(self, key)
        self._actions = {key: one for one in keymap.actions for key in (*one.keys, *one.empty_prompt)}
        self._letters = keymap.letters()
        self._unseen = list(self._actions)
        self._lines: list[str] = []
        self._last = ""

    def _build_driver(self, headless: bool, inline: bool, mouse: bool, size: tuple[int, int] | None) -> Driver:
        if headless or not inline or sys.platform == "win32":
            return super()._build_driver(headless, inline, mouse, size)
        from outrider.app.chat.driver import InlineDriver

        self._driver = driver = InlineDriver(self, mouse=mouse, size=size)
        return driver

    def compose(self) -> ComposeResult:
        """What was pressed, under what to do."""
        yield Static("Press keys to see what they are called. ctrl+q, or escape twice, ends this.", markup=False)
        yield Static(id="keys", markup=False)
        yield Static(self._left(), id="unseen", markup=False)

    def on_key(self, event: Key) -> None:
        """One more."""
        event.stop()
        event.prevent_default()
        if event.key == _ENDS or event.key == self._last == "escape":
            self.exit()
        self._last = event.key
        self._lines = [*self._lines, self.words(event.key, event.character)][-_SHOWN:]
        self.query_one("#keys", Static).update("\n".join(self._lines))
        if event.key in self._unseen:
            self._unseen.remove(event.key)
            self.query_one("#unseen", Static).update(self._left())

    def _left(self) -> str:
        """The keys of the chat that have not come yet."""
        names = ", ".join(map(shown, self._unseen))
        return f"Not seen yet, so press them: {names}" if names else "Every key of the chat has arrived."

    def words(self, key: str, character: str | None) -> str:
        """The name of a key and what the chat does with it."""
        plain = character is not None and len(character) == 1 and character.isprintable() and "+" not in key
        letter = character or "" if plain else ""
        name = letter.strip() or key
        if key in self._actions:
            use = self._actions[key].title
        elif letter:
            action = self._letters.get(letter)
            use = "typing" + (f"; on a focused reply: {action.title}" if action else "")
        else:
            use = REFUSED.get(key, "free")
        return f"{name:<20} {use}" + ("; some terminals do not send it" if risky(key) else "")
