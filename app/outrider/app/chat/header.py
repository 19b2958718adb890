"""The line at the top: model, exactness, title of the chat, context. And what the terminal's own title says."""

from __future__ import annotations

import os

from textual.app import App
from textual.content import Content
from textual.widget import Widget

from outrider.app.chat.context import NEARLY, level
from outrider.app.chat.session import Session
from outrider.app.chat.stats.lines import count
from outrider.app.chat.status import one_line
from outrider.app.chat.talk import Chat
from outrider.app.store.records import title_of

_PUSH, _POP = "\x1b[22;2t", "\x1b[23;2t"  # the title that the terminal had is kept, and comes back
_GAP = 4  # cells between what the model is and the title, so that the two are not read as one
_DEAF = ("linux", "dumb", "")  # terminals without a title


def chat_title(chat: Chat) -> str:
    """The title of a chat as the store has it, else what it will be; empty before anything was said."""
    first = next((turn.text for turn in chat.turns if turn.text and not turn.failed), "")
    return one_line(chat.title or (title_of(first) if first else ""))


def badge(session: Session) -> tuple[str, str]:
    """Whether the text can depend on who drafts, in a word with its style."""
    if session.options.rule == "typical":
        return "lossy", "bold $text-warning"
    return ("exact", "$text-success") if session.options.model.exact else ("fast", "$text-muted")


class Header(Widget):
    """Draws them in one line; the title gives way first."""

    def __init__(self) -> None:
        super().__init__(id="header")
        self._told: tuple[str, tuple[str, str], str, tuple[str, str]] = ("", ("", ""), "", ("", ""))

    def show(self, session: Session, context: int) -> None:
        """Draw what the session is now; `context`: tokens that the model holds."""
        loaded = session.loaded
        model = one_line((loaded.title or loaded.model) if loaded else session.options.model.model)
        model = model if len(model) <= 40 else "…" + model[-39:]
        filled = f"ctx {count(context)}/{count(loaded.context)}" if loaded else ""
        reached = level(context, loaded.context) if loaded else 0.0
        style = "bold $text-error" if reached == NEARLY else "$text-warning" if reached else "$text-muted"
        told = model, badge(session), chat_title(session.chat), (filled, style)
        if told != self._told:
            self._told = told
            self.refresh()

    def render(self) -> Content:
        """One line."""
        model, (word, style), title, (context, fullness) = self._told
        width = self.size.width
        left = Content.assemble((model, "bold"), (" · ", "$text-muted"), (word, style))
        room = width - left.cell_length - len(context) - _GAP - 2
        middle = Content(f"{title}").truncate(max(0, room), ellipsis=True) if room > 4 else Content("")
        before = max(_GAP, min((width - middle.cell_length) // 2 - left.cell_length, room + _GAP - middle.cell_length))
        after = max(1, width - left.cell_length - before - middle.cell_length - len(context))
        return Content.assemble(left, " " * before, middle, " " * after, (context, fullness)).truncate(width)


class Caption:
    """The terminal's own title; it comes back when the program ends."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._told = ""
        self._able = os.environ.get("TERM", "") not in _DEAF

    def show(self, session: Session) -> None:
        """Say what goes on."""
        title = chat_title(session.chat)
        words = " · ".join(part for part in (one_line(session.state.value), title, "Outrider") if part)
        if words != self._told and self._able:
            self._write((_PUSH if not self._told else "") + f"\x1b]2;{words}\x07")
            self._told = words

    def restore(self) -> None:
        """As it was."""
        if self._told:
            self._write(f"\x1b]2;\x07{_POP}")
            self._told = ""

    def _write(self, text: str) -> None:
        driver = self._app._driver  # Textual has no public way to it
        if driver is not None:
            driver.write(text)
