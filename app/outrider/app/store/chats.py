"""What can be done with the chats of an open store. All of it belongs to one thread at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from outrider.app import files
from outrider.app.store import rows, schema, search
from outrider.app.store.codec import count
from outrider.app.store.ids import new_id
from outrider.app.store.opening import PATIENCE, Opened, open_copy, open_file, store_path
from outrider.app.store.problems import StoreError, explain
from outrider.app.store.records import Attachment, Chat, Deleted, Hit, Kept, Node, Row, Settings, Whole, short, title_of
from outrider.app.store.writers import Unshared, Writers, writers_of
from outrider.core.base.protocol import Report


class Store:
    """An open store. Its methods raise `StoreError` when the file fails them."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._db = opened.connection
        self._writers: Writers | None = None
        self.unread: set[str] = set()
        """Messages that were loaded without their attachments, marks and figures, which are damaged."""
        if opened.trouble is not None:
            return
        try:
            self._writers = Writers(writers_of(opened.path)) if opened.shared else Unshared()
            with self._talking():
                self._settle()
        except OSError as error:
            self.close()
            raise StoreError(f"Nothing can be written beside {self.path}: {files.reason(error)}.") from error
        except StoreError:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path | None = None, *, patience: float = PATIENCE, repairs: bool = True) -> Store:
        """The user's store, or the one at `path`; a damaged one is repaired."""
        path = path or store_path()
        opened = open_file(path, patience, repairs=repairs)
        try:
            return cls(opened)
        except StoreError as trouble:
            return cls(open_copy(path, trouble))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave it."""
        self._db.close()
        if self._writers is not None:
            self._writers.leave()

    @property
    def trouble(self) -> StoreError | None:
        """Why nothing can be saved, None if all is well."""
        return self._opened.trouble

    @property
    def unreadable(self) -> bool:
        """Whether there is a store, but nothing in it can be read: whoever reads gets `trouble`."""
        return self._opened.unreadable

    @property
    def lost(self) -> str:
        """What a copy of a damaged store lacks, a sentence; empty for all others."""
        return self._opened.lost

    @property
    def repaired(self) -> str:
        """What was lost of a store that was damaged until now, and where that lies; empty for all others."""
        return self._opened.repaired

    @property
    def path(self) -> Path:
        """The file, also where this is only a copy of it."""
        return self._opened.path

    @contextmanager
    def changing(self) -> Iterator[None]:
        """All or nothing. Raises `StoreError` if nothing can be saved."""
        if self._opened.trouble is not None:
            raise self._opened.trouble
        with self._talking(), schema.change(self._db):
            yield

    @contextmanager
    def _talking(self) -> Iterator[None]:
        if self.unreadable and self.trouble is not None:  # nobody must take it for one without chats
            raise self.trouble
        try:
            yield
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._talking():
            return self._db.execute(sql, values).fetchall()

    # ------------------------------------------------------------------------------------------------ at the start

    def _settle(self) -> None:
        """Mark what a program that died left under way, and bring the index up to date."""
        dead = self._dead("SELECT DISTINCT writer FROM node WHERE state = 'partial'")
        if dead:
            marks = ", ".join("?" * len(dead))
            with schema.change(self._db):
                self._db.execute(
                    f"UPDATE node SET state = 'interrupted' WHERE state = 'partial' AND writer IN ({marks})", dead
                )
        search.build_index(self._db)

    def _dead(self, sql: str) -> list[str]:
        assert self._writers is not None
        return [name for (name,) in self._db.execute(sql).fetchall() if not self._writers.alive(name or "")]

    def purge(self) -> None:
        """Delete for good what was deleted by programs that have ended."""
        with self.changing():
            assert self._writers is not None
            self._writers.clear()
            dead = self._dead(
                "SELECT deleted_by FROM chat WHERE deleted IS NOT NULL UNION "
                "SELECT deleted_by FROM node WHERE deleted IS NOT NULL"
            )
            if not dead:
                return
            gone = f"deleted_by IN ({', '.join('?' * len(dead))})"
            doomed = (
                f"WITH RECURSIVE doomed (id) AS (SELECT id FROM node WHERE {gone} OR chat IN (SELECT id FROM chat WHERE {gone})"
                " UNION SELECT node.id FROM node JOIN doomed ON node.parent = doomed.id) SELECT id FROM doomed"
            )
            if search.has_index(self._db):
                search.drop_from_index(self._db, f"id IN ({doomed})", (*dead, *dead))
            self._db.execute(f"DELETE FROM node WHERE id IN ({doomed})", (*dead, *dead))
            self._db.execute(f"DELETE FROM chat WHERE {gone}", dead)

    # ------------------------------------------------------------------------------------------------ writing

    def put_chat(self, chat: Chat) -> None:
        """Add a chat, or update all of it but its title and its birth."""
        with self.changing():
            self._db.execute(rows.PUT_CHAT, rows.of_chat(chat))

    def put_node(self, chat: str, node: Node) -> None:
        """Add a message or bring it up to date; its chat becomes the newest."""
        with self.changing():
            assert self._writers is not None
            self._db.execute(rows.PUT_NODE, rows.of_node(chat, node, self._writers.me))
            if node.answer is not None:
                self._db.execute(rows.PUT_ANSWER, rows.of_answer(node.id, node.answer))
            self._db.execute("UPDATE chat SET updated = max(updated, ?) WHERE id = ?", (time.time(), chat))

    def hold(self, chat: str) -> None:
        """Keep other programs from deleting a chat that is open here; the one before is free."""
        if self._writers is not None:
            self._writers.hold(chat)

    def claim(self, chat: str) -> bool:
        """`hold` it, unless it is open in another window: then False, and nothing is held."""
        return self._writers is None or self._writers.claim(chat)

    def in_use(self, chat: str) -> bool:
        """Whether another window has this chat open. One that died has none."""
        return self._writers is not None and self._writers.holds(chat)

    def set_head(self, chat: str, node: str | None) -> None:
        """The last message of the branch that is shown."""
        with self.changing():
            self._db.execute("UPDATE chat SET head = ? WHERE id = ?", (node, chat))

    def rename(self, chat: str, title: str) -> None:
        """Give a chat another title."""
        with self.changing():
            self._db.execute("UPDATE chat SET title = ? WHERE id = ?", (title_of(title), chat))

    def index(self) -> None:
        """Have the search find what has been finished since."""
        with self.changing():
            if search.has_index(self._db):
                search.add_to_index(self._db)

    def insert(self, whole: Whole) -> bool:
        """Add a chat from elsewhere. False if a chat of that id is here already."""
        with self.changing():
            if self._all("SELECT 1 FROM chat WHERE id = ?", (whole.chat.id,)):
                return False
            self.put_chat(whole.chat)
            for node in whole.nodes:
                self.put_node(whole.chat.id, node)
            self._db.execute("UPDATE chat SET updated = ? WHERE id = ?", (whole.chat.updated, whole.chat.id))
        self.index()
        return True

    # ------------------------------------------------------------------------------------------------ the tree

    def branches(self, node: str) -> list[str]:
        """The messages that stand at the same place as `node`, itself included, oldest first."""
        sql = (
            "SELECT other.id FROM node AS one JOIN node AS other ON other.chat = one.chat AND other.parent IS one.parent "
            "AND other.role = one.role WHERE one.id = ? AND other.deleted IS NULL AND other.state NOT IN ('waiting', 'failed') "
            "ORDER BY other.id"
        )
        return [name for (name,) in self._all(sql, (node,))]

    def choose(self, node: str) -> str:
        """Show the branch that goes through `node`, down to its newest message; returns that."""
        with self.changing():
            head = node
            below = (
                "SELECT id FROM node WHERE parent = ? AND deleted IS NULL AND state NOT IN ('waiting', 'failed') "
                "ORDER BY id DESC LIMIT 1"
            )
            while found := self._all(below, (head,)):
                head = found[0][0]
            self._db.execute("UPDATE chat SET head = ? WHERE id = (SELECT chat FROM node WHERE id = ?)", (head, node))
        return head

    def delete_node(self, node: str) -> Deleted:
        """Delete a message and all below it; another branch is shown, or what stands above it."""
        with self.changing():
            chat, title, parent = self._all(
                "SELECT chat.id, chat.title, parent FROM node JOIN chat ON chat.id = node.chat WHERE node.id = ?",
                (node,),
            )[0]
            self._mark("node", node)
            if self._leads_to(node, chat):
                if left := self.branches(node):
                    self.choose(left[-1])
                else:
                    self.set_head(chat, parent)
        return Deleted(chat=chat, title=title, node=node)

    def _leads_to(self, node: str, chat: str) -> bool:
        """Whether the branch that is shown goes through `node`."""
        sql = (
            "WITH RECURSIVE shown (id, parent) AS "
            "(SELECT node.id, parent FROM node JOIN chat ON head = node.id WHERE chat.id = ? "
            "UNION SELECT node.id, node.parent FROM node JOIN shown ON node.id = shown.parent) "
            "SELECT 1 FROM shown WHERE id = ?"
        )
        return bool(self._all(sql, (chat, node)))

    def remove_node(self, node: str) -> None:
        """Take back a message that never went out, for good."""
        with self.changing():
            self._db.execute("DELETE FROM node WHERE id = ? AND state = 'waiting'", (node,))

    def remove_empty(self, chat: str) -> None:
        """Forget a chat in which nothing was said."""
        with self.changing():
            self._db.execute("DELETE FROM chat WHERE id = ? AND id NOT IN (SELECT chat FROM node)", (chat,))

    def reopen(self, node: str) -> None:
        """A reply that was finished goes on; the search forgets it until it is finished again."""
        with self.changing():
            if search.has_index(self._db):
                search.drop_from_index(self._db, "id = ?", (node,))
            self._db.execute("UPDATE node SET indexed = 0 WHERE id = ?", (node,))

    def branch(self, chat: str, node: str | None, what: str = "branch", since: str = "") -> str:
        """A new chat that begins with the messages down to `node`, as copies; returns its id. Raises `StoreError`.

        `since`: the first of them, in place of the beginning. `what`: how its title tells it from the other.
        """
        whole = self.load(chat)
        whole.chat.head = node
        path = whole.path()
        path = path[next((place for place, one in enumerate(path) if one.id == since), 0) :]
        names = {one.id: new_id() for one in path}
        for one in path:
            one.id, one.parent = names[one.id], names.get(one.parent or "")
            one.state = "interrupted" if one.state == "partial" else one.state
        whole.chat.id, whole.chat.head = new_id(), path[-1].id if path else None
        whole.chat.title = title_of(f"{whole.chat.title} · {what}")
        whole.chat.created = whole.chat.updated = time.time()
        self.insert(Whole(chat=whole.chat, nodes=path))
        return whole.chat.id

    def copy(self, chat: str) -> str:
        """A new chat like one that is open elsewhere, down to its last reply that is not being written; empty if none is."""
        whole = self.load(chat)
        ended = [node.id for node in whole.path() if node.role == "assistant" and node.state != "partial"]
        return self.branch(chat, ended[-1], "copy") if ended else ""

    def fail_node(self, node: str) -> None:
        """A message that the engine refused: it is kept, but is no part of the chat."""
        with self.changing():
            self._db.execute("UPDATE node SET state = 'failed' WHERE id = ?", (node,))

    def delete_chat(self, chat: str) -> Deleted:
        """Delete a chat; `undo` brings it back until the next start. Raises `StoreError` while it is open elsewhere."""
        with self.changing():
            assert self._writers is not None
            title = self._all("SELECT title FROM chat WHERE id = ?", (chat,))[0][0]
            if self._writers.holds(chat):
                raise StoreError(f"“{title}” is open in another Outrider window.", "Close it there first.")
            self._mark("chat", chat)
        return Deleted(chat=chat, title=title)

    def _mark(self, table: str, name: str) -> None:
        assert self._writers is not None
        marked = (time.time(), self._writers.me, name)
        self._db.execute(f"UPDATE {table} SET deleted = ?, deleted_by = ? WHERE id = ?", marked)

    def undo(self) -> Deleted | None:
        """Bring back what was deleted last; None if there is nothing."""
        with self.changing():
            found = self._all(
                "SELECT deleted, id, title, '' FROM chat WHERE deleted IS NOT NULL UNION ALL "
                "SELECT node.deleted, chat.id, title, node.id FROM node JOIN chat ON chat.id = node.chat "
                "WHERE node.deleted IS NOT NULL ORDER BY 1 DESC LIMIT 1"
            )
            if not found:
                return None
            _, chat, title, node = found[0]
            table = "node" if node else "chat"
            self._db.execute(f"UPDATE {table} SET deleted = NULL, deleted_by = NULL WHERE id = ?", (node or chat,))
            if node:
                self.choose(node)
        return Deleted(chat=chat, title=title, node=node)

    # ------------------------------------------------------------------------------------------------ reading

    def chats(self, limit: int = -1) -> list[Row]:
        """All chats, the one last written in first."""
        sql = (
            "SELECT id, title, created, updated, (WITH RECURSIVE shown (id, parent, role, state) AS "
            "(SELECT node.id, parent, role, state FROM node WHERE deleted IS NULL AND node.id = "
            "ifnull(head, (SELECT max(id) FROM node WHERE chat = chat.id)) UNION ALL "
            "SELECT node.id, node.parent, node.role, node.state FROM node JOIN shown ON node.id = shown.parent) "
            "SELECT count(*) FROM shown WHERE role = 'user' AND state != 'failed'), settings FROM "
            "(SELECT * FROM chat WHERE deleted IS NULL ORDER BY updated DESC, id DESC LIMIT ?) AS chat"
        )
        found, held = [], set(self._writers.held().values()) if self._writers is not None else set()
        for *told, settings in self._all(sql, (limit,)):
            chat, title, created, updated, messages = told
            try:
                model = self._read(settings, Settings).model.model
            except StoreError:  # which costs no more than this
                model = ""
            row = Row(id=chat, title=title, created=created, updated=updated, messages=messages, model=model)
            row.in_use = chat in held
            found.append(row)
        return found

    def written(self) -> list[str]:
        """The chats in which this program has written a message."""
        me = self._writers.me if self._writers is not None else ""
        return [name for (name,) in self._all("SELECT DISTINCT chat FROM node WHERE writer = ? ORDER BY chat", (me,))]

    def load(self, chat: str) -> Whole:
        """A chat with all of its messages. Raises `StoreError` if it is not here or the file fails."""
        found = self._all(rows.GET_CHAT, (chat,))
        if not found:
            raise StoreError(f"There is no chat {short(chat)}.", "`outrider chats list` shows what is here.")
        nodes = [rows.to_node(row) for row in self._all(rows.GET_NODES, (chat,))]
        self.unread |= {node.id for node, damaged in nodes if damaged}
        return Whole(chat=rows.to_chat(found[0]), nodes=[node for node, _ in nodes])

    def _read(self, text: str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreError(f"The chats at {self.path} are damaged ({error}).") from error

    def resolve(self, word: str) -> str:
        """The id that `word` means: an id, the end of one, or `last`. Raises `StoreError` if that is none or several."""
        hint = "`outrider chats list` shows what is here."
        ids = [row.id for row in self.chats()]
        if word.lower() == "last":
            if not ids:
                raise StoreError("There is no chat yet.", "`outrider` begins one.")
            return ids[0]
        wanted = word.strip().upper()
        found = [name for name in ids if name == wanted] or [name for name in ids if wanted and name.endswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            raise StoreError(f"{len(found)} chats end with {word}.", f"Give more of it. {hint}")
        raise StoreError(f"There is no chat {word}.", hint)

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Messages that have all of the words."""
        with self._talking():
            return search.find(self._db, query, limit)

    def finished(self) -> list[Kept]:
        """The reports of all replies that have ended, also those on branches that are not shown; copies count once."""
        sql = (
            "SELECT node.created, report, kinds, answer.settings FROM answer JOIN node ON node.id = answer.node "
            "JOIN chat ON chat.id = node.chat WHERE report IS NOT NULL AND node.deleted IS NULL AND chat.deleted IS NULL "
            "ORDER BY node.created"
        )
        found: dict[tuple[float, int], Kept] = {}
        for created, report, kinds, settings in self._all(sql):
            with suppress(StoreError, ValueError):  # a damaged one costs no more than itself
                told = self._read(report, Report)
                outrider = self._read(settings, Settings).outrider if settings else ""
                found.setdefault((created, told.seed), Kept(created, outrider, count(kinds), told))
        return list(found.values())

    def waiting(self, chat: str) -> list[tuple[str, str]]:
        """Id and text of messages that a program which died had not sent yet, oldest first."""
        sql = "SELECT id, text, writer FROM node WHERE chat = ? AND state = 'waiting' ORDER BY id"
        writers = self._writers
        found = self._all(sql, (chat,)) if writers is not None else []
        return [(name, text) for name, text, writer in found if writers and not writers.alive(writer or "")]

    def attached(self, node: str) -> list[Attachment]:
        """What goes with a message."""
        found = self._all("SELECT attachments FROM node WHERE id = ? AND attachments != ''", (node,))
        return self._read(found[0][0], list[Attachment]) if found else []

    def prompts(self, limit: int) -> list[str]:
        """What the user wrote last, oldest first, each once."""
        sql = (
            "SELECT text FROM node JOIN chat ON chat.id = node.chat WHERE role = 'user' AND chat.deleted IS NULL "
            "AND node.deleted IS NULL GROUP BY text ORDER BY max(n) DESC LIMIT ?"
        )
        return [text for (text,) in self._all(sql, (limit,))][::-1]
