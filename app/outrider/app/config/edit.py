"""The user's file changed line by line: comments, order and line ends stay as they are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from outrider.app import files
from outrider.app.config.toml import Entry, entries, key, lines_of, written


class CannotEdit(Exception):
    """The line with the setting is written in a way that only a person can change."""


def replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; a link stays a link. Raises OSError."""
    path = path.resolve()
    files.make_folder(path.parent)
    files.write(path, text.encode(), mode=path.stat().st_mode & 0o777 if path.exists() else files.FILE)


def with_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with the setting at `path` changed or added. `text` must be valid TOML. Raises CannotEdit."""
    lines = lines_of(text)
    end = "\r" if lines[0].endswith("\r") else ""
    found = entries(text)
    there = next((entry for entry in found if entry.path == path and not entry.header), None)
    if there is not None:
        lines[there.first : there.last + 1] = [_changed(lines, there, value)]
    else:
        _refuse_inline(found, path)
        line = f"{key(path[-1])} = {written(value)}"
        header = next((entry for entry in found if entry.header and entry.path == path[:-1]), None)
        if header is None:
            before = [] if not text.strip() else [end] if lines[-1] == "" and len(lines) > 1 else ["", end]
            lines = [*(lines[:-1] if lines[-1] == "" else lines), *before, f"[{key(*path[:-1])}]{end}", line + end, ""]
        else:
            _insert(lines, found, header, path[-1], line + end)
    changed = "\n".join(lines)
    _check(text, changed, path, value)
    return changed


def without(text: str, path: tuple[str, ...]) -> str:
    """The text with the setting at `path` commented out, the same text if it is not set. Raises CannotEdit."""
    found = entries(text)
    there = next((entry for entry in found if entry.path == path and not entry.header), None)
    if there is None:
        _refuse_inline(found, path)
        return text
    lines = lines_of(text)
    for at in range(there.first, there.last + 1):
        lines[at] = f"#{lines[at]}"
    return "\n".join(lines)


def _changed(lines: list[str], entry: Entry, value: Any) -> str:
    """The lines of a setting as one, with another value and the comment that followed the old one."""
    old = "\n".join(lines[entry.first : entry.last + 1])
    body = old.removesuffix("\r")
    before = body[: body.index("=", _equals(body)) + 1]
    return f"{before} {written(value)}{_comment(body)}" + ("\r" if old.endswith("\r") else "")


def _equals(body: str) -> int:
    """Where the equals sign is that ends the key."""
    for place, letter in enumerate(body):
        if letter == "=" and _valid(f"{body[:place]}= 0"):
            return place
    raise AssertionError("only valid TOML is edited")


def _comment(body: str) -> str:
    """The comment after the value, with the blanks before it; empty if there is none."""
    for place, letter in enumerate(body):
        if letter == "#" and _valid(body[:place]):
            blanks = len(body[:place]) - len(body[:place].rstrip())
            return body[place - blanks :]
    return ""


def _valid(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _insert(lines: list[str], found: list[Entry], header: Entry, name: str, line: str) -> None:
    """Put a line into a section: in place of its default that is commented out, else behind the last line with something."""
    after = [entry.first for entry in found if entry.header and entry.first > header.first]
    stop = after[0] if after else len(lines)
    for at in range(header.first + 1, stop):
        if lines[at].startswith((f"#{name} =", f"#{name}=")):
            lines[at] = line
            return
    last = max(
        [entry.last for entry in found if not entry.header and header.first < entry.first < stop] or [header.first]
    )
    lines.insert(last + 1, line)


def _refuse_inline(found: list[Entry], path: tuple[str, ...]) -> None:
    """Raises CannotEdit if a table on one line, or another form, holds what `path` names."""
    for entry in found:
        inside = not entry.header and entry.path == path[: len(entry.path)]
        dotted = not entry.header and entry.path[:-1] == path[:-1] and entry.table != path[:-1]
        if inside or dotted:
            raise CannotEdit(f"Line {entry.first + 1} writes {key(*path)} in a form that only a person can change.")


def _check(before: str, after: str, path: tuple[str, ...], value: Any) -> None:
    """Nothing but the one value may have changed. Raises CannotEdit."""
    wanted = tomllib.loads(before)
    table: Any = wanted
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise CannotEdit(f"{key(*path)} cannot be set: {key(name)} is no section in the file.")
    table[path[-1]] = value
    if not _valid(after) or tomllib.loads(after) != wanted:
        raise CannotEdit(f"{key(*path)} cannot be set by a line of its own.")
