"""The prompt: grows with its text, sends on enter, recalls what was sent before, holds what goes with a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from rich.text import Text
from textual.binding import Binding
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from outrider.app.store.records import Attachment
from outrider.app.text import sanitize

NEW_LINE = ("shift+enter", "ctrl+j", "alt+enter")


class Companion(Protocol):
    """What stands beside the prompt: completion, search, attachments."""

    def key(self, name: str) -> bool:
        """Take a key before the prompt does. False leaves it to the prompt."""
        ...

    def changed(self) -> None:
        """The text or the attachments are others now."""
        ...

    def paste(self, text: str) -> bool:
        """Take what was pasted. False lets it into the text."""
        ...

    def settle(self) -> None:
        """The text that stands there now was not typed."""
        ...

    async def opened(self, typed: str, attachments: Sequence[Attachment]) -> None:
        """Another chat is shown; `typed` and `attachments` were never sent in it."""
        ...

    def close(self) -> None:
        """The prompt goes away."""
        ...


class Prompt(TextArea):
    """A text area whose enter sends; up and down at its edges walk through what was sent."""

    BINDINGS: ClassVar = [  # where no action of the chat has these keys
        Binding("ctrl+p", "cursor_up", "Cursor up", show=False),
        Binding("ctrl+n", "cursor_down", "Cursor down", show=False),
        Binding("ctrl+underscore", "undo", "Undo", show=False),
        Binding("alt+z", "redo", "Redo", show=False),
    ]

    class Sent(Message):
        """The user pressed enter on a text that is not blank, or on attachments."""

        def __init__(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
            super().__init__()
            self.text, self.attachments = text, tuple(attachments)

    class Suspended(Message):
        """The user pressed the key that stops programs on an empty prompt; elsewhere it undoes."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(
            placeholder=placeholder, compact=True, highlight_cursor_line=False, show_line_numbers=False, id="prompt"
        )
        self.cursor_blink = False
        self.companion: Companion | None = None
        self.attachments: tuple[Attachment, ...] = ()
        self._history: list[str] = []
        self._place = 0  # in the history; its length = the draft
        self._draft = ""

    def focus(self, scroll_visible: bool = True) -> Prompt:
        """At once and not with a later message, as keys that are typed in a burst belong here already."""
        self.screen.set_focus(self, scroll_visible)
        return self

    def remember(self, texts: list[str]) -> None:
        """What was sent in earlier chats, oldest first."""
        self._history[:0] = texts
        self._place += len(texts)

    def on_key(self, event: Key) -> None:
        """Enter and its kin, in the order they were typed: a priority binding would overtake letters on their way."""
        if self.companion is not None and self.companion.key(event.key):
            event.prevent_default()
            event.stop()
        elif event.key == "ctrl+z" and not self.text and not self.attachments:
            event.prevent_default()
            event.stop()
            self.post_message(self.Suspended())
        elif event.key == "enter" or event.key in NEW_LINE:
            event.prevent_default()
            event.stop()
            if event.key == "enter":
                self.send()
            else:
                self.insert("\n")

    def on_paste(self, event: Paste) -> None:
        """A long paste does not go into the text."""
        if self.companion is not None and self.companion.paste(event.text):
            event.prevent_default()
            event.stop()

    def action_paste(self) -> None:
        """What this program copied last, folded like any other paste."""
        if self.companion is None or not self.companion.paste(self.app.clipboard):
            super().action_paste()

    def on_text_area_changed(self) -> None:
        """Completion follows what is typed."""
        if self.companion is not None:
            self.companion.changed()

    def on_unmount(self) -> None:
        """Nothing that was typed is lost."""
        if self.companion is not None:
            self.companion.close()

    def get_line(self, line_index: int) -> Text:
        """A line as it is shown."""
        return Text(sanitize(self.document.get_line(line_index)), end="", no_wrap=True)

    def send(self) -> None:
        """Send the text, or break the line if a backslash asks for it."""
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1 : column] == "\\":
            self.replace("\n", (row, column - 1), (row, column))
            return
        text = self.text.strip("\n")
        command = text.startswith("/") and not text.startswith("//")
        attachments = () if command else self.attachments
        if not text.strip() and not attachments:
            return
        if text.strip() and (not self._history or self._history[-1] != text):
            self._history.append(text)
        self.put("", None if command else ())
        self.post_message(self.Sent(text if text.strip() else "", attachments))

    def put(self, text: str, attachments: Sequence[Attachment] | None = None) -> None:
        """Replace the text, and what goes with it unless that is None; the cursor goes to the end."""
        if attachments is not None:
            self.attachments = tuple(attachments)
        self.load_text(text)
        self.move_cursor(self.document.end)
        self._place, self._draft = len(self._history), ""
        if self.companion is not None:
            self.companion.settle()
            self.companion.changed()

    def attach(self, attachments: Sequence[Attachment]) -> None:
        """Other attachments; the text stays."""
        self.attachments = tuple(attachments)
        if self.companion is not None:
            self.companion.changed()

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
        if self.companion is not None:
            self.companion.settle()
