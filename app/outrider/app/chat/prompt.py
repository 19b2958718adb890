"""The prompt: grows with its text, sends on enter, recalls what was sent before."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

NEW_LINE = ("shift+enter", "ctrl+j", "alt+enter")


class Prompt(TextArea):
    """A text area whose enter sends; up and down at its edges walk through what was sent."""

    BINDINGS: ClassVar = [  # where no action of the chat has these keys
        Binding("ctrl+p", "cursor_up", "Cursor up", show=False),
        Binding("ctrl+n", "cursor_down", "Cursor down", show=False),
    ]

    class Sent(Message):
        """The user pressed enter on a text that is not blank."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, placeholder: str) -> None:
        super().__init__(
            placeholder=placeholder, compact=True, highlight_cursor_line=False, show_line_numbers=False, id="prompt"
        )
        self.cursor_blink = False
        self._history: list[str] = []
        self._place = 0  # in the history; its length = the draft
        self._draft = ""

    def remember(self, texts: list[str]) -> None:
        """What was sent in earlier chats, oldest first."""
        self._history[:0] = texts
        self._place += len(texts)

    def on_key(self, event: Key) -> None:
        """Enter and its kin, in the order they were typed: a priority binding would overtake letters on their way."""
        if event.key == "enter" or event.key in NEW_LINE:
            event.prevent_default()
            event.stop()
            if event.key == "enter":
                self.send()
            else:
                self.insert("\n")

    def send(self) -> None:
        """Send the text, or break the line if a backslash asks for it."""
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1 : column] == "\\":
            self.replace("\n", (row, column - 1), (row, column))
            return
        text = self.text.strip("\n")
        if not text.strip():
            return
        if not self._history or self._history[-1] != text:
            self._history.append(text)
        self.put("")
        self.post_message(self.Sent(text))

    def put(self, text: str) -> None:
        """Replace the text; the cursor goes to its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)
        self._place, self._draft = len(self._history), ""

    def action_cursor_up(self, select: bool = False) -> None:
        """Up a line; above the first one, to the message before."""
        if select or self.get_cursor_up_location()[0] != self.cursor_location[0] or not self._at_edge(-1):
            super().action_cursor_up(select)
        else:
            self._recall(-1)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down a line; below the last one, to the message after."""
        if select or not self._at_edge(1):
            super().action_cursor_down(select)
        else:
            self._recall(1)

    def _at_edge(self, by: int) -> bool:
        """Whether the cursor is on the first or last line as wrapped on screen."""
        lines = self.wrapped_document
        _, y = lines.location_to_offset(self.cursor_location)
        return y == 0 if by < 0 else y >= lines.height - 1

    def _recall(self, by: int) -> None:
        place = self._place + by
        if not 0 <= place <= len(self._history):
            return
        if self._place == len(self._history):
            self._draft = self.text
        draft = self._draft
        text = draft if place == len(self._history) else self._history[place]
        self.load_text(text)
        self.move_cursor(self.document.end if by < 0 else (0, len(text.split("\n", 1)[0])))
        self._place, self._draft = place, draft
