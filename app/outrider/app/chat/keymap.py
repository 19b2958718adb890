"""Which keys do what: the registry's own, under a preset, under the user's. What cannot be is told and left out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.app.chat.actions import ACTIONS, BY_ID, Action
from outrider.app.config.fields import Fault, nearest
from outrider.app.config.read import File
from outrider.app.config.settle import Settings
from outrider.app.config.toml import key as dotted

PRESETS: dict[str, dict[str, tuple[str, ...]]] = {
    "default": {},
    "emacs": {
        "palette": ("alt+x",),
        "stop": ("escape", "ctrl+g"),
        "new": (),
        "editor": ("alt+e",),
        "copy": ("alt+w", "c", "w"),
        "page_down": ("pagedown", "ctrl+v"),
        "page_up": ("pageup", "alt+v"),
        "previous_message": ("alt+up", "alt+p", "p"),
        "next_message": ("alt+down", "alt+n", "n"),
    },
    "vim": {
        "copy": ("ctrl+y", "c", "y"),
        "previous_message": ("alt+up", "k"),
        "next_message": ("alt+down", "j"),
        "top": ("ctrl+home", "g"),
        "bottom": ("ctrl+end", "G"),
        "page_up": ("pageup", "K"),
        "page_down": ("pagedown", "J"),
        "prompt": ("i",),
        "help": ("f1", "?"),
        "palette": ("ctrl+p", ":"),
        "undo": ("u",),
        "keep_going": (".",),
        "inspector": ("f8", "I"),
        "find": ("ctrl+f", "/"),
    },
    "no-fkeys": {
        "help": ("alt+h",),
        "chats": ("alt+c",),
        "next_drafter": ("alt+d",),
        "previous_drafter": ("alt+s",),
        "drafting": ("alt+o",),
        "marks": ("alt+m",),
        "settings": ("alt+e",),
        "stats": ("alt+t",),
        "compare": ("alt+r",),
        "log": ("alt+l",),
        "inspector": ("alt+i", "i"),
    },
}
"""What a preset changes. A key that it gives away is taken from whoever has it in the registry."""

_SAME = "the same byte as {} in most terminals"
_TYPING = "needed for typing"
REFUSED = {
    "ctrl+m": _SAME.format("enter"),
    "ctrl+i": _SAME.format("tab"),
    "ctrl+h": _SAME.format("backspace"),
    "ctrl+left_square_bracket": _SAME.format("escape"),
    "ctrl+j": "a new line",
    "ctrl+d": "quitting on an empty prompt, deleting elsewhere",
    "ctrl+s": "stopping the output of some terminals",
    "ctrl+z": "suspending or undoing",
    "ctrl+backslash": "ending programs",
    "ctrl+a": "the start of the line, and a prefix of screen",
    "ctrl+b": "a prefix of tmux",
    **dict.fromkeys(("enter", "shift+enter", "alt+enter", "tab", "shift+tab", "space", "backspace", "delete"), _TYPING),
    **dict.fromkeys(("up", "down", "left", "right", "home", "end"), _TYPING),
}
"""Keys that no action can have, and what they are for."""
OWNED = {"escape": "stop", "ctrl+c": "interrupt", "ctrl+q": "quit"}
"""Keys that only one action can have."""
KEPT = ("quit", "stop", "interrupt", "help", "palette")
"""Actions that are never without their own keys."""
_RISKY = re.compile(r"ctrl\+(t|w|tab)|f1[01]|alt\+\d|(ctrl\+shift\+[a-z])|(super|hyper|meta)\+.*")

_MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
_RENAMED = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
_NAMED = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "insert", "delete", "backspace", "tab")


def _sign(letter: str) -> str:
    name = unicodedata.name(letter).lower().replace("-", "_").replace(" ", "_")
    return _RENAMED.get(name, name)


SIGNS = {letter: _sign(letter) for letter in map(chr, range(33, 127)) if not letter.isalnum()}
_SIGNED = {f"alt+{sign}" for sign in SIGNS.values()}  # only a terminal with the Kitty protocol sends these
_BASES = {
    *(*_NAMED, "enter", "escape", "space"),
    *(f"f{number}" for number in range(1, 25)),
    *map(chr, range(ord("a"), ord("z") + 1)),
    *map(str, range(10)),
    *SIGNS.values(),
}


@dataclass(frozen=True, slots=True)
class Keymap:
    """The actions with the keys that hold; `faults` are those of the user's own map."""

    actions: tuple[Action, ...]
    faults: tuple[Fault, ...] = ()

    def letters(self) -> dict[str, Action]:
        """What single letters do while a reply has the focus."""
        return {letter: action for action in self.actions for letter in action.on_message}

    def keys_of(self, action: str) -> tuple[str, ...]:
        """The keys of an action that work anywhere."""
        return next(one.keys for one in self.actions if one.id == action)

    def first(self, action: str) -> str:
        """Its first key as people write it, else its slash command, else the way to the palette."""
        keys = self.keys_of(action)
        return shown(keys[0]) if keys else f"/{BY_ID[action].slash or 'palette'}"


def keymap(settings: Settings) -> Keymap:
    """The keys that the settings ask for."""
    return build(settings.values["keys.preset"], settings.values["keys.bind"], settings.file)


