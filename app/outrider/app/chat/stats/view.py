"""The widgets of the figures: lines that are painted again only where they changed, with definitions under the mouse."""

from __future__ import annotations

from textual.content import Content
from textual.events import MouseMove
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.stats.lines import Line
from outrider.app.chat.terms import TERMS


class Lines(Static):
    """Shows lines of figures."""

    def __init__(self, id: str) -> None:
        super().__init__("", markup=False, id=id)
        self.told: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Show these; the same again costs nothing."""
        if lines == self.told:
            return
        same = len(lines) == len(self.told)
        self.told = lines
        texts = (Content.assemble(*((harmless(text), style) for text, style in line.parts)) for line in lines)
        self.update(Content("\n").join(texts), layout=not same)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Say what the figures under the mouse mean."""
        line = self.told[event.y] if 0 <= event.y < len(self.told) else None
        words = "\n".join(f"{TERMS[term].label}: {TERMS[term].definition}" for term in line.terms) if line else ""
        if words != (self.tooltip or ""):
            self.tooltip = words or None
