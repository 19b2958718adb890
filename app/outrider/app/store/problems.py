"""What can be wrong with the store, in words for the user."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from outrider.app import files
from outrider.app.render import Failure

_FULL_OR_READ_ONLY = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
READABLE = (
    "Close every Outrider window and start again: it is repaired. `outrider chats export --all` saves what can be read."
)


class StoreError(Failure):
    """The store or what was asked of it is wrong: what and why, what to do next."""


class Busy(StoreError):
    """Nothing is wrong with the store, but it cannot be written now; trying again later can help."""


class Damaged(StoreError):
    """A part of the file cannot be read, or holds what no store holds."""


class Repaired(StoreError):
    """It was damaged, and all that could be read is in its place."""


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """What an error of SQLite means for the chats at `path`."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(f"Another program holds the chats locked ({path}).", "They are saved as soon as it lets go.")
    if code in _FULL_OR_READ_ONLY and (why := files.hindrance(path.parent)):
        return unwritable(path, why)
    if code == sqlite3.SQLITE_FULL:
        return unwritable(path, "the disk is full")
    if code in _FULL_OR_READ_ONLY:
        return StoreError(
            f"The chats at {path} cannot be read or written ({text}).", "`outrider doctor` looks at folders and disk."
        )
    kind = Damaged if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else StoreError
    return kind(f"The chats at {path} are damaged ({text}).", READABLE)


def unwritable(path: Path, why: str) -> StoreError:
    """The disk takes nothing, for the reason `why` of `files.reason`."""
    hint = (
        "They are saved once there is room again." if "full" in why else "They are saved once it can be written again."
    )
    return Busy(f"The chats at {path} cannot be saved: {why}.", hint)


def advice(path: Path) -> str:
    """What to do about a file that cannot be read at all."""
    copies = copies_of(path)
    first = f"{copies[-1]} is a copy of it: put that in its place, or" if copies else "If that does not help,"
    return f"Look whether the disk is whole. {first} give the file another name; then a new one is begun."


def copies_of(path: Path) -> list[Path]:
    """Whole copies of the store, the newest last."""
    before = path.parent.glob(f"{path.stem}.before-*{path.suffix}")
    weekly = backups_of(path).glob(f"{path.stem}-*{path.suffix}")
    found = [*before, *weekly]
    return sorted(found, key=lambda copy: copy.stat().st_mtime)


def backups_of(path: Path) -> Path:
    """The folder of the weekly copies."""
    return path.parent / "backups"
