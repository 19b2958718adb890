"""The two widgets beside the prompt: a list of ways to go on, and the line of what goes with the message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content
from textual.events import Click, Key
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.input.attach import estimate, label
from outrider.app.chat.input.candidate import Entry, Menu
from outrider.app.store.records import Attachment

_ROWS, _REST = 8, 6  # entries at most, and lines of the screen that are left to the rest
_NAME = 44  # cells of a candidate at most
Part = str | tuple[str, str]


def line_of(entry: Entry, width: int, *, chosen: bool) -> list[Part]:
    """A sign, the candidate with the typed letters bold, and what is told of it, in names of `width` cells."""
    candidate = entry.candidate
    dim = bool(candidate.why_not)
    name = harmless(" ".join(candidate.text.splitlines()))
    shown = name if len(name) <= width else name[: width - 1] + "…"
    parts: list[Part] = [("› " if chosen else "  ", "bold $text-primary")]
    places = {place for place in entry.places if place < len(shown)}
    for place, letter in enumerate(shown):
        parts.append((letter, "bold $text-primary" if place in places else "$text-muted" if dim else "$foreground"))
    told = "  ".join(filter(None, (candidate.hint, candidate.title)))
    if told or dim:
        parts.append(" " * (width - len(shown) + 2))
        parts.append((harmless(told), "$text-muted"))
    if dim:
        parts.append((f"{'  ' if told else ''}({harmless(candidate.why_not)})", "italic $text-muted"))
    return parts


class Popup(Static):
    """Hangs over the transcript, above the prompt. The prompt keeps the focus and moves in it."""

    def __init__(self, clicked: Callable[[int], None]) -> None:
        super().__init__("", markup=False, id="popup")
        self._clicked = clicked
        self._window, self._titled = range(0), False
        self.display = False

    def show(self, menu: Menu, title: str = "") -> None:
        """Show these entries, under a title where there is one; nothing where there is neither."""
        self._window = menu.window(max(1, min(_ROWS, self.screen.size.height - _REST)))
        seen = [menu.entries[place] for place in self._window]
        width = min(_NAME, max((len(one.candidate.text) for one in seen), default=0))
        if not any(one.candidate.title or one.candidate.hint or one.candidate.why_not for one in seen):
            width = max(1, self.screen.size.width - 4)
        lines = [
            Content.assemble(*line_of(one, width, chosen=place == menu.at))
            for place, one in zip(self._window, seen, strict=True)
        ]
        if title:
            count = f"  {menu.at + 1}/{len(menu.entries)}" if menu.entries else ""
            lines.insert(0, Content.assemble((f"  {title}{count}", "$text-muted")))
        self._titled = bool(title)
        self.display = bool(lines)
        if lines:
            self.update(Content("\n").join(lines))
            self.styles.height = len(lines)
            self.styles.offset = (0, -len(lines))

    def on_click(self, event: Click) -> None:
        """The line that was clicked is taken."""
        place = self._window.start + event.y - self._titled
        if place in self._window:
            event.stop()
            self._clicked(place)


def chip(attachment: Attachment, context: int, scale: float = 1.0) -> tuple[str, bool]:
    """`notes.md · 3.1 kB · ~812 tokens, 10% of the context` and whether it is too long for one of so many tokens; 0: not known.

    `scale`: tokens of the model for each that is estimated.
    """
    tokens = round(estimate(attachment.text) * scale)
    words = f"{label(attachment)} · ~{tokens:,} tokens"
    if context:
        share = 100 * tokens / context
        words += f", {share:.0f}% of the context" if share >= 1 else ", under 1% of the context"
    return harmless(words), bool(context) and tokens > context


class Chips(Static, can_focus=True):
    """What goes with the message. With the focus: left and right choose, delete removes, enter unfolds."""

    def __init__(self, remove: Callable[[int], None], unfold: Callable[[int], None], leave: Callable[[], None]) -> None:
        super().__init__("", markup=False, id="chips")
        self._remove, self._unfold, self._leave = remove, unfold, leave
        self._words: list[tuple[str, bool]] = []
        self._at = 0
        self.display = False

    def show(self, attachments: Sequence[Attachment], context: int, scale: float) -> None:
        """One line for each."""
        self._words = [chip(one, context, scale) for one in attachments]
        self._at = max(0, min(self._at, len(self._words) - 1))
        self.display = bool(self._words)
        self._draw()

    def _draw(self) -> None:
        lines = []
        for place, (words, much) in enumerate(self._words):
            chosen = self.has_focus and place == self._at
            style = "bold $text-primary" if chosen else "$text-warning" if much else "$text-muted"
            lines.append(Content.assemble(("› " if chosen else "+ ", style), (words, style)))
        if lines:
            told = "delete removes · enter unfolds a paste · esc back" if self.has_focus else "backspace removes"
            lines[-1] = Content.assemble(lines[-1], (f"   {told}", "italic $text-muted"))
        self.update(Content("\n").join(lines))

    def on_focus(self) -> None:
        """Show which one is chosen."""
        self._draw()

    def on_blur(self) -> None:
        """None is."""
        self._draw()

    def on_key(self, event: Key) -> None:
        """Choose, remove, unfold."""
        name = event.key
        if name in ("left", "up", "right", "down"):
            by = -1 if name in ("left", "up") else 1
            if not 0 <= self._at + by < len(self._words):
                self._leave()
            else:
                self._at += by
                self._draw()
        elif name in ("delete", "backspace"):
            self._remove(self._at)
        elif name == "enter":
            self._unfold(self._at)
        else:
            return
        event.stop()
