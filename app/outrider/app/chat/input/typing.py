"""What the user is in the middle of typing: a command, its argument, or a path after an @ sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_PATH = re.compile(r"(?:^|(?<=[\s(\[{\"']))@(\"[^\"]*|[^\s\"@]*)$")


@dataclass(frozen=True, slots=True)
class Typing:
    """What is completed. `start` and `end` are columns of the line: what an accepted candidate replaces."""

    kind: Literal["command", "argument", "path"]
    query: str
    start: int
    end: int
    command: str = ""


def typing(line: str, column: int, *, alone: bool) -> Typing | None:
    """What stands before `column` of a line, None for ordinary words. `alone`: the line is the whole prompt."""
    if alone and line.startswith("/") and not line.startswith("//"):
        return _command(line, column)
    found = _PATH.search(line, 0, column)
    if found is None:
        return None
    return Typing("path", found[1].lstrip('"'), found.start(), column)


def _command(line: str, column: int) -> Typing | None:
    name, blank, _ = line[1:].partition(" ")
    if column <= len(name) + 1:
        return Typing("command", line[1:column], 0, len(name) + 1) if column else None
    if not blank or column < len(line):
        return None
    start = len(name) + 2
    return Typing("argument", line[start:], start, len(line), name)
