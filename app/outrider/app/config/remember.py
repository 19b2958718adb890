"""What was last used in the chat where the file leaves it open. Never written into the user's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.app.config.edit import replace
from outrider.app.config.fields import FIELDS
from outrider.core.base import paths

REMEMBERED = ("look.theme", "look.marks", "look.stats")


def _path() -> Path:
    return paths.state_dir() / "remembered.json"


def last() -> dict[str, Any]:
    """Values by dotted path; those that do not hold any more are left out."""
    try:
        told = json.loads(_path().read_bytes())
    except (OSError, ValueError):  # none yet, or not ours any more: nothing depends on it
        return {}
    found = {}
    for path in REMEMBERED:
        if isinstance(told, dict) and path in told:
            try:
                found[path] = FIELDS[path].checked(told[path])
            except ValueError:  # of another version
                continue
    return found


def remember(path: str, value: Any) -> None:
    """Note a value for the next start. Raises OSError."""
    replace(_path(), json.dumps({**last(), path: value}, indent=1) + "\n")


def forget(path: str) -> None:
    """Leave a value to the file and the default again. Raises OSError."""
    known = last()
    if known.pop(path, None) is not None:
        replace(_path(), json.dumps(known, indent=1) + "\n")
