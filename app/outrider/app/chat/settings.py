"""Every setting as a row: its value, where that comes from, what it may be, and what becomes of a change. Knows no widgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from outrider.app import files
from outrider.app.chat.follow import Follower, is_later
from outrider.app.chat.keymap import build, own_keys
from outrider.app.config import FIELDS, Field
from outrider.app.config.change import put, take_out
from outrider.app.config.edit import CannotEdit
from outrider.app.config.fields import PRESET, SECTIONS
from outrider.app.config.read import Unreadable, config_file
from outrider.app.config.remember import REMEMBERED, forget
from outrider.app.config.schema import DEFAULT
from outrider.app.config.template import template
from outrider.app.config.toml import written

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

Kind = Literal["switch", "choice", "text", "file"]
_LOCKS = {"flag": "the command line decides it", "environment": "a variable of the environment decides it"}
_OVER = ("persona", "model", "preset")  # what holds over the file
_FEW = 6  # choices that are named
_SHOWN = 36  # characters of a value in a row


class Refused(Exception):
    """A change that cannot be made: a sentence that says why."""


def fresh_file() -> str:
    """A new file of settings, everything in it commented out."""
    return template({action.id: own_keys(action) for action in build("default", {}).actions})


def section_title(name: str) -> str:
    """What a section is about."""
    return re.split("[.;]", SECTIONS[name].__doc__ or name)[0]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as it is now. `locked` says why it cannot be changed here, empty if it can."""

    field: Field
    value: Any
    place: str
    kind: Kind
    locked: str
    own: Any
    """What the chat was told in its place, None if nothing."""

    @property
    def path(self) -> str:
        """Its name."""
        return self.field.path

    @property
    def choices(self) -> list[Any]:
        """What it can be switched between, empty where it is typed."""
        if self.kind not in ("switch", "choice"):
            return []
        words: list[Any] = [False, True] if self.kind == "switch" else self.field.choices
        return [DEFAULT, *words] if self.field.unset and DEFAULT not in words else words

    @property
    def words(self) -> str:
        """Its value in a few letters."""
        return worded(self.field, self.value)

    @property
    def typed(self) -> str:
        """Its value as one would type it."""
        return self.value if isinstance(self.value, str) else written(self.value)

    @property
    def per_model(self) -> bool:
        """Whether it can be set for one model alone."""
        return PRESET.get(self.field.name) is self.field

    def about(self, model: str, *, brief: bool = False) -> list[tuple[str, str]]:
        """What there is to say of it, the most important first: names and what they are. `brief`: only that."""
        told = [("what", self.field.help), ("now", f"{worded(self.field, self.value, 200)} · {self.place}")]
        if self.locked:
            told.append(("locked", self.locked))
        if self.own is not None:
            told.append(("this chat", f"{worded(self.field, self.own, 200)}, told to the chat itself"))
        if brief:
            return told
        many = len(self.choices) > _FEW
        told.append(("may be", f"one of {len(self.choices)}: enter lists them" if many else self.field.words))
        told.append(("default", worded(self.field, self.field.default, 200)))
        told.append(("variable", self.field.env))
        told.append(("holds", "from the next start on" if is_later(self.path) else "at once"))
        if self.per_model:
            told.append(("m", f"sets it for {model} alone"))
        return told


