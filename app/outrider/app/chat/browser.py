"""A list that is filtered while one types, with what is known of the highlighted line beside it; models and drafters share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from outrider.app import render
from outrider.app.text import cut, padded

WIDE = 110  # columns from which on details stand beside the list
_GAP = "  "
Part = tuple[str, str]  # text and its style


class Browser(ModalScreen[None]):
    """Calls `typed`, `highlighted` and `chosen`; those who inherit answer with `show` and `tell`."""

    BINDINGS: ClassVar = [
        Binding("escape,ctrl+c", "leave", "Close", show=False, priority=True),
        Binding("down,ctrl+n", "step('down')", "Next", show=False, priority=True),
        Binding("up,ctrl+p", "step('up')", "Previous", show=False, priority=True),
        Binding("pagedown", "step('page_down')", "Page down", show=False, priority=True),
        Binding("pageup", "step('page_up')", "Page up", show=False, priority=True),
        Binding("shift+down", "details('down')", "Details down", show=False, priority=True),
        Binding("shift+up", "details('up')", "Details up", show=False, priority=True),
    ]
    AUTO_FOCUS = "#browser Input"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 - as the library declares it
    WORDS = "Words to look for"
    KEYS = ""  # what the keys do
    FILTERED = True  # whether there are words to look for; without them letters are keys

    def __init__(self) -> None:
        super().__init__()
        self._beneath: Sequence[Part] | None = None  # what is shown under the list

    def compose(self) -> ComposeResult:
        """Words, list and details, what runs, keys."""
        with Vertical(id="browser"):
            yield Input(placeholder=self.WORDS, compact=True)
            yield Static("", markup=False, classes="head")
            with Container(classes="body"):
                yield OptionList(markup=False, compact=True)
                with VerticalScroll(classes="details", can_focus=False):
                    yield Static("", markup=False)
            yield Static("", markup=False, classes="running")
            yield Static("", markup=False, classes="notice")
            yield Static(self.KEYS, markup=False, classes="footer")

    # ------------------------------------------------------------------------------------------------ for who inherits

    def typed(self, words: str) -> None:
        """The words have changed."""

    def highlighted(self, place: int) -> None:
        """Another line is highlighted."""

    def chosen(self, place: int) -> None:
        """Enter, or a click."""

    @property
    def words(self) -> str:
        """What is looked for."""
        return self.query_one(Input).value.strip()

    @property
    def place(self) -> int | None:
        """The highlighted line."""
        return self.query_one(OptionList).highlighted

    def show(self, head: str, lines: Sequence[Content], place: int | None) -> None:
        """Put these lines into the list and highlight one of them."""
        self.query_one(".head", Static).update(head)
        found = self.query_one(OptionList)
        with self.prevent(OptionList.OptionHighlighted):
            found.clear_options()
            found.add_options([Option(line) for line in lines])
            found.highlighted = min(place, len(lines) - 1) if lines and place is not None else None
        if found.highlighted is not None:
            self.highlighted(found.highlighted)
        else:
            self.tell([])

    def redraw(self, lines: Sequence[Content]) -> None:
        """The same lines with other words in them."""
        found = self.query_one(OptionList)
        for place, line in enumerate(lines):
            if found.get_option_at_index(place).prompt != line:
                found.replace_option_prompt_at_index(place, line)

    def tell(self, parts: Sequence[Part]) -> None:
        """Show this beside the list."""
        self.query_one(".details Static", Static).update(Content.assemble(*parts))

    def run(self, parts: Sequence[Part]) -> None:
        """Show this under the list, nothing if there is nothing."""
        if parts == self._beneath:
            return
        self._beneath = parts
        line = self.query_one(".running", Static)
        line.display = bool(parts)
        line.update(Content.assemble(*parts))

    def say(self, text: str) -> None:
        """Show a sentence until another line is highlighted."""
        line = self.query_one(".notice", Static)
        line.display = bool(text)
        line.update(render.printable(text))

    # ------------------------------------------------------------------------------------------------ events

    def on_mount(self) -> None:
        """Nothing runs and nothing is to be said yet."""
        if not self.FILTERED:
            self.query_one(Input).display = False
            self.query_one(OptionList).focus()
        self.run([])
        self.say("")

    def on_input_changed(self, _: Input.Changed) -> None:
        """Other words."""
        self.say("")
        self.typed(self.words)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The highlighted line is meant."""
        event.stop()
        if self.place is not None:
            self.chosen(self.place)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Its details are wanted."""
        self.say("")
        self.highlighted(event.option_index)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was clicked."""
        self.chosen(event.option_index)

    def action_step(self, way: str) -> None:
        """Highlight another line; the focus stays with the words."""
        name = way if way.startswith("page") else f"cursor_{way}"
        getattr(self.query_one(OptionList), f"action_{name}")()

    def action_details(self, way: str) -> None:
        """Scroll the details."""
        getattr(self.query_one(".details", VerticalScroll), f"scroll_{way}")(animate=False)

    def action_leave(self) -> None:
        """Back to the chat."""
        self.dismiss()


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Sequence[int] = (),
    spare: Sequence[int] = (),
) -> tuple[str, list[str]]:
    """Head and lines in columns of at most `width` cells together. `right`: figures; `spare`: first to go."""
    lines = [tuple(head), *(tuple(render.printable(cell).replace("\n", " ") for cell in row) for row in rows)]
    widths = {n: max(render.cells(line[n]) for line in lines) for n in range(len(head))}
    leaving = [*spare, *(n for n in reversed(range(2, len(head))) if n not in spare)]
    while leaving and _sum(widths) > width:
        del widths[leaving.pop(0)]
    widths[0] = max(8, widths[0] - max(0, _sum(widths) - width))
    made = [_GAP.join(_cell(line[n], size, right=n in right) for n, size in widths.items()).rstrip() for line in lines]
    return made[0], made[1:]


def _sum(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _cell(text: str, width: int, *, right: bool) -> str:
    return padded(cut(text, width, "…"), width, right=right)
