"""The user's file changed in one go: read, one setting in or out, written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.app.config.edit import replace, with_value, without
from outrider.app.config.read import parsed, text_of


def put(file: Path, where: tuple[str, ...], value: Any, fresh: str) -> None:
    """Set one value; a file that is not there begins as `fresh`. Raises Unreadable, CannotEdit, OSError."""
    text = text_of(file) or fresh
    parsed(text, file.name)
    replace(file, with_value(text, where, value))


def take_out(file: Path, where: tuple[str, ...]) -> bool:
    """Comment one setting out; False if the file does not set it. Raises Unreadable, CannotEdit, OSError."""
    text = text_of(file)
    parsed(text, file.name)
    changed = without(text, where)
    if changed == text:
        return False
    replace(file, changed)
    return True
