"""Opens the store, or a copy in memory of one that must not be written: locked, read-only, or of a newer Outrider.

The original is never touched in those cases. A damaged one is repaired.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from outrider.app import files
from outrider.app.store import schema
from outrider.app.store.problems import READABLE, Busy, Damaged, StoreError, advice, explain, unwritable
from outrider.app.store.writers import writers_of
from outrider.core.base import paths

PATIENCE = 2.0  # seconds to wait for another program that writes
_THOROUGH, _CHECKED = (
    64 << 20,
    1 << 30,
)  # bytes of a file that is still looked through at every start, with its indexes or without
_MAGIC = b"SQLite format 3\0"
_VERSIONS = 1000  # a higher one is no version
_COPY = "This is a copy to read; what you write now is not saved in them."
_NONE = "Nothing of it can be read here, and what you write now is not saved in it."


def store_path() -> Path:
    """Where the chats lie."""
    return paths.data_dir() / "chats.db"


@dataclass(slots=True)
class Opened:
    """An open store. `trouble`: why nothing can be saved in it. `unreadable`: there is a file, but nothing in it can be read.

    `repaired`: what was lost of a store that was repaired, and where it is. `lost`: the same of a copy of a damaged one.
    `shared`: other programs may have it open.
    """

    connection: sqlite3.Connection
    path: Path
    trouble: StoreError | None = None
    unreadable: bool = False
    repaired: str = ""
    lost: str = ""
    shared: bool = True


def open_nothing(path: Path, trouble: StoreError | None = None) -> Opened:
    """An empty store in memory that takes nothing: for a private chat, or in place of one that cannot be read."""
    connection = schema.connect(":memory:")
    schema.migrate(connection, None)
    private = StoreError("This chat is private: nothing of it is saved.")
    return Opened(connection, path, trouble or private, unreadable=trouble is not None)


def open_file(path: Path, patience: float = PATIENCE, *, repairs: bool = True) -> Opened:
    """The store at `path`, made if there is none, repaired if it is damaged. What keeps it from being written is in `trouble`."""
    try:
        return _open(path, patience)
    except Damaged as trouble:
        if not repairs:
            return open_copy(path, trouble)
        return _open_damaged(path, patience, trouble)
    except StoreError as trouble:
        return open_copy(path, trouble)


def open_spare(path: Path) -> Opened:
    """A copy in memory of the store at `path` that can be written, an empty one if that cannot be read."""
    connection, _ = _copy_of(path)
    if connection is not None and schema.version_of(connection) != schema.newest():
        connection.close()
        connection = None
    if connection is None:
        connection = schema.connect(":memory:")
        schema.migrate(connection, None)
    return Opened(connection, path, shared=False)


def _open(path: Path, patience: float) -> Opened:
    try:
        files.make_folder(path.parent)
        _look_at_permissions(path)
        _look_at_header(path)
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, files.FILE))  # SQLite gives its other files the same mode
    except OSError as error:
        if why := files.hindrance(path.parent):
            raise unwritable(path, why) from error
        raise StoreError(
            f"The chats at {path} cannot be opened ({error.strerror}).", "`outrider doctor` looks at the folders."
        ) from error
    connection = None
    try:
        if 0 < path.stat().st_size <= _CHECKED:
            _look_through(path, patience)
        connection = schema.connect(path, patience)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a power cut loses no more than a crash
        with schema.change(connection):
            _refuse_newer(schema.version_of(connection), path)
        schema.migrate(connection, path)
    except (sqlite3.Error, StoreError, OSError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explain(error, path) from error
        if isinstance(error, OSError):
            raise unwritable(path, files.reason(error)) from error
        raise
    return Opened(connection, path)


def _look_at_header(path: Path) -> None:
    """Raises StoreError if the first 100 bytes say that it is not a store that can be written."""
    used = writers_of(path).exists()  # it has been a store before
    if not path.exists():
        return
    with path.open("rb") as file:
        header = file.read(100)
    if not (header or used):
        return
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise Damaged(f"{path} is not a file of chats: it is damaged or something else.", READABLE)
    _refuse_newer(int.from_bytes(header[60:64], "big"), path)
    if int.from_bytes(header[68:72], "big") not in (0, schema.APPLICATION):
        if _has_chats(path):
            raise Damaged(f"The chats at {path} are damaged (the header of the file).", READABLE)
        raise StoreError(f"{path} belongs to another program.", "Move it away, then a new one is begun.")


def _has_chats(path: Path) -> bool:
    """Whether this is a store, whatever its header says of it."""
    with contextlib.suppress(sqlite3.Error), closing(_reader(path, 0.1)) as reader:
        tables = reader.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('chat', 'node', 'answer')")
        return tables.fetchone()[0] == 3
    return False


def _refuse_newer(version: int, path: Path) -> None:
    if version > schema.newest() + _VERSIONS:
        raise Damaged(f"The chats at {path} are damaged (the header of the file).", READABLE)
    if version > schema.newest():
        raise StoreError(
            f"The chats at {path} were written by a newer Outrider (version {version}, this one knows {schema.newest()}).",
            "Update Outrider to go on with them.",
        )


def _look_at_permissions(path: Path) -> None:
    """Raises StoreError if file or folder are not to be written, also where this user could."""
    for place in (path, path.parent):
        if place.exists() and not (os.access(place, os.W_OK) and place.stat().st_mode & 0o222):
            if why := files.hindrance(path.parent):
                raise unwritable(path, why)
            what = "file" if place is path else "folder"
            raise StoreError(f"The chats at {path} cannot be changed: the {what} is read-only.", f"chmod u+w {place}")


def _reader(path: Path, patience: float) -> sqlite3.Connection:
    return schema.connect(f"{path.absolute().as_uri()}?mode=ro", patience, uri=True)


def _look_through(path: Path, patience: float) -> None:
    """Raises StoreError if the pages of the file do not hang together; reads only."""
    with closing(_reader(path, patience)) as reader:
        check = "integrity_check" if path.stat().st_size <= _THOROUGH else "quick_check"
        finding = reader.execute(f"PRAGMA {check}(1)").fetchone()[0]
    if finding != "ok":
        raise Damaged(f"The chats at {path} are damaged ({finding}).", READABLE)


def _open_damaged(path: Path, patience: float, trouble: Damaged) -> Opened:
    from outrider.app.store.repair import alone, repair

    try:
        with alone(path, patience):
            try:
                return _open(path, patience)  # another program was quicker
            except Damaged:
                notice = repair(path)
            opened = _open(path, patience)
            opened.repaired = notice
            return opened
    except Busy as busy:
        return open_copy(path, Damaged(f"{trouble.message} {busy.message}", f"{busy.hint} Then they are repaired."))
    except sqlite3.Error as error:
        return open_copy(path, Damaged(f"{trouble.message} {explain(error, path).message}", trouble.hint))
    except OSError as error:
        message = f"{trouble.message} They cannot be repaired: {files.reason(error)}."
        return open_copy(path, Damaged(message, trouble.hint))
    except StoreError:  # there is nothing in it
        return open_copy(path, trouble)


def open_copy(path: Path, trouble: StoreError) -> Opened:
    """What can be read of the store at `path`, in memory, because of `trouble`."""
    connection, lost = _copy_of(path)
    kind = type(trouble)
    if connection is None:
        hint = advice(path) if isinstance(trouble, Damaged) else _hint(trouble)
        return open_nothing(path, kind(f"{trouble.message} {_NONE}", hint))
    message = " ".join(filter(None, (trouble.message, lost, _COPY)))
    return Opened(connection, path, kind(message, _hint(trouble)), lost=lost)


def _copy_of(path: Path) -> tuple[sqlite3.Connection | None, str]:
    """What can be read of the store, in memory, and what was lost, if it is damaged. None: nothing can be read."""
    from outrider.app.store.salvage import fill, image_of, open_image, salvage

    connection = None
    try:
        connection = open_image(image_of(path))
        if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok":
            for table in ("chat", "node", "answer"):
                connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
            if schema.version_of(connection):
                with contextlib.suppress(sqlite3.Error):
                    schema.migrate(connection, None)
                return connection, ""
    except (OSError, sqlite3.Error):
        pass
    if connection is not None:
        connection.close()
    connection = schema.connect(":memory:")
    with contextlib.suppress(OSError, sqlite3.Error):
        rows, loss = salvage(path)
        schema.migrate(connection, None)
        fill(connection, rows)
        if rows.chats:
            return connection, loss.words()
    connection.close()
    return None, ""


def _hint(trouble: StoreError) -> str:
    if not isinstance(trouble, Busy):
        return trouble.hint
    if "holds" in trouble.message:
        return "Close the program that holds it, then start again."
    return (
        "Make room on the disk, then start again."
        if "full" in trouble.message
        else "Start again once it can be written."
    )
