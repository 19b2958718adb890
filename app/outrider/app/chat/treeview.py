"""The branches of a chat over the screen, as an indented tree: enter goes to a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from outrider.app.chat.clean import harmless
from outrider.app.chat.letters import TypeThrough
from outrider.app.chat.meter import summary
from outrider.app.chat.talk import Chat, End, Reply
from outrider.app.chat.tree import Knot

_WORDS = 56  # characters of a message
_DEEPEST = 12  # steps of the indent


@dataclass(frozen=True, slots=True)
class Line:
    """One message. `depth` counts the forks above it; `shown`: on the branch that is shown; `here`: where one is."""

    node: str
    depth: int
    who: str
    words: str
    figures: str
    shown: bool
    here: bool


def lines(chat: Chat, here: str) -> list[Line]:
    """All messages of a chat, each above what follows from it."""
    tree, shown = chat.tree, {knot.node for knot in chat.tree.path(chat.last_node() or "")}
    found: list[Line] = []
    waiting = [(node, 0) for node in reversed(tree.under(""))]
    while waiting:
        node, depth = waiting.pop()
        knot, below = tree[node], tree.under(node)
        text = knot.text or (knot.reply.text or knot.reply.thought.text if knot.reply is not None else "")
        who = "Model" if knot.of_model else "You"
        found.append(Line(node, depth, who, _first(text), _figures(knot), node in shown, node == here))
        waiting += [(name, depth + (len(below) > 1)) for name in reversed(below)]
    return found


def _first(text: str) -> str:
    words = harmless(" ".join(text[: 4 * _WORDS].split()))
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1].rstrip()}…"


def _figures(knot: Knot) -> str:
    reply = knot.reply
    if reply is None:
        return ""
    return " · ".join([*_end(reply), *(summary(reply.report)[:2] if reply.report is not None else [])])


def _end(reply: Reply) -> list[str]:
    return [] if reply.end is End.WHOLE else ["under way" if reply.end is End.NOT_YET else reply.end.value]


class TreeScreen(TypeThrough[str], ModalScreen[str]):
    """Ends with the name of the chosen message, empty if none was."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c", "leave", "Close", show=False)]
    AUTO_FOCUS = "#tree OptionList"

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The messages, and what the keys do."""
        with Vertical(id="tree"):
            yield OptionList(*(Option(_content(line)) for line in self._lines), markup=False, compact=True)
            yield Static("enter goes there · esc closes", markup=False, classes="footer")

    def on_mount(self) -> None:
        """Begin where one is."""
        here = next((place for place, line in enumerate(self._lines) if line.here), None)
        self.query_one(OptionList).highlighted = here

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Go there."""
        self.dismiss(self._lines[event.option_index].node)

    def action_leave(self) -> None:
        """Stay where one is."""
        self.dismiss("")


def _content(line: Line) -> Content:
    """One line; what is shown now stands out, also without colour."""
    lead = "  " * min(line.depth, _DEEPEST)
    sign = "● " if line.here else "│ " if line.shown else "  "
    words = (line.words or "(nothing)", "" if line.shown else "$text-muted")
    figures = (f"  {line.figures}" if line.figures else "", "$text-muted")
    return Content.assemble(
        lead, (sign, "$text-primary"), (f"{line.who}  ", "bold" if line.shown else "$text-muted"), words, figures
    )
