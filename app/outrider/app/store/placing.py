"""Rows that were read from a damaged store, made whole: what is lost is counted, and its place in a chat is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

import msgspec

from outrider.app.store import rows as coding
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
        """A sentence or two."""
        parts = [
            _count(self.messages, "message") if self.messages else "",
            f"the marks and figures of {_count(self.answers, 'reply', 'replies')}" if self.answers else "",
            f"the title and settings of {_count(self.chats, 'chat')}" if self.chats else "",
        ]
        *more, last = list(filter(None, parts)) or [""]
        if not last:
            return "No message was lost." if self.certain else "How much was lost is not known."
        listed = f"{', '.join(more)} and {last}" if more else last
        if self.certain:
            return f"Lost: {listed}. Everything else is there."
        return f"Lost: at least {listed}. All that could be read is there."


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


def place(sound_rows: Found, parts: Found, indexes: Indexes) -> tuple[Rows, Loss]:
    """Rows that make a store, and what was lost. `parts` are rows of which only a part could be read."""
    keys = (("chat", "id"), ("node", "id"), ("answer", "node"))
    rows = Rows(*({row[key]: row for row in sound_rows[table].values()} for table, key in keys))
    loss = Loss(certain=any(indexes["node", key].whole for key in ("id", "chat", "parent")))
    loss.certain &= indexes["chat", "id"].whole
    messages = _LostMessages(rows, parts["node"], indexes)
    messages.find(sound_rows["node"])
    messages.put_back()
    loss.messages = messages.count
    loss.chats = _put_back_chats(rows, parts["chat"], indexes["chat", "id"], sound_rows["chat"])
    lost = {name for n, name in indexes["answer", "node"].keys.items() if name and n not in sound_rows["answer"]} | {
        row["node"] for row in parts["answer"].values()
    }
    texts = {name for name, row in rows.nodes.items() if row["text"] != LOST}
    loss.answers = len((lost & texts) - rows.answers.keys())
    rows.answers = {name: row for name, row in rows.answers.items() if name in rows.nodes}
    return rows, loss


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class _LostMessages:
    """The lost messages. Those whose place is known are put back without their text, so that the others stay in reach."""

    def __init__(self, rows: Rows, parts: Mapping[int, Row], indexes: Indexes) -> None:
        self._nodes, self._parts = rows.nodes, parts
        self._ids, self._chats, self._parents = (indexes["node", key].keys for key in ("id", "chat", "parent"))
        self._missing: dict[str, Row] = {}
        self._nameless = 0  # lost messages whose id is lost too
        self.count = 0

    def find(self, sound_rows: Mapping[int, Row]) -> None:
        """Find which there should be, by the indexes and by what is left of their rows."""
        for number in sorted({*self._ids, *self._chats, *self._parents, *self._parts} - sound_rows.keys()):
            part = self._parts.get(number, {})
            name = self._ids.get(number) or part.get("id")
            if name in self._nodes:
                continue
            text = _text(part.get("text"))
            if text is not None and ("\ufffd" in text or "\0" in text):  # noise of a damaged page
                text = None
            self.count += text is None
            parent = self._parents.get(number) or _text(part.get("parent"))
            if name is None:
                self._nameless += 1
                continue
            row = {"n": number, "id": name, "chat": self._chats.get(number) or part.get("chat"), "parent": parent}
            self._missing[name] = row | {"role": part.get("role"), "text": text}

    def put_back(self) -> None:
        """Put them back, and those that only their replies know."""
        nodes = [*self._nodes.values(), *self._missing.values()]
        children = {row["parent"]: row for row in nodes if row["parent"] is not None}
        for name, child in children.items():
            if name not in self._nodes and name not in self._missing:
                self._missing[name] = {"id": name, "chat": child["chat"], "parent": None, "role": None, "text": None}
                self.count += self._nameless == 0  # else it is one of those, and counted
                self._nameless -= self._nameless > 0
        self._find_chats(children)
        for name, row in self._missing.items():
            near = children.get(name) or self._nodes.get(row["parent"] or "") or {}
            row["role"] = row["role"] or self._role(row, children.get(name))
            row["text"] = LOST if row["text"] is None else row["text"]
            row |= {"thinking": "", "state": "complete", "created": near.get("created", 0.0), "model": ""}
        self._nodes |= {name: row for name, row in self._missing.items() if row["chat"] is not None}

    def _role(self, row: Row, child: Row | None) -> str:
        """Whose message it is: of the other one than its reply, or by its place after one that is known or begins the chat."""
        if child is not None and child["role"]:
            return _OTHER.get(child["role"], "user")
        turns, above, seen = 0, row["parent"], set[str]()
        while above and above not in seen and (one := self._nodes.get(above) or self._missing.get(above)) is not None:
            turns += 1
            if one["role"]:
                return _OTHER.get(one["role"], "user") if turns % 2 else one["role"]
            seen.add(above)
            above = one["parent"]
        return "assistant" if turns % 2 else "user"

    def _find_chats(self, children: Mapping[str, Row]) -> None:
        """A message is in the chat of its replies, and of what it replies to."""
        homeless = {name: row for name, row in self._missing.items() if row["chat"] is None}
        while homeless:
            for name, row in homeless.items():
                above = row["parent"] or ""
                near = (children.get(name), self._nodes.get(above), self._missing.get(above))
                row["chat"] = next((one["chat"] for one in near if one is not None and one["chat"] is not None), None)
            left = {name: row for name, row in homeless.items() if row["chat"] is None}
            if len(left) == len(homeless):
                return
            homeless = left


def _put_back_chats(rows: Rows, parts: Mapping[int, Row], index: Keys, sound_rows: Mapping[int, Row]) -> int:
    """Give chats of which messages are left a title and settings again; returns how many chats had lost them."""
    last: dict[str, Row] = {}
    first: dict[str, Row] = {}
    for row in sorted(rows.nodes.values(), key=lambda row: row.get("n", 0)):
        last[row["chat"]] = row
        if row["role"] == "user" and row["text"] != LOST:
            first.setdefault(row["chat"], row)
    by_id = {part["id"]: part for part in parts.values()}
    lost = {name for number, name in index.keys.items() if name and number not in sound_rows}
    lost = (lost | last.keys() | by_id.keys()) - rows.chats.keys()
    for name in lost & (last.keys() | by_id.keys()):
        part, moment = by_id.get(name, {}), last.get(name, {}).get("created", 0.0)
        title = part.get("title") or title_of(first.get(name, {}).get("text", "Chat"))
        row = {"id": name, "title": title, "settings": "{}"}
        row |= {key: part[key] if isinstance(part.get(key), float) else moment for key in ("created", "updated")}
        row |= {key: _text(part.get(key)) for key in ("head", "system", "deleted_by")}
        row["deleted"] = part.get("deleted") if isinstance(part.get("deleted"), float) else None
        rows.chats[name] = row
    for name, row in rows.chats.items():
        if row["head"] not in rows.nodes and name in last:
            row["head"] = last[name]["id"]
    return len(lost)
