"""What can be wrong with the store, in words for the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app.render import Failure

if TYPE_CHECKING:
    import sqlite3


class StoreError(Failure):
    """The store or what was asked of it is wrong: what and why, what to do next."""


class Busy(StoreError):
    """Another program holds the store; trying again later can help."""


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """What an error of SQLite means for the chats at `path`."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return Busy(f"Another program holds the chats locked ({path}).", "They are saved as soon as it lets go.")
    if "full" in text:
        return Busy(f"The disk is full, so the chats at {path} cannot be saved.", "They are once there is room again.")
    if "readonly" in text or "unable to open" in text:
        return StoreError(f"The chats at {path} cannot be written ({text}).", "`outrider doctor` looks at the folders.")
    return StoreError(f"The chats at {path} are damaged ({text}).", mend(path))


def mend(path: Path) -> str:
    """What to do about a file that cannot be mended."""
    backups = sorted(path.parent.glob(f"{path.stem}.before-*{path.suffix}"))
    copy = f" or put the backup {backups[-1].name} in its place" if backups else ""
    return f"`outrider chats export --all` saves what can be read; then move the file away{copy}."
