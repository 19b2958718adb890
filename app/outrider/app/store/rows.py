"""Records as rows of the tables, and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from outrider.app.store import chances, codec
from outrider.app.store.records import Answer, Attachment, Chat, Figures, Node, Pass, Settings
from outrider.core.base.protocol import Report

PUT_CHAT = (
    "INSERT INTO chat (id, title, created, updated, head, system, settings) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET updated = excluded.updated, head = excluded.head, system = excluded.system, "
    "settings = excluded.settings"
)
PUT_NODE = (
    "INSERT INTO node (id, chat, parent, role, text, thinking, state, created, model, writer, attachments) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET parent = excluded.parent, text = excluded.text, "
    "thinking = excluded.thinking, state = excluded.state, model = excluded.model, writer = excluded.writer, "
    "attachments = excluded.attachments WHERE node.indexed = 0"  # the index would not know
)
PUT_ANSWER = (
    "INSERT OR REPLACE INTO answer (node, marks, thought_marks, ids, kinds, passes, figures, settings, report, chances) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ANSWER = ("marks", "thought_marks", "ids", "kinds", "passes", "figures", "settings", "report", "chances")
GET_CHAT = "SELECT id, title, created, updated, head, system, settings FROM chat WHERE id = ? AND deleted IS NULL"
GET_NODES = (
    "WITH RECURSIVE kept (id) AS (SELECT id FROM node WHERE chat = ? AND parent IS NULL AND deleted IS NULL "
    "AND state NOT IN ('waiting', 'failed') UNION ALL SELECT node.id FROM node JOIN kept ON node.parent = kept.id "
    "WHERE node.deleted IS NULL AND state NOT IN ('waiting', 'failed')) "
    "SELECT node.id, parent, role, text, thinking, state, created, model, attachments, marks, thought_marks, ids, kinds, "
    "passes, figures, settings, report, chances FROM kept JOIN node ON node.id = kept.id "
    "LEFT JOIN answer ON answer.node = node.id ORDER BY node.n"
)


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def of_chat(chat: Chat) -> tuple[Any, ...]:
    """What `PUT_CHAT` takes."""
    told = (chat.id, whole_text(chat.title), chat.created, chat.updated, chat.head)
    return (*told, whole_text(chat.system), _json(chat.settings))


def to_chat(row: tuple[Any, ...]) -> Chat:
    """A row of `GET_CHAT`; damaged settings are those of a new chat."""
    chat, title, created, updated, head, system, settings = row
    decoded = Settings()
    with suppress(msgspec.MsgspecError):
        decoded = msgspec.json.decode(settings, type=Settings)
    return Chat(id=chat, title=title, created=created, updated=updated, head=head, system=system, settings=decoded)


def of_node(chat: str, node: Node, writer: str) -> tuple[Any, ...]:
    """What `PUT_NODE` takes."""
    texts = (whole_text(node.text), whole_text(node.thinking))
    kept = whole_text(_json(node.attachments)) if node.attachments else ""
    return (node.id, chat, node.parent, node.role, *texts, node.state, node.created, node.model, writer, kept)


def of_answer(node: str, answer: Answer) -> tuple[Any, ...]:
    """What `PUT_ANSWER` takes."""
    packed = (codec.pack_ids(answer.ids), answer.kinds, codec.pack(answer.passes))
    told = (_json(answer.figures), _json(answer.settings), _json(answer.report))
    return (node, answer.marks, answer.thought_marks, *packed, *told, answer.chances)


def to_node(row: tuple[Any, ...]) -> tuple[Node, bool]:
    """A row of `GET_NODES`, and whether its attachments or its answer are damaged and left out."""
    name, parent, role, text, thinking, state, created, model, attachments, marks, *kept = row
    node = Node(
        id=name, parent=parent, role=role, text=text, thinking=thinking, state=state, created=created, model=model
    )
    damaged = False
    if attachments:
        try:
            node.attachments = msgspec.json.decode(attachments, type=list[Attachment])
        except msgspec.MsgspecError:
            damaged = True
    if marks is not None:
        node.answer = to_answer((marks, *kept))
    return node, damaged or (marks is not None and node.answer is None)


def to_answer(row: tuple[Any, ...]) -> Answer | None:
    """The columns `ANSWER` of a row, None if they are damaged."""
    marks, thought_marks, ids, kinds, passes, figures, settings, report, likely = row
    try:
        for text in (marks, thought_marks, kinds):
            codec.count(text)
        if likely:
            chances.check(likely)
        return Answer(
            marks=marks,
            thought_marks=thought_marks,
            ids=codec.unpack_ids(ids),
            kinds=kinds,
            passes=codec.unpack(passes, list[Pass]),
            figures=msgspec.json.decode(figures, type=Figures),
            settings=None if settings is None else msgspec.json.decode(settings, type=Settings),
            report=None if report is None else msgspec.json.decode(report, type=Report),
            chances=likely,
        )
    except (ValueError, TypeError, msgspec.MsgspecError):
        return None


def whole_text(text: Any) -> Any:
    """Text without halves of characters, which SQLite does not take."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text
