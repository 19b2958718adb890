"""The code blocks of a text, and the choice of one of them by its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.mapping import parser

_FIRST = 48  # characters of the first line that are shown


@dataclass(frozen=True, slots=True)
class Code:
    """One block, without its fence and its last line break."""

    language: str
    text: str

    @property
    def title(self) -> str:
        """`python, 12 lines: def f(x):`."""
        lines = self.text.split("\n")
        first = next((line.strip() for line in lines if line.strip()), "")
        count = f"{len(lines)} line{'s' if len(lines) > 1 else ''}"
        return f"{self.language or 'code'}, {count}: {first[:_FIRST]}{'…' if len(first) > _FIRST else ''}"


def codes_of(markdown: str) -> list[Code]:
    """All code blocks of a text, in order; of an unfinished fence what there is."""
    return [
        Code(token.info.split(maxsplit=1)[0] if token.info.strip() else "", token.content.removesuffix("\n"))
        for token in parser().parse(markdown)
        if token.type in ("fence", "code_block") and token.content.strip()
    ]


class CodesScreen(ModalScreen[int]):
    """Ends with the number of the chosen block, 0 for none."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c", "leave", "Close", show=False)]

    def __init__(self, codes: list[Code]) -> None:
        super().__init__()
        self._codes = codes

    def compose(self) -> ComposeResult:
        """One line for each."""
        lines = [f"{number}  {harmless(code.title)}" for number, code in enumerate(self._codes, 1)]
        with Vertical(id="codes"):
            yield Static("Which code block?", markup=False, classes="title")
            yield OptionList(*lines, markup=False)
            yield Static("its number, or arrows and enter; esc closes", markup=False, classes="footer")

    def on_key(self, event: Key) -> None:
        """A number decides where one digit is enough."""
        if event.character and event.character.isdigit() and 1 <= int(event.character) <= len(self._codes):
            event.stop()
            self.dismiss(int(event.character))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """The line under the cursor was chosen."""
        self.dismiss(event.option_index + 1)

    def action_leave(self) -> None:
        """Choose none."""
        self.dismiss(0)
