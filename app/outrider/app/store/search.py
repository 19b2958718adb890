"""Finding words in what was typed and read: by SQLite's full-text index where it has one, else by looking at every message."""

from __future__ import annotations

import contextlib
import re
import sqlite3

from outrider.app.store.records import Hit
from outrider.app.store.schema import change

_OPEN, _CLOSE = "\x02", "\x03"  # around a found word, in what SQLite returns
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_AROUND = 60  # characters on each side of a word found without the index
_VISIBLE = (
    "FROM node JOIN chat ON chat.id = node.chat WHERE node.deleted IS NULL AND chat.deleted IS NULL "
    "AND node.state NOT IN ('waiting', 'partial', 'failed')"
)
_NEW = "indexed = 0 AND state NOT IN ('waiting', 'partial')"
_CREATE = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5 (text, content = 'node', content_rowid = 'n', "
    "tokenize = 'unicode61 remove_diacritics 2')"
)
_COLUMNS = "SELECT chat.id, chat.title, node.id, node.role, node.created"


def has_index(connection: sqlite3.Connection) -> bool:
    """Whether this file has a full-text index that this SQLite can read."""
    try:
        connection.execute("SELECT rowid FROM found LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError as error:
        return _is_damaged(error)  # it is made anew when something is added
    return True


def build_index(connection: sqlite3.Connection) -> bool:
    """Make the full-text index if this SQLite knows how, and add what is not in it; whether there is one."""
    if not has_index(connection):
        try:
            connection.execute(_CREATE)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
    if not has_index(connection):
        return False
    add_to_index(connection)
    return True


def add_to_index(connection: sqlite3.Connection) -> None:
    """Index every finished message that is not yet."""
    if connection.execute(f"SELECT 1 FROM node WHERE {_NEW} LIMIT 1").fetchone():
        with change(connection):
            _on_index(connection, f"INSERT INTO found (rowid, text) SELECT n, text FROM node WHERE {_NEW}")
            connection.execute(f"UPDATE node SET indexed = 1 WHERE {_NEW}")


def drop_from_index(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> None:
    """Take messages out of the index before they are deleted for good."""
    delete = (
        f"INSERT INTO found (found, rowid, text) SELECT 'delete', n, text FROM node WHERE indexed = 1 AND ({where})"
    )
    _on_index(connection, delete, values)


def _on_index(connection: sqlite3.Connection, sql: str, values: tuple[object, ...] = ()) -> None:
    """Change the index; a damaged one is made anew first, since the messages have all that was in it."""
    try:
        connection.execute(sql, values)
    except sqlite3.DatabaseError as error:
        if not _is_damaged(error):
            raise
        connection.execute("DROP TABLE found")
        connection.execute(_CREATE)
        connection.execute("INSERT INTO found (rowid, text) SELECT n, text FROM node WHERE indexed = 1")
        connection.execute(sql, values)


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def words_of(query: str) -> list[str]:
    """The words and "quoted phrases" of what the user typed."""
    found = (phrase or word for phrase, word in _WORD.findall(query.replace("\0", " ")))
    return [word for text in found if (word := text.replace('"', " ").strip())]


def find(connection: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    """Messages with all of the words, the last one perhaps only begun; best first. Nothing in `query` is an operator."""
    words = words_of(query)
    if not words:
        return []
    terms = [word for word in words if any(letter.isalnum() for letter in word)]
    hits: list[Hit] = []
    if len(terms) == len(words) and has_index(connection):
        with contextlib.suppress(sqlite3.DatabaseError):  # a damaged index
            hits = _find_by_index(connection, terms, limit)
    return hits or _find_by_looking(connection, words, limit) or _find_by_title(connection, words, limit)


def _find_by_index(connection: sqlite3.Connection, terms: list[str], limit: int) -> list[Hit]:
    match = " ".join(f'"{term}"' for term in terms) + "*"
    rows = connection.execute(
        f"{_COLUMNS}, snippet(found, 0, ?, ?, '…', 16) {_VISIBLE.replace('FROM node', 'FROM found JOIN node ON n = found.rowid')}"
        " AND found MATCH ? ORDER BY found.rank, node.n DESC LIMIT ?",
        (_OPEN, _CLOSE, match, limit),
    )
    return [_hit(row[:5], row[5]) for row in rows]


def _find_by_looking(connection: sqlite3.Connection, words: list[str], limit: int) -> list[Hit]:
    """Also finds parts of words, as scripts without spaces need it."""
    return _alike(connection, "node.text", words, limit)


def _find_by_title(connection: sqlite3.Connection, words: list[str], limit: int) -> list[Hit]:
    """The first messages of chats whose titles have the words."""
    return _alike(connection, "node.parent IS NULL AND chat.title", words, limit)


def _alike(connection: sqlite3.Connection, what: str, words: list[str], limit: int) -> list[Hit]:
    alike = " AND ".join([f"{what} LIKE ? ESCAPE '\\'"] * len(words))
    patterns = [f"%{_escaped(word)}%" for word in words]
    rows = connection.execute(
        f"{_COLUMNS}, node.text {_VISIBLE} AND {alike} ORDER BY node.n DESC LIMIT ?", (*patterns, limit)
    )
    return [_hit(row[:5], _cut(row[5], words)) for row in rows]


def _escaped(word: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", word)


def _cut(text: str, words: list[str]) -> str:
    """A part of `text` around the first word that it has, marked as SQLite does it."""
    pattern = re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - _AROUND) if first else 0
    end = (first.end() if first else 0) + _AROUND
    part = text[start:end].replace(_OPEN, " ").replace(_CLOSE, " ")
    marked = pattern.sub(lambda match: f"{_OPEN}{match[0]}{_CLOSE}", part)
    return ("…" if start else "") + marked + ("…" if end < len(text) else "")


def _hit(row: tuple[str, str, str, str, float], snippet: str) -> Hit:
    text, marked, begin = "", [], 0
    for part in re.split(f"([{_OPEN}{_CLOSE}])", snippet):
        if part == _OPEN:
            begin = len(text)
        elif part == _CLOSE:
            marked.append((begin, len(text)))
        else:
            text += part
    chat, title, node, role, created = row
    return Hit(chat=chat, title=title, node=node, role=role, created=created, snippet=text, marked=marked)
