"""Where a race is put together: who rides, on which prompt, how many tokens; and the list of saved races."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from outrider.app.chat.clean import harmless
from outrider.app.chat.compare.lineup import Lineup
from outrider.app.chat.letters import TypeThrough

_KEYS = (
    "space picks · ← → draft length · d once more · tab prompts · - + tokens · o saved ones · enter starts · esc closes"
)

_WIDTH = 96  # cells of the box at most


class SetupScreen(TypeThrough["Lineup | Path | None"], ModalScreen["Lineup | Path | None"]):
    """Ends with the lineup as it was made, the path of a saved race, or None."""

    BINDINGS: ClassVar = [
        Binding("escape,f7,ctrl+c", "leave", "Close", show=False),
        Binding("enter", "start", "Start", show=False, priority=True),
        Binding("space", "pick", "Pick", show=False, priority=True),
        Binding("left", "pin(-1)", "Shorter drafts", show=False),
        Binding("right", "pin(1)", "Longer drafts", show=False),
        Binding("d", "double", "Once more", show=False),
        Binding("minus", "limit(-1)", "Fewer tokens", show=False),
        Binding("plus,equals_sign", "limit(1)", "More tokens", show=False),
        Binding("o", "saved", "Saved races", show=False),
    ]
    AUTO_FOCUS = "#arms"

    def __init__(self, lineup: Lineup, saved: Sequence[Path]) -> None:
        super().__init__()
        self.lineup = lineup
        self._saved = saved

    def compose(self) -> ComposeResult:
        """Arms over prompts over what the keys do."""
        with Vertical(id="compare-setup"):
            yield Static("Compare: two or three, one after the other", markup=False, classes="group")
            yield OptionList(id="arms", markup=False, compact=True)
            yield Static("On", markup=False, classes="group")
            yield OptionList(id="prompts", markup=False, compact=True)
            yield Static("", markup=False, id="compare-limit")
            yield Static(_KEYS, markup=False, classes="footer")

    def on_mount(self) -> None:
        """Fill both lists."""
        self._arms.add_options([Option(self._arm(place)) for place in range(len(self.lineup.rows))])
        self._arms.highlighted = 0
        self._prompts.add_options([Option(self._prompt(place)) for place in range(len(self.lineup.prompts))])
        self._prompts.highlighted = self.lineup.prompt
        self._tell()

    @property
    def _arms(self) -> OptionList:
        return self.query_one("#arms", OptionList)

    @property
    def _prompts(self) -> OptionList:
        return self.query_one("#prompts", OptionList)

    def _arm(self, place: int) -> Content:
        row = self.lineup.rows[place]
        sign = ("[x] ", "$text-success") if row.picked else ("[ ] ", "$text-muted")
        about = f"  {harmless(row.about)}" if row.about else ""
        return self._fitting(Content.assemble(sign, row.arm.label, (about, "$text-muted")))

    def _prompt(self, place: int) -> Content:
        prompt = self.lineup.prompts[place]
        sign = ("(•) ", "$text-success") if place == self.lineup.prompt else ("( ) ", "$text-muted")
        return self._fitting(Content.assemble(sign, prompt.name, (f"  {harmless(prompt.first_words)}", "$text-muted")))

    def _fitting(self, line: Content) -> Content:
        """One line of the box."""
        return line.truncate(max(8, min(_WIDTH, self.app.size.width) - 8), ellipsis=True)

    def _tell(self, problem: str = "") -> None:
        limit = Content.assemble(("Tokens at most: ", "$text-muted"), str(self.lineup.limit))
        said = (f"   {problem}", "bold $text-warning") if problem else ""
        self.query_one("#compare-limit", Static).update(Content.assemble(limit, said))

    def _redraw(self) -> None:
        arms = self._arms
        if arms.option_count < len(self.lineup.rows):
            arms.add_option(Option(""))
        for place in range(len(self.lineup.rows)):
            arms.replace_option_prompt_at_index(place, self._arm(place))
        for place in range(len(self.lineup.prompts)):
            self._prompts.replace_option_prompt_at_index(place, self._prompt(place))
        self._tell()

    def _on_arms(self) -> int | None:
        return self._arms.highlighted if self._arms.has_focus else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The highlighted prompt is the one that counts."""
        if event.option_list is self._prompts and event.option_index != self.lineup.prompt:
            self.lineup.prompt = event.option_index
            self._redraw()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click picks."""
        if event.option_list is self._arms:
            self.lineup.toggle(event.option_index)
            self._redraw()

    def action_pick(self) -> None:
        """Pick the highlighted arm or not."""
        if (place := self._on_arms()) is not None:
            self.lineup.toggle(place)
            self._redraw()

    def action_pin(self, by: int) -> None:
        """Another draft length for the highlighted arm."""
        if (place := self._on_arms()) is not None:
            self.lineup.pin(place, by)
            self._redraw()

    def action_double(self) -> None:
        """The highlighted arm once more."""
        if (place := self._on_arms()) is not None:
            self.lineup.double(place)
            self._redraw()

    def action_limit(self, by: int) -> None:
        """More or fewer tokens."""
        self.lineup.change_limit(by)
        self._tell()

    def action_start(self) -> None:
        """Begin, or say what is missing."""
        if problem := self.lineup.problem():
            self._tell(problem)
        else:
            self.dismiss(self.lineup)

    def action_saved(self) -> None:
        """Choose a saved race instead."""
        if self._saved:
            self.app.push_screen(SavedScreen(self._saved), self._open)
        else:
            self._tell("No race is saved yet.")

    def _open(self, path: Path | None) -> None:
        if path is not None:
            self.dismiss(path)

    def action_leave(self) -> None:
        """Back to the chat."""
        self.dismiss(None)


class SavedScreen(ModalScreen["Path | None"]):
    """Ends with the chosen file, or None."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c,o", "leave", "Close", show=False)]
    AUTO_FOCUS = "#saved-races"

    def __init__(self, saved: Sequence[Path]) -> None:
        super().__init__()
        self._saved = saved

    def compose(self) -> ComposeResult:
        """The files, the newest first."""
        with Vertical(id="compare-saved"):
            yield Static("Saved races", markup=False, classes="group")
            yield OptionList(
                *(harmless(path.stem) for path in self._saved), id="saved-races", markup=False, compact=True
            )
            yield Static("enter opens · esc closes", markup=False, classes="footer")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(self._saved[event.option_index])

    def action_leave(self) -> None:
        """None."""
        self.dismiss(None)
