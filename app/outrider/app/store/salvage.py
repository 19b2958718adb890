"""Reads what is left of a damaged store, row by row: a damaged page costs what is on it and no more.

SQLite reads each page of rows on its own, because the root of a table is set to that page; a damaged page between the root and
the rows costs nothing then. The indexes say which rows there should be, and the place of a lost message in its chat.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.app.store import schema
from outrider.app.store.placing import Loss, Row, Rows, alike, place, sound

_PAGE = 4096  # bytes, of every store
_FIRST = 64  # pages: the root of every table and index is on one of them
_LEAF = 0x0D  # the first byte of a page with rows
_INDEXES = (
    ("chat", "sqlite_autoindex_chat_1", "id"),
    ("node", "sqlite_autoindex_node_1", "id"),
    ("node", "node_chat", "chat"),
    ("node", "node_parent", "parent"),
    ("answer", "sqlite_autoindex_answer_1", "node"),
)


@dataclass(slots=True)
class Index:
    """What an index says: a key for each row id. `whole`: all of it could be read."""

    keys: dict[int, str | None] = field(default_factory=dict[int, "str | None"])
    whole: bool = False


def image_of(path: Path) -> bytes:
    """All pages of a store with what its log adds. Nothing is written. Raises sqlite3.Error and OSError."""
    alone = (
        "win32-none" if sys.platform == "win32" else "unix-none"
    )  # without locks and shared memory, for read-only disks
    for options in ("mode=ro", f"mode=ro&vfs={alone}"):
        try:
            with closing(schema.connect(f"{path.absolute().as_uri()}?{options}", 0.1, uri=True)) as source:
                if alone in options:
                    source.execute("PRAGMA locking_mode = EXCLUSIVE")
                source.execute("PRAGMA writable_schema = ON")  # so that a file cut short is read as far as it goes
                with closing(schema.connect(":memory:")) as copy:
                    source.backup(copy)
                    return copy.serialize()
        except sqlite3.Error:
            if alone in options:
                raise
    raise AssertionError


def open_image(image: bytes) -> sqlite3.Connection:
    """A store in memory with these pages. Raises sqlite3.Error."""
    data = bytearray(image)
    data[18:20] = b"\1\1"  # memory has no write-ahead log
    connection = schema.connect(":memory:")
    try:
        connection.deserialize(bytes(data))
    except BaseException:
        connection.close()
        raise
    return connection


def salvage(path: Path) -> tuple[Rows, Loss]:
    """What can be read of the store at `path`, and what could not. Raises OSError."""
    for image, free_known in _images(path):
        with contextlib.suppress(sqlite3.Error), closing(open_image(image)) as db:
            rows, loss = _Reader(db, image, free_known).read()
            if rows.chats:
                return rows, loss
    return Rows(), Loss()


def fill(connection: sqlite3.Connection, rows: Rows) -> None:
    """Put rows into an empty store. Raises sqlite3.Error."""
    with schema.change(connection):
        for table, records in (("chat", rows.chats), ("node", rows.nodes), ("answer", rows.answers)):
            for row in records.values():
                names = ", ".join(row)
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))


def _images(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The pages as they are, then with a first page that is whole: it has no rows, only what every store has.

    With each, whether it says which pages are free.
    """
    with contextlib.suppress(sqlite3.Error):
        yield _with_page_count(image_of(path)), True
    data = _with_fresh_header(path.read_bytes())
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        with contextlib.suppress(OSError, sqlite3.Error), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            copy = Path(folder) / path.name
            copy.write_bytes(data)
            shutil.copyfile(log, copy.with_name(log.name))
            yield _with_fresh_header(image_of(copy)), False
            return
    yield data, False


def _with_fresh_header(image: bytes) -> bytes:
    with closing(schema.connect(":memory:")) as fresh:
        schema.migrate(fresh, None)
        first = bytearray(fresh.serialize()[:_PAGE])
    first[18:20] = b"\2\2"  # there may be a log
    first[32:40] = bytes(8)  # which pages are free is not known
    return _with_page_count(bytes(first) + image[_PAGE:])


