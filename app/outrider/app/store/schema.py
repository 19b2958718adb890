"""The tables, version by version, and how an older file is brought up to date."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from outrider.app import files

APPLICATION = 0x4F757472  # in the header of every store of ours

# One script a version; those that went out are never changed. Times are seconds since 1970.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE chat (
        id TEXT PRIMARY KEY, title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL, head TEXT, system TEXT,
        settings TEXT NOT NULL, deleted REAL, deleted_by TEXT
    );
    CREATE TABLE node (
        n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
        chat TEXT NOT NULL REFERENCES chat (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
        parent TEXT REFERENCES node (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED, role TEXT NOT NULL, text TEXT NOT NULL,
        thinking TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, model TEXT NOT NULL, writer TEXT,
        indexed INTEGER NOT NULL DEFAULT 0, deleted REAL, deleted_by TEXT
    );
    CREATE INDEX node_chat ON node (chat);
    CREATE INDEX node_parent ON node (parent);
    CREATE INDEX node_open ON node (state) WHERE state IN ('waiting', 'partial');
    CREATE TABLE answer (
        node TEXT PRIMARY KEY REFERENCES node (id) ON DELETE CASCADE, marks TEXT NOT NULL, thought_marks TEXT NOT NULL,
        ids BLOB NOT NULL, kinds TEXT NOT NULL, passes BLOB NOT NULL, figures TEXT NOT NULL, settings TEXT, report TEXT
    );
    """,
    """
    ALTER TABLE node ADD COLUMN attachments TEXT NOT NULL DEFAULT '';
    ALTER TABLE answer ADD COLUMN chances TEXT NOT NULL DEFAULT ''
    """,
)


def connect(path: Path | str, patience: float = 2.0, *, uri: bool = False) -> sqlite3.Connection:
    """A connection without a change of its own; a text that is no UTF-8 is read as far as it is. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False, uri=uri)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def newest() -> int:
    """The version that this Outrider writes."""
    return len(MIGRATIONS)


@contextmanager
def change(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; inside another change it is part of that."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection) -> int:
    """The version of an open file; 0 is an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Bring an older file up to date, after a copy of it was put beside it, unless it is in memory and `path` is None.

    Raises sqlite3.Error and OSError; then it is as it was.
    """
    before = version_of(connection)
    if before >= newest():
        return
    if before and path is not None:
        copy(connection, path.with_name(f"{path.stem}.before-{newest()}{path.suffix}"))
    with change(connection):
        for number in range(version_of(connection), newest()):  # another program may have been quicker
            for statement in MIGRATIONS[number].split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {newest()}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the header of the file tells the version


def copy(connection: sqlite3.Connection, path: Path) -> None:
    """Copy the whole store to `path`, all of it or nothing. Raises sqlite3.Error and OSError."""
    files.make_folder(path.parent)
    unready = path.with_name(f".{path.name}.part")
    try:
        unready.unlink(missing_ok=True)
        os.close(os.open(unready, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE))
        with closing(sqlite3.connect(unready)) as target:
            connection.backup(target)
        os.replace(unready, path)
    finally:
        unready.unlink(missing_ok=True)
