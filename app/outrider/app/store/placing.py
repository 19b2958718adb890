"""Rows that were read from a damaged store, made whole: what is lost is counted, and its place in a chat is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

import msgspec

from outrider.app.store import rows as coding
from outrider.app.store.ids import new_id
from outrider.app.store.records import Settings, State, title_of

LOST = "(This message is lost: the part of the disk with it was damaged.)"
_STATES = get_args(State)
_OTHER = {"user": "assistant", "assistant": "user"}
_KINDS: dict[str, type] = {"TEXT": str, "REAL": float, "INTEGER": int, "BLOB": bytes}

Row = dict[str, Any]


@dataclass(slots=True)
class Rows:
    """The rows of a store, each by its id; an answer by that of its message."""

    chats: dict[str, Row] = field(default_factory=dict[str, Row])
    nodes: dict[str, Row] = field(default_factory=dict[str, Row])
    answers: dict[str, Row] = field(default_factory=dict[str, Row])


@dataclass(slots=True)
class Loss:
    """How much was lost: `chats` lost title and settings, `answers` marks and figures. `certain`: it is no more."""

    chats: int = 0
    messages: int = 0
    answers: int = 0
    certain: bool = True

    def words(self) -> str:
        """A sentence."""
        told = [
            _count(self.messages, "message") if self.messages else "",
            f"the marks and figures of {_count(self.answers, 'reply', 'replies')}" if self.answers else "",
            f"the title and settings of {_count(self.chats, 'chat')}" if self.chats else "",
        ]
        parts = [part for part in told if part]
        if not parts:
            return "No message was lost." if self.certain else "How much was lost is not known."
        listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        least = "" if self.certain else "at least "
        return f"Lost: {least}{listed}. Everything else is there."


class Keys(Protocol):
    """What an index says."""

    keys: dict[int, str | None]
    whole: bool


Indexes = Mapping[tuple[str, str], Keys]
Found = Mapping[str, dict[int, Row]]


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def sound(table: str, row: Row, columns: Sequence[tuple[str, str, bool]]) -> bool:
    """Whether every column of a row holds what it may hold. `columns`: name, type, whether there must be a value."""
    for name, kind, needed in columns:
        value = row.get(name)
        if value is None:
            if needed:
                return False
        elif not isinstance(value, _KINDS.get(kind, object)):
            return False
    if table == "node":
        return row["role"] in _OTHER and row["state"] in _STATES
    if table == "answer":
        return coding.to_answer(tuple(row[name] for name in coding.ANSWER)) is not None
    return _decodes(row["settings"])


def alike(table: str, row: Row) -> bool:
    """Whether a row, perhaps a part of one, is of this table."""
    if table == "node":
        return row.get("role") in _OTHER and isinstance(row.get("id"), str) and isinstance(row.get("chat"), str)
    kinds = (
        {"id": str, "title": str, "created": float} if table == "chat" else {"node": str, "marks": str, "ids": bytes}
    )
    return all(isinstance(row.get(name), kind) for name, kind in kinds.items())


def _decodes(settings: str) -> bool:
    try:
        msgspec.json.decode(settings, type=Settings)
    except msgspec.MsgspecError:
        return False
    return True


def place(found: Found, damaged: Found, indexes: Indexes) -> tuple[Rows, Loss]:
    """Rows that make a store, and what was lost. `damaged` are rows of which a part could be read."""
    rows = Rows(*(_by_id(found[table], key) for table, key in (("chat", "id"), ("node", "id"), ("answer", "node"))))
    loss = Loss(certain=any(indexes["node", key].whole for key in ("id", "chat", "parent")))
    loss.certain &= indexes["chat", "id"].whole
    lost = _Lost(rows, damaged["node"], indexes)
    lost.find(found["node"])
    loss.messages = lost.count + lost.put_back()
    loss.chats = _put_back_chats(rows, damaged["chat"], indexes["chat", "id"], found["chat"])
    gone = {name for number, name in indexes["answer", "node"].keys.items() if name and number not in found["answer"]}
    gone |= {row["node"] for row in damaged["answer"].values() if isinstance(row.get("node"), str)}
    loss.answers = len((gone & rows.nodes.keys() - lost.put) - rows.answers.keys())
    rows.answers = {name: row for name, row in rows.answers.items() if name in rows.nodes}
    return rows, loss


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _by_id(found: Mapping[int, Row], key: str) -> dict[str, Row]:
    return {row[key]: row for row in found.values()}


class _Lost:
    """The lost messages. Those whose place is known are put back without their text, so that the others stay in reach."""

    def __init__(self, rows: Rows, parts: Mapping[int, Row], indexes: Indexes) -> None:
        self._rows, self._parts = rows, parts
        self._ids, self._chats, self._parents = (indexes["node", key].keys for key in ("id", "chat", "parent"))
        self._wanted: dict[str, Row] = {}
        self.count = 0
        self.put: set[str] = set()

    def find(self, found: Mapping[int, Row]) -> None:
        """Which there should be, by the indexes and by what is left of their rows."""
        for number in sorted({*self._ids, *self._chats, *self._parents, *self._parts} - found.keys()):
            part = self._parts.get(number, {})
            name = self._ids.get(number) or part.get("id")
            if name in self._rows.nodes:
                continue
            self.count += 1
            chat = self._chats.get(number) or part.get("chat")
            if not (isinstance(chat, str) and isinstance(name, str | None)):
                continue
            parent = self._parents.get(number) or part.get("parent")
            row = {"n": number, "id": name or new_id(), "chat": chat}
            row["parent"] = _text(parent)
            row["role"] = part.get("role")
            self._wanted[row["id"]] = row

    def put_back(self) -> int:
        """Put them back; returns how many more are missing, which only their replies know."""
        known = self._wanted.keys() | self._rows.nodes.keys()
        every = [*self._rows.nodes.values(), *self._wanted.values()]
        orphans = [row for row in every if row["parent"] is not None and row["parent"] not in known]
        more = {
            row["parent"]: {"id": row["parent"], "chat": row["chat"], "parent": None, "role": None} for row in orphans
        }
        heirs = {row["parent"]: row for row in every}
        for name, row in (more | self._wanted).items():
            above = self._rows.nodes.get(row["parent"] or "")
            if row["role"] not in _OTHER:
                role = _OTHER.get(heirs.get(name, {}).get("role", "")) or _OTHER.get((above or {}).get("role", ""))
                row["role"] = role or "user"
            near = heirs.get(name) or above or {}
            kept = {"text": LOST, "thinking": "", "state": "complete", "created": near.get("created", 0.0), "model": ""}
            self._rows.nodes[name] = row | kept
            self.put.add(name)
        return len(more)


def _put_back_chats(rows: Rows, parts: Mapping[int, Row], index: Keys, found: Mapping[int, Row]) -> int:
    """Chats of which messages are left get a title and settings again; returns how many were lost, those without messages too."""
    last: dict[str, Row] = {}
    first: dict[str, Row] = {}
    for row in sorted(rows.nodes.values(), key=lambda row: row.get("n", 0)):
        last[row["chat"]] = row
        if row["role"] == "user" and row["text"] != LOST:
            first.setdefault(row["chat"], row)
    by_id = {part["id"]: part for part in parts.values() if isinstance(part.get("id"), str)}
    gone = {name for number, name in index.keys.items() if name and number not in found}
    gone = (gone | last.keys() | by_id.keys()) - rows.chats.keys()
    for name in gone & (last.keys() | by_id.keys()):
        part, moment = by_id.get(name, {}), last.get(name, {}).get("created", 0.0)
        row = {"id": name, "title": part.get("title")}
        if not isinstance(row["title"], str):
            row["title"] = title_of(first.get(name, {}).get("text", "Chat"))
        row |= {key: part[key] if isinstance(part.get(key), float) else moment for key in ("created", "updated")}
        row |= {key: _text(part.get(key)) for key in ("head", "system", "deleted_by")}
        row["deleted"] = part.get("deleted") if isinstance(part.get("deleted"), float) else None
        row["settings"] = "{}"
        rows.chats[name] = row
    for name, row in rows.chats.items():
        if row["head"] not in rows.nodes and name in last:
            row["head"] = last[name]["id"]
    return len(gone)