def _with_page_count(image: bytes) -> bytes:
    """With as many whole pages as the header says; in place of those that are cut off are empty ones."""
    pages = -(-len(image) // _PAGE)
    claimed = int.from_bytes(image[28:32], "big")
    pages = max(pages, min(claimed, 4 * pages), _FIRST)
    data = bytearray(image) + bytes(pages * _PAGE - len(image))
    data[28:32] = (len(data) // _PAGE).to_bytes(4, "big")
    data[92:96] = data[24:28]  # says that the number of pages holds
    return bytes(data)


class _Reader:
    """Reads the pages of one image."""

    def __init__(self, db: sqlite3.Connection, image: bytes, free_known: bool) -> None:
        self._db, self._image = db, image
        db.execute("PRAGMA journal_mode = OFF")
        self._roots: dict[str, int] = dict(db.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"))
        self._columns = {
            table: [(name, kind, bool(notnull or key)) for _, name, kind, notnull, _, key in self._described(table)]
            for table in ("chat", "node", "answer")
        }
        if not all(self._columns.values()):
            raise sqlite3.DatabaseError("there are no such tables")
        self._free_known = free_known and self._forget_free_pages()
        self._rows: dict[str, dict[int, Row]] = {table: {} for table in self._columns}
        self._damaged: dict[str, dict[int, Row]] = {table: {} for table in self._columns}

    def _described(self, table: str) -> list[Any]:
        return self._db.execute(f"PRAGMA table_info({table})").fetchall()

    def _forget_free_pages(self) -> bool:
        """Have SQLite write over the pages that it holds free, since they still have what was deleted. False if it cannot."""
        try:
            free = self._db.execute("PRAGMA freelist_count").fetchone()[0]
            if not 0 < free < len(self._image) // _PAGE:
                return free == 0
            with schema.change(self._db):
                self._db.execute("CREATE TABLE filler (x)")
                self._db.execute("INSERT INTO filler VALUES (zeroblob(?))", (free * _PAGE,))
            self._image = self._db.serialize()
        except sqlite3.Error:
            return False
        return True

    def read(self) -> tuple[Rows, Loss]:
        """All of it."""
        guess = "node"
        for page in range(2, len(self._image) // _PAGE + 1):
            if self._image[(page - 1) * _PAGE] == _LEAF:
                guess = self._read_page(page, guess)
        for table in self._columns:
            self._point(table, self._roots[table])
        indexes = {(table, key): self._index(table, index, key) for table, index, key in _INDEXES}
        if not self._free_known:
            self._drop_deleted(indexes)
        return place(self._rows, self._damaged, indexes)

    def _point(self, table: str, page: int) -> None:
        self._db.execute("PRAGMA writable_schema = ON")
        self._db.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (page, table))
        self._db.execute("PRAGMA writable_schema = RESET")  # reads the schema again

    def _read_page(self, page: int, guess: str) -> str:
        """Keep the rows of a page, of whichever table it is; returns that table."""
        for table in sorted(self._columns, key=lambda one: one != guess):
            self._point(table, page)
            if rows := [(number, row) for number, row in self._page_rows(table) if alike(table, row)]:
                for number, row in rows:
                    whole = sound(table, row, self._columns[table])
                    (self._rows if whole else self._damaged)[table].setdefault(number, row)
                return table
        return guess

    def _page_rows(self, table: str) -> Iterator[tuple[int, Row]]:
        names = [name for name, _, _ in self._columns[table]]
        try:
            count = self._db.execute(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()[0]
        except sqlite3.Error:
            return
        at = 0
        while at < count:
            sql = f"SELECT rowid, {', '.join(names)} FROM {table} NOT INDEXED LIMIT -1 OFFSET ?"
            try:
                for number, *values in self._db.execute(sql, (at,)):
                    at += 1
                    yield number, dict(zip(names, values, strict=True))
                return
            except sqlite3.Error:
                if parts := self._in_parts(table, names, at):
                    yield parts
                at += 1

    def _in_parts(self, table: str, names: Iterable[str], at: int) -> tuple[int, Row] | None:
        """The columns of a row that can be read, where not all can."""
        row: Row = {}
        for name in ("rowid", *names):
            with contextlib.suppress(sqlite3.Error):
                sql = f"SELECT {name} FROM {table} NOT INDEXED LIMIT 1 OFFSET ?"
                (row[name],) = self._db.execute(sql, (at,)).fetchone() or (None,)
        number = row.pop("rowid", None)
        return None if number is None else (number, row)

    def _index(self, table: str, index: str, key: str) -> Index:
        """What an index says, read from its start, then from each key that is known, then from its end."""
        entries = Index()

        def note(number: int, value: object) -> None:
            if number > 0 and (value is None or (isinstance(value, str) and "\0" not in value)):
                entries.keys.setdefault(number, value)

        sql = f"SELECT rowid, {key} FROM {table} INDEXED BY {index}"
        known = sorted({row[key] for row in self._rows[table].values() if row[key] is not None})
        last = ""
        try:
            for number, value in self._db.execute(f"{sql} ORDER BY {key}"):
                note(number, value)
                last = value if isinstance(value, str) else last
            entries.whole = True
            return entries
        except sqlite3.Error:
            pass
        for value in known:
            if value > last:
                with contextlib.suppress(sqlite3.Error):
                    for number, entry in self._db.execute(f"{sql} WHERE {key} >= ? ORDER BY {key}", (value,)):
                        note(number, entry)
                        last = entry if isinstance(entry, str) else last
        with contextlib.suppress(sqlite3.Error):
            for number, value in self._db.execute(f"{sql} ORDER BY {key} DESC"):
                note(number, value)
        return entries

    def _drop_deleted(self, indexes: dict[tuple[str, str], Index]) -> None:
        """Leave out rows that no index knows: they were deleted, and their pages are free."""
        for table, key in (("chat", "id"), ("node", "id"), ("answer", "node")):
            index = indexes[table, key]
            if index.whole:
                keys = set(index.keys.values())
                rows = self._rows[table]
                self._rows[table] = {n: row for n, row in rows.items() if n in index.keys or row[key] in keys}
                self._damaged[table] = {n: row for n, row in self._damaged[table].items() if n in index.keys}
