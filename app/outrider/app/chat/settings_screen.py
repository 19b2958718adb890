"""The settings over the screen: sections, every setting with its value, what it means, and the place to change it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option, OptionDoesNotExist

from outrider.app.chat.letters import Burst
from outrider.app.chat.settings import Board, Refused, Row, fresh_file, section_title, worded
from outrider.app.config.edit import replace
from outrider.app.config.fields import SECTIONS
from outrider.app.config.read import config_file
from outrider.app.editor import editor

Change = Callable[[], str]
_NARROW = 90  # cells; below them the sections have no room
_ROOMY = 116  # cells; below them the keys are told in short
_NAME = 24  # cells of a name
_LOW = 32  # lines; below them only the most important is said of a setting
_KEYS = (
    "enter change · ← → next value · r default · m for this model · / look for · tab section · o open the file · esc"
)
_FEW_KEYS = "enter change · ← → value · r default · m model · / find · tab section · o file · esc"


class SettingsScreen(ModalScreen[None]):
    """Changes settings of the user's own file; each change holds at once where it can."""

    BINDINGS: ClassVar = [
        Binding("escape,ctrl+c", "back", "Close", show=False),
        Binding("ctrl+f", "look_for", "Look for", show=False),
        Binding("right", "step(1)", "Next value", show=False),
        Binding("left", "step(-1)", "Value before", show=False),
        Binding("delete", "reset", "Default", show=False),
        Binding("tab", "section(1)", "Next section", show=False),
        Binding("shift+tab", "section(-1)", "Section before", show=False),
    ]
    AUTO_FOCUS = "#rows"

    def __init__(self, board: Board, words: str = "") -> None:
        super().__init__()
        self._board = board
        self._begin = words
        self._editing: Row | None = None
        self._for_model = False
        self._brief = False
        self._burst = Burst(self, self._letter)

    def compose(self) -> ComposeResult:
        """Sections, settings, what one of them is, and its editor."""
        with Vertical(id="settings"):
            yield Input(placeholder="Words to look for", compact=True, id="settings-words")
            with Horizontal(id="settings-body"):
                yield OptionList(
                    *(Option(section_title(name), name) for name in SECTIONS), id="sections", markup=False, compact=True
                )
                yield OptionList(id="rows", markup=False, compact=True)
            with VerticalScroll(id="settings-about", can_focus=False):
                yield Static(id="about", markup=False)
            with Vertical(id="settings-editor"):
                yield Static(id="editor-title", markup=False)
                yield Input(compact=True, id="editor-input")
                yield OptionList(id="editor-choices", markup=False, compact=True)
            yield Static(id="told", markup=False)
            yield Static(_KEYS, markup=False, classes="footer", id="settings-keys")

    def on_mount(self) -> None:
        """At the setting that was asked for, or with the words looked for."""
        self._close_editor()
        paths = {row.path for row in self._board.rows()}
        words = "" if self._begin in paths else self._begin
        self._words.display = bool(words)
        self._words.value = words
        self._fill(self._begin if self._begin in paths else "")
        self.query_one("#sections", OptionList).can_focus = False

    def on_resize(self, event: Resize) -> None:
        """Once everything is there."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """The sections only where there is room, and everything shorter where there is little."""
        width, height = self.size
        self.query_one("#sections").display = width >= _NARROW
        self.query_one("#settings-keys", Static).update(_KEYS if width >= _ROOMY else _FEW_KEYS)
        self._brief = height < _LOW
        self._tell_about(self._row)

    @property
    def _rows(self) -> OptionList:
        return self.query_one("#rows", OptionList)

    @property
    def _words(self) -> Input:
        return self.query_one("#settings-words", Input)

    @property
    def _row(self) -> Row | None:
        """The one that is highlighted."""
        shown = self._rows
        if shown.highlighted is None:
            return None
        return self._board.row(shown.get_option_at_index(shown.highlighted).id or "")

    def _fill(self, path: str = "") -> None:
        """List what is looked for, with `path` highlighted."""
        shown, rows = self._rows, self._board.rows(self._words.value)
        shown.clear_options()
        section = ""
        for row in rows:
            if row.field.section != section:
                section = row.field.section
                shown.add_option(Option(Content.styled(section_title(section), "bold"), disabled=True))
            shown.add_option(Option(_line(row), row.path))
        if not rows:
            shown.add_option(Option("No setting has all of these words", disabled=True))
            self._tell_about(None)
        else:
            self._highlight(path if path in {row.path for row in rows} else rows[0].path)

    def _highlight(self, path: str) -> None:
        try:
            self._rows.highlighted = self._rows.get_option_index(path)
        except OptionDoesNotExist:
            return
        self._tell_about(self._row)

    def _tell_about(self, row: Row | None) -> None:
        parts: list[str | tuple[str, str]] = []
        if row is not None:
            parts.append((row.path, "bold $text-primary"))
            for name, text in row.about(self._board.model, brief=self._brief):
                parts += ["\n", (f"{name:<10}", "$text-muted"), text]
            places = list(SECTIONS)
            self.query_one("#sections", OptionList).highlighted = places.index(row.field.section)
        self.query_one("#about", Static).update(Content.assemble(*parts))

    def _tell(self, text: str, style: str = "$text-success") -> None:
        self.query_one("#told", Static).update(Content.styled(text, style))

    # ------------------------------------------------------------------------------------------------ moving

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Say what the setting is."""
        if event.option_list is self._rows and event.option.id:
            self._tell_about(self._board.row(event.option.id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A section was clicked, a value chosen, or a setting is to be changed."""
        event.stop()
        if event.option_list.id == "sections":
            self._to_section(event.option.id or "")
        elif event.option_list is self._rows:
            self.action_change()
        elif self._editing is not None:
            self._put(self._editing.choices[event.option_index])

    def action_section(self, by: int) -> None:
        """To the first setting of the next section."""
        row = self._row
        names = list(dict.fromkeys(one.field.section for one in self._board.rows(self._words.value)))
        if self._editing is None and row is not None:
            self._to_section(names[(names.index(row.field.section) + by) % len(names)])

    def _to_section(self, name: str) -> None:
        row = next((one for one in self._board.rows(self._words.value) if one.field.section == name), None)
        if row is not None:
            self._highlight(row.path)
        self.set_focus(self._rows)

    def action_look_for(self) -> None:
        """To the words."""
        if self._editing is None:
            self._words.display = True
            self.set_focus(self._words)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look again, or check what is typed."""
        if event.input is self._words:
            self._fill(row.path if (row := self._row) else "")
        elif self._editing is not None:
            problem = self._board.problem(self._editing.path, event.value)
            self._tell(problem, "$text-error")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """To the settings that were found, or take the value."""
        if event.input is self._words:
            self.set_focus(self._rows)
        elif self._editing is not None:
            self._put(event.value)

    # ------------------------------------------------------------------------------------------------ changing

    def action_change(self, for_model: bool = False) -> None:
        """Switch what is on or off, else open the editor."""
        row = self._row
        if row is None or self._editing is not None:
            return
        if row.locked:
            self._tell(f"{row.path}: {row.locked}.", "$text-warning")
        elif for_model and not row.per_model:
            self._tell(f"{row.path} is the same for all models.", "$text-warning")
        elif row.kind == "switch" and not for_model:
            self.action_step(1)
        else:
            self._edit(row, for_model)

    def _edit(self, row: Row, for_model: bool) -> None:
        self._editing, self._for_model = row, for_model
        whom = f" for {self._board.model} alone" if for_model else ""
        words = "" if row.choices else f" · {row.field.words}"
        self.query_one("#editor-title", Static).update(f"{row.path}{whom}{words} · esc leaves it as it is")
        self.query_one("#settings-editor").display = True
        field, choices = self.query_one("#editor-input", Input), self.query_one("#editor-choices", OptionList)
        field.display, choices.display = not row.choices, bool(row.choices)
        self._tell("")
        if row.choices:
            choices.clear_options()
            choices.add_options([Option(worded(row.field, one)) for one in row.choices])
            choices.highlighted = row.choices.index(row.value) if row.value in row.choices else 0
            self.set_focus(choices)
        else:
            field.value = row.typed
            self.set_focus(field)

    def _close_editor(self) -> None:
        self._editing = None
        self.query_one("#settings-editor").display = False
        self.set_focus(self._rows)

    def _put(self, value: object) -> None:
        assert self._editing is not None
        row, for_model = self._editing, self._for_model
        if self._do(lambda: self._board.put(row.path, value, for_model=for_model)):
            self._close_editor()

    def action_step(self, by: int) -> None:
        """The next value of what has a few."""
        if (row := self._row) is not None and self._editing is None:
            self._do(lambda: self._board.step(row.path, by))

    def action_reset(self) -> None:
        """Back to the default."""
        if (row := self._row) is not None and self._editing is None:
            self._do(lambda: self._board.reset(row.path))

    def _do(self, change: Change) -> bool:
        row = self._editing or self._row
        try:
            self._tell(change())
        except Refused as error:
            self._tell(str(error), "$text-error")
            return False
        self._fill(row.path if row else "")
        return True

    def action_open(self) -> None:
        """The whole file in the user's editor."""
        if self._editing is not None:
            return
        file = config_file()
        try:
            words = editor()
            if not words:
                self._tell(f"There is no editor here: set EDITOR. The file is {file}.", "$text-warning")
                return
            if not file.exists():
                replace(file, fresh_file())
            with self.app.suspend():
                subprocess.run([*words, str(file)], check=False)
        except (OSError, ValueError, SuspendNotSupported) as error:
            self._tell(f"The editor could not be started: {error}. The file is {file}.", "$text-error")
            return
        self._tell(self._board.reread())
        self._fill(row.path if (row := self._row) else "")

    def action_back(self) -> None:
        """Out of the editor, out of the words, out of the settings."""
        if self._editing is not None:
            self._tell("")
            self._close_editor()
        elif self._words.display and (self._words.value or self.focused is self._words):
            self._words.value = ""
            self._words.display = False
            self.set_focus(self._rows)
        else:
            self.dismiss()

    def on_key(self, event: Key) -> None:
        """The key that opens the settings closes them too; a letter alone acts, more of them are words to look for."""
        if not event.is_printable:
            self._burst.flush()
        if self._editing is None and event.key in self._board.keys:
            event.stop()
            self.dismiss()
        elif event.is_printable and event.character and self._editing is None:  # a field has taken its own
            event.stop()
            self._burst.add(event.character, self.focused or self)

    def on_burst_quiet(self, event: Burst.Quiet) -> None:
        """No other letter has followed."""
        self._burst.settle(event)

    def _letter(self, letters: str) -> None:
        alone = {
            "/": self.action_look_for,
            "r": self.action_reset,
            "m": lambda: self.action_change(for_model=True),
            "o": self.action_open,
        }
        if letters in alone:
            alone[letters]()
        elif len(letters) > 1 and self._editing is None:
            self.action_look_for()
            self._words.insert_text_at_cursor(letters.removeprefix("/"))


def _line(row: Row) -> Content:
    """Name, value, and where that comes from if it is no default."""
    changed = row.place != "default" or row.own is not None
    parts: list[str | tuple[str, str]] = [
        ("  " if not row.locked else "× ", "$text-muted"),
        f"{row.field.name:<{_NAME}}",
        (row.words, "bold" if changed else "$text-muted"),
    ]
    if row.place != "default":
        parts.append((f"  {row.place}", "$text-muted"))
    if row.own is not None:
        parts.append((f"  this chat: {worded(row.field, row.own)}", "$text-warning"))
    return Content.assemble(*parts)
