"""TOML written, and the lines on which a text has what. Reading is the standard library's."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WHERE = re.compile(r" \(at line (\d+), column (\d+)\)| \(at end of document\)")


def written(value: Any) -> str:
    """A value as TOML on one line. Raises TypeError for what is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key(str(name))} = {written(one)}" for name, one in value.items()) + " }"
            if value
            else "{}"
        )
    raise TypeError(type(value).__name__)


def key(*names: str) -> str:
    """A key, quoted where it must be."""
    return ".".join(name if _BARE.fullmatch(name) else written(name) for name in names)


def path_of(text: str) -> tuple[str, ...] | None:
    """The names of a dotted key, None if it is none."""
    try:
        found = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return None
    return _names(found) if "\n" not in text else None


def mistake(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line of a syntax error, and what is wrong there."""
    words = _WHERE.search(str(error))
    message = str(error)[: words.start()] if words else str(error)
    line = int(words[1]) if words and words[1] else max(1, len(lines_of(text.rstrip("\n"))))
    return line, message.replace("Cannot", "cannot", 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One header or one key with its value. Lines count from 0; `table` is the header that it belongs to."""

    path: tuple[str, ...]
    first: int
    last: int
    table: tuple[str, ...]
    header: bool = False


def lines_of(text: str) -> list[str]:
    """The lines as TOML counts them; a carriage return stays at the end of its line."""
    return text.split("\n")


def entries(text: str) -> list[Entry]:
    """Every header and key of a valid TOML text, in order."""
    lines = lines_of(text)
    found: list[Entry] = []
    table: tuple[str, ...] = ()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        last = at
        if line.startswith("["):
            table = _names(tomllib.loads(line))
            found.append(Entry(table, at, at, table, header=True))
        elif line and not line.startswith("#"):
            last = _end(lines, at)
            found.append(Entry((*table, *_key_of(line)), at, last, table))
        at = last + 1
    return found


def _key_of(line: str) -> tuple[str, ...]:
    """The names before the equals sign that ends them."""
    for place, letter in enumerate(line):
        if letter == "=" and (names := path_of(line[:place])):
            return names
    raise AssertionError("only valid TOML is walked")


def _end(lines: list[str], first: int) -> int:
    """The line on which the value that begins on `first` ends."""
    for last in range(first, len(lines)):
        try:
            tomllib.loads("\n".join(lines[first : last + 1]).removesuffix("\r"))
        except tomllib.TOMLDecodeError:
            continue
        return last
    raise AssertionError("only valid TOML is walked")


def _names(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The names along which each table holds one thing, down to a value or an empty table."""
    names: list[str] = []
    value: Any = found
    while value and isinstance(value, list | Mapping):
        if isinstance(value, list):
            value = value[0]
        else:
            ((name, value),) = value.items()
            names.append(name)
    return tuple(names)


class Lines:
    """Finds the line of a setting in a valid text."""

    def __init__(self, text: str) -> None:
        self._entries = entries(text)

    def of(self, *path: str) -> int:
        """The line, from 1, of the setting or of what holds it; 0 if nothing does."""
        best, line = 0, 0
        for entry in self._entries:
            same = 0
            for one, other in zip(entry.path, path, strict=False):
                if one != other:
                    break
                same += 1
            if same == min(len(entry.path), len(path)) and same > best:
                best, line = same, entry.first + 1
        return line
