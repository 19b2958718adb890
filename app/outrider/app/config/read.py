"""The file read: what it sets, and everything that is wrong with it, line by line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider.app.config.fields import BUNDLES, FIELDS, SECTIONS, Fault, Field, bundled, nearest, shown
from outrider.app.config.toml import Lines, key, mistake
from outrider.core.base import paths

NAME = "config.toml"
_EXAMPLES = {"personas": "brief", "presets": "*qwen*", "models": "starter"}
_LIMIT = 1 << 20  # bytes; a file of settings is never so long


def config_file() -> Path:
    """Where the settings are, be they there or not."""
    return paths.config_dir() / NAME


class Unreadable(Exception):
    """The file cannot be used at all: `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


@dataclass
class File:
    """What a file sets, every value checked. An empty one if there is none."""

    path: Path
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    """By dotted path, such as `look.theme`."""
    personas: dict[str, dict[str, Any]] = field(default_factory=dict)
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By pattern, in the order of the file."""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name."""
    faults: list[Fault] = field(default_factory=list)

    @cached_property
    def lines(self) -> Lines:
        """Where in the file things are."""
        return Lines(self.text)

    def blame(self, path: tuple[str, ...], text: str, hint: str = "") -> None:
        """Note what is wrong with the setting at `path`."""
        line = self.lines.of(*path)
        self.faults.append(Fault(f"{self.path.name}, line {line}", f"{key(*path)} {text}", hint, line))


def text_of(path: Path) -> str:
    """The text of a file of settings, empty if there is none. Raises Unreadable."""
    name = path.name
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Unreadable(Fault(name, f"cannot be read: {error.strerror}.", f"It is {path}.")) from error
    if len(data) > _LIMIT:
        raise Unreadable(Fault(name, f"is larger than {_LIMIT >> 20} MB.", "Is it the right file?"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(Fault(f"{name}, line {line}", "is not UTF-8.", "Save it as UTF-8.", line)) from error


def parsed(text: str, name: str = NAME) -> dict[str, Any]:
    """The tables of a text. Raises Unreadable with the line of a mistake."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, words = mistake(error, text)
        hint = 'Texts want quotes, as in theme = "dark".' if words == "Invalid value" else ""
        hint = f"{hint} Nothing of the file holds until this is mended.".strip()
        raise Unreadable(Fault(f"{name}, line {line}", f"{words}.", hint, line)) from error
    except RecursionError as error:
        raise Unreadable(Fault(name, "is nested too deeply.")) from error


def read(path: Path | None = None) -> File:
    """The settings of a file, the user's own by default. What is wrong is among its faults, and is left out."""
    path = path or config_file()
    file = File(path)
    try:
        text = text_of(path)
        tables = parsed(text, path.name)
    except Unreadable as error:
        file.faults.append(error.fault)
        return file
    file.text = text
    for name, table in tables.items():
        if name in SECTIONS:
            _section(file, name, table)
        elif name in BUNDLES:
            _bundles(file, name, table)
        else:
            _unknown_section(file, name)
    _check_persona(file)
    return file


def _unknown_section(file: File, name: str) -> None:
    homes = [path for path, one in FIELDS.items() if one.name == name]
    hint = f"It belongs into [{homes[0].partition('.')[0]}]." if homes else nearest(name, [*SECTIONS, *BUNDLES])
    file.blame((name,), "is no section.", hint or f"There are {', '.join([*SECTIONS, *BUNDLES])}.")


def _section(file: File, section: str, table: Any) -> None:
    if not isinstance(table, Mapping):
        file.blame((section,), f"must be a section, as in [{section}].")
        return
    known = {one.name: one for one in FIELDS.values() if one.section == section}
    if section == "keys" and "bind" in table:
        table = {**table, "bind": _bind(file, table["bind"])}
    found = _checked(file, (section,), table, known)
    file.values.update({f"{section}.{name}": value for name, value in found.items()})


def _bind(file: File, table: Any) -> dict[str, list[str]]:
    """Keys by action; whether there are such keys and actions is the keymap's to say."""
    if not isinstance(table, Mapping):
        file.blame(("keys", "bind"), "must be a section, as in [keys.bind].")
        return {}
    found = {}
    for action, told in table.items():
        names = [told] if isinstance(told, str) else told
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[action] = names
        else:
            file.blame(("keys", "bind", action), f'must be a list of keys such as ["ctrl+n"], not {shown(told)}.')
    return found


def _bundles(file: File, kind: str, table: Any) -> None:
    if not isinstance(table, Mapping):
        file.blame((kind,), f"must be sections, as in [{key(kind, _EXAMPLES[kind])}].")
        return
    known = bundled(kind)
    into: dict[str, dict[str, Any]] = getattr(file, kind)
    for name, values in table.items():
        if isinstance(values, Mapping):
            into[name] = _checked(file, (kind, name), values, known)
        else:
            file.blame((kind, name), f"must be a section, as in [{key(kind, name)}].")


def _checked(file: File, at: tuple[str, ...], table: Mapping[str, Any], known: Mapping[str, Field]) -> dict[str, Any]:
    found = {}
    for name, value in table.items():
        if name not in known:
            file.blame((*at, name), "is no setting.", _elsewhere(at, name, known))
            continue
        try:
            found[name] = known[name].checked(value)
        except ValueError as error:
            file.blame((*at, name), str(error))
    return found


def _elsewhere(at: tuple[str, ...], name: str, known: Mapping[str, Field]) -> str:
    """What may have been meant by a name that is not known here."""
    dashed = name.replace("-", "_")
    if dashed in known:
        return f"Did you mean {dashed}?"
    homes = [field.section for field in FIELDS.values() if field.name == dashed and field.section not in at]
    if homes:
        return f"It belongs into [{homes[0]}]."
    return nearest(name, known) or f"There are {', '.join(known)}."


def _check_persona(file: File) -> None:
    name = file.values.get("chat.persona", "default")
    if name != "default" and name not in file.personas:
        file.blame(("chat", "persona"), f"names {shown(name)}, but there is no such persona.", persona_hint(file, name))
        del file.values["chat.persona"]


def persona_hint(file: File, name: str) -> str:
    """What to do about a persona that is not there."""
    if not file.personas:
        return f"Write one: a section [{key('personas', name)}] in {file.path}."
    return nearest(name, file.personas) or f"There are {', '.join(sorted(file.personas))}."