def worded(field: Field, value: Any, limit: int = _SHOWN) -> str:
    """A value for people, on one line."""
    if value == DEFAULT and field.unset:
        text = field.unset
    elif isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, str):
        text = " ".join(value.split())
    elif field.path == "keys.bind":
        text = f"{len(value)} of your own" if value else "none of your own"
    elif isinstance(value, list | dict):
        text = written(value) if value else "none"
    else:
        text = written(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def kind_of(field: Field) -> Kind:
    """How a setting is changed."""
    if field.path == "keys.bind":
        return "file"
    return "switch" if field.switch else "choice" if field.closed else "text"


class Board:
    """The settings of a running chat: all rows, and changes to the user's own file, taken over at once."""

    def __init__(self, screen: ChatScreen, follower: Follower) -> None:
        self._screen = screen
        self._follower = follower

    @property
    def model(self) -> str:
        """The model that a change can be made for."""
        return self._screen.session.options.model.model

    def rows(self, words: str = "") -> list[Row]:
        """All of them in the order of the file, or those that have all of the words somewhere."""
        wanted = words.lower().split()
        return [self.row(path) for path, field in FIELDS.items() if _has(field, wanted)]

    def row(self, path: str) -> Row:
        """One of them."""
        settings, field = self._follower.settings, FIELDS[path]
        kind = kind_of(field)
        lock = _LOCKS.get(settings.sources[path].kind, "")
        locked = f"{lock}: {settings.place(path)}" if lock else ""
        if kind == "file":
            locked = locked or "a table of its own: o opens the file"
        own = self._follower.own(self._screen.session, path)
        return Row(field, settings.values[path], settings.place(path), kind, locked, own)

    def problem(self, path: str, text: str) -> str:
        """What is wrong with a value as it is typed, empty if nothing."""
        try:
            self._read(path, text)
        except ValueError as error:
            return f"{FIELDS[path].name} {error}"
        return ""

    def _read(self, path: str, text: str) -> Any:
        return FIELDS[path].read(text if text.strip() or path == "chat.system" else DEFAULT)

    def put(self, path: str, value: Any, *, for_model: bool = False) -> str:
        """Write a value into the file and take it over; says what came of it. Text is read as in the file. Raises Refused."""
        row = self.row(path)
        if row.locked:
            raise Refused(f"{path} cannot be changed here: {row.locked}.")
        try:
            made = self._read(path, value) if isinstance(value, str) else FIELDS[path].checked(value)
        except ValueError as error:
            raise Refused(f"{FIELDS[path].name} {error}") from None
        where = ("models", self.model, FIELDS[path].name) if for_model else tuple(path.split("."))
        if for_model and not row.per_model:
            raise Refused(f"{path} cannot be set for a model.")
        self._changing(lambda: put(config_file(), where, made, fresh_file()))
        self._follower.reload(self._screen, "Settings")
        return self._outcome(path, made)

    def reset(self, path: str) -> str:
        """Take a value out of the file, and what was remembered of it; says what holds now. Raises Refused."""
        row = self.row(path)
        if row.locked:
            raise Refused(f"{path} cannot be changed here: {row.locked}.")
        self._changing(lambda: self._take_out(path))
        self._follower.reload(self._screen, "Settings")
        return self._outcome(path, FIELDS[path].default)

    def _take_out(self, path: str) -> None:
        take_out(config_file(), tuple(path.split(".")))
        if path in REMEMBERED:
            forget(path)

    def _changing(self, change: Callable[[], object]) -> None:
        try:
            change()
        except Unreadable as error:
            raise Refused(f"{error.fault.where}: {error.fault.text} Mend that first; o opens the file.") from None
        except CannotEdit as error:
            raise Refused(f"{error} o opens the file.") from None
        except OSError as error:
            raise Refused(f"{config_file()} cannot be written: {files.reason(error)}.") from None

    @property
    def keys(self) -> tuple[str, ...]:
        """What opens and closes the screen."""
        return self._follower.keymap.keys_of("settings")

    def reread(self) -> str:
        """Take over what was changed by hand; says what."""
        return self._follower.reload(self._screen, config_file().name)

    def step(self, path: str, by: int) -> str:
        """The next of the values that it can be switched between. Raises Refused."""
        row = self.row(path)
        if not row.choices and not row.locked:
            raise Refused(f"{path} is typed: enter.")
        at = row.choices.index(row.value) if row.value in row.choices else 0
        return self.put(path, row.choices[(at + by) % len(row.choices)] if row.choices else row.value)

    def _outcome(self, path: str, wanted: Any) -> str:
        """What came of a change."""
        settings = self._follower.settings
        if settings.values[path] != wanted:
            return (
                f"Written, but {settings.place(path)} says {worded(FIELDS[path], settings.values[path])}, which holds."
            )
        later = " from the next start on" if is_later(path) else ""
        return f"{path} is {worded(FIELDS[path], wanted, 80).rstrip('.')}{later}."

    def show(self, words: str = "") -> None:
        """Open the screen at a setting, or at those that have the words; a setting with a value after it is set."""
        path, _, value = words.partition(" ")
        if path in FIELDS and value.strip():
            try:
                self._screen.stage.tell(self.put(path, value.strip()))
            except Refused as error:
                self._screen.stage.tell(str(error))
            return
        from outrider.app.chat.settings_screen import SettingsScreen

        self._screen.app.push_screen(SettingsScreen(self, words))


def _has(field: Field, wanted: Iterable[str]) -> bool:
    text = f"{field.path} {field.help} {' '.join(field.choices)} {section_title(field.section)}".lower()
    return all(word in text or word in text.replace("_", " ") for word in wanted)