def build(preset: str, bind: Mapping[str, Sequence[str]], file: File | None = None) -> Keymap:
    """The registry under a preset under the user's own map."""
    mine = _Mine(file)
    for action, names in bind.items():
        mine.take(action, names)
    actions = []
    for action in ACTIONS:
        told = mine.keys.get(action.id)
        if told is None or (action.id in KEPT and not any(len(name) > 1 for name in told)):
            if told is not None:
                mine.blame(action.id, "cannot be left without a key; it keeps its own.")
            told = (*(told or ()), *_under(preset, action))
            told = tuple(name for name in dict.fromkeys(told) if mine.owner.get(name, action.id) == action.id)
        keys = tuple(name for name in told if len(name) > 1)
        actions.append(replace(action, keys=keys, on_message=tuple(name for name in told if len(name) == 1)))
    return Keymap(tuple(actions), tuple(mine.faults))


def is_function_key(name: str) -> bool:
    """Whether this is F1 or one of its kin, whatever is held down with it."""
    return re.fullmatch(r"f\d+", name.rpartition("+")[2]) is not None


def _under(preset: str, action: Action) -> tuple[str, ...]:
    """The keys of an action under a preset."""
    changes = PRESETS[preset]
    if action.id in changes:
        return changes[action.id]
    given = {name for names in changes.values() for name in names}
    given.update(name for name in own_keys(action) if preset == "no-fkeys" and is_function_key(name))
    return tuple(name for name in own_keys(action) if name not in given)


def own_keys(action: Action) -> tuple[str, ...]:
    """All keys that the registry gives to an action, those on a focused reply last."""
    return (*action.keys, *action.on_message)


def short(name: str) -> str:
    """A key where there is little room: ^p for ctrl+p."""
    text = shown(name)
    return f"^{text[5:]}" if text.startswith("ctrl+") and len(text) == 6 else text


def shown(name: str) -> str:
    """A key as people write it: F4, ctrl+p, alt+<."""
    signs = {sign: letter for letter, sign in SIGNS.items()}
    *modifiers, base = name.split("+")
    base = signs.get(base, base.upper() if re.fullmatch(r"f\d+", base) else base)
    return "+".join((*modifiers, base))


def risky(name: str) -> bool:
    """Whether some terminals keep this key for themselves, or do not send it."""
    return _RISKY.fullmatch(name) is not None or name in _SIGNED


def spelt(text: str) -> str:
    """The name of a key as the terminal library has it. Raises ValueError with a sentence."""
    name = text.strip()
    if len(name) == 1 and name.isprintable() and name != " ":
        return name
    *modifiers, base = _parts(name)
    base = SIGNS.get(base, base if len(base) == 1 and not base.isascii() else base.lower())
    base = {"esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "del": "delete"}.get(base, base)
    wrong = [one for one in modifiers if one not in _MODIFIERS]
    if wrong or base not in _BASES:
        names = _MODIFIERS if wrong else _BASES
        part = wrong[0] if wrong else base
        raise ValueError(f"{text!r} is no key. {_near(part, names, name)}".strip())
    return "+".join((*sorted(set(modifiers)), base))


def _parts(name: str) -> list[str]:
    """Modifiers, then the key itself, which may be a plus sign."""
    if name.endswith("++"):
        return [*name[:-2].lower().split("+"), "+"]
    *modifiers, base = name.split("+")
    return [*(one.strip().lower() for one in modifiers), base.strip()]


def _near(part: str, names: Iterable[str], name: str) -> str:
    first = re.split(r"[-+ ]", name)[0].lower()
    if "-" in name and first in (*_MODIFIERS, "c", "m"):
        return f"Write it as {'ctrl' if first == 'c' else 'alt' if first == 'm' else first}+{name.rpartition('-')[2]}."
    return nearest(part, names) or "Keys are written as in ctrl+n, alt+x, f5 or pageup."


class _Mine:
    """The user's own map while it is read."""

    def __init__(self, file: File | None) -> None:
        self.keys: dict[str, tuple[str, ...]] = {}
        self.owner: dict[str, str] = {}
        self.faults: list[Fault] = []
        self._file = file

    def blame(self, action: str, text: str, hint: str = "") -> None:
        line = self._line(action)
        where = f"{self._file.path.name}, line {line}" if self._file and line else "keys"
        self.faults.append(Fault(where, f"{dotted('keys', 'bind', action)} {text}", hint, line))

    def _line(self, action: str) -> int:
        return self._file.lines.of("keys", "bind", action) if self._file else 0

    def take(self, action: str, names: Sequence[str]) -> None:
        """The keys of one line."""
        if action not in BY_ID:
            self.blame(action, "is no action.", nearest(action, BY_ID) or "`outrider keys` lists them.")
            return
        kept = []
        for text in names:
            try:
                name = spelt(text)
                self._check(action, name)
            except ValueError as error:
                self.blame(action, f"cannot have this key: {error}")
                continue
            self.owner[name] = action
            kept.append(name)
        if kept or not names:
            self.keys[action] = tuple(kept)

    def _check(self, action: str, name: str) -> None:
        if name in REFUSED:
            raise ValueError(f"{shown(name)} is {REFUSED[name]}.")
        if OWNED.get(name, action) != action:
            raise ValueError(f"{shown(name)} always belongs to {OWNED[name]}.")
        other = self.owner.get(name, action)
        if other != action:
            line = self._line(other)
            raise ValueError(f"{shown(name)} is given to {other} too" + (f", in line {line}." if line else "."))
