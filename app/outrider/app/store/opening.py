"""Opens the store, or a copy of one that must not be written: locked, read-only, damaged, or of a newer Outrider.

The original is never touched in those cases.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from outrider.app.store import schema
from outrider.app.store.problems import Busy, StoreError, explain, mend
from outrider.core.base import paths

PATIENCE = 2.0  # seconds to wait for another program that writes
_CHECKED = 256 << 20  # bytes of a file that is still looked through at every start
_MAGIC = b"SQLite format 3\0"
_COPY = "This is a copy to read; what you write now is not saved in them."
_NONE = "Nothing of it can be read here, and what you write now is not saved in it."


def store_path() -> Path:
    """Where the chats lie."""
    return paths.data_dir() / "chats.db"


@dataclass(slots=True)
class Opened:
    """An open store. `trouble` says why it is only a copy, or empty; `folder` is to be removed with it."""

    connection: sqlite3.Connection
    path: Path
    trouble: StoreError | None = None
    folder: Path | None = None

    def close(self) -> None:
        """Close it and remove what was made for it alone."""
        self.connection.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_nothing() -> Opened:
    """An empty store in memory that takes nothing, for a chat that is to be forgotten."""
    connection = _connect(":memory:")
    schema.migrate(connection, Path())
    return Opened(connection, Path(), StoreError("This chat is private: nothing of it is saved."))


def open_file(path: Path, patience: float = PATIENCE) -> Opened:
    """The store at `path`, made if there is none. What keeps it from being written is in `trouble`."""
    try:
        return _open(path, patience)
    except StoreError as trouble:
        return _open_copy(path, trouble)


def open_spare(path: Path) -> Opened:
    """A copy of the store at `path` that can be written, an empty one if that cannot be read."""
    for filled in (True, False):
        folder = Path(tempfile.mkdtemp(prefix="outrider-chats-"))
        try:
            if filled:
                _copy(path, folder)
            opened = _open(folder / path.name, PATIENCE)
        except (OSError, StoreError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            opened.folder = folder
            return opened
    raise StoreError("There is no room for what could not be saved.")


def _copy(path: Path, folder: Path) -> None:
    for suffix in ("", "-wal"):
        if (part := path.with_name(path.name + suffix)).is_file():
            shutil.copyfile(part, folder / part.name)


def _open(path: Path, patience: float) -> Opened:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _look_at_header(path)
        _look_at_permissions(path)
    except OSError as error:
        raise StoreError(
            f"The chats at {path} cannot be opened ({error.strerror}).", "`outrider doctor` looks at the folders."
        ) from error
    connection = None
    try:
        if path.exists() and 0 < path.stat().st_size <= _CHECKED:
            _look_through(path, patience)
        connection = _connect(path, patience)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a power cut loses no more than a crash
        with schema.change(connection):
            _refuse_newer(schema.version_of(connection), path)
        schema.migrate(connection, path)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise explain(error, path) from error
    except StoreError:
        if connection is not None:
            connection.close()
        raise
    return Opened(connection, path)


def _connect(path: Path | str, patience: float = PATIENCE, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False, uri=uri)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _look_at_header(path: Path) -> None:
    """Raises StoreError if the first 100 bytes say that it is not a store that can be written."""
    if not path.exists():
        return
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise StoreError(f"{path} is not a file of chats: it is damaged or something else.", mend(path))
    _refuse_newer(int.from_bytes(header[60:64], "big"), path)
    if int.from_bytes(header[68:72], "big") not in (0, schema.APPLICATION):
        raise StoreError(f"{path} belongs to another program.", "Move it away, then a new one is begun.")


def _refuse_newer(version: int, path: Path) -> None:
    if version > schema.newest():
        raise StoreError(
            f"The chats at {path} were written by a newer Outrider (version {version}, this one knows {schema.newest()}).",
            "Update Outrider to go on with them.",
        )


def _look_at_permissions(path: Path) -> None:
    """Raises StoreError if file or folder are not to be written, also where this user could."""
    for place in (path, path.parent):
        if place.exists() and not (os.access(place, os.W_OK) and place.stat().st_mode & 0o222):
            what = "file" if place is path else "folder"
            raise StoreError(f"The chats at {path} cannot be changed: the {what} is read-only.", f"chmod u+w {place}")


def _look_through(path: Path, patience: float) -> None:
    """Raises StoreError if the pages of the file do not hang together; reads only."""
    with closing(_connect(f"{path.absolute().as_uri()}?mode=ro", patience, uri=True)) as reader:
        found = reader.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreError(f"The chats at {path} are damaged ({found}).", mend(path))


def _open_copy(path: Path, trouble: StoreError) -> Opened:
    folder = Path(tempfile.mkdtemp(prefix="outrider-chats-"))
    kind = type(trouble)
    connection = None
    try:
        copy = folder / path.name
        _copy(path, folder)
        connection = _connect(copy)
        for table in ("chat", "node", "answer"):
            connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
        return Opened(connection, path, kind(f"{trouble.message} {_COPY}", _hint(trouble)), folder)
    except (OSError, sqlite3.Error):
        if connection is not None:
            connection.close()
        shutil.rmtree(folder, ignore_errors=True)
    connection = _connect(":memory:")
    schema.migrate(connection, path)
    return Opened(connection, path, kind(f"{trouble.message} {_NONE}", _hint(trouble)))


def _hint(trouble: StoreError) -> str:
    return "Close the program that holds it, then start again." if isinstance(trouble, Busy) else trouble.hint
