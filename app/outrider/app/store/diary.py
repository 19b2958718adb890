"""Tells the keeper what happens in a chat, in the words of the chat: turns and replies become messages of a tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outrider.app.chat.talk import Chat, Turn
from outrider.app.store.ids import new_id
from outrider.app.store.keeper import Keeper
from outrider.app.store.records import Chat as ChatRow
from outrider.app.store.records import Node, Settings, title_of
from outrider.app.store.replies import row_of
from outrider.core.base.protocol import Finish, Report, Step

if TYPE_CHECKING:
    from outrider.app.store.chats import Store


class Diary:
    """Everything that a session writes down."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def queued(self, chat: Chat, turn: Turn, settings: Settings) -> None:
        """A message waits. Its place in the tree is known when it goes out."""
        turn.node = new_id()
        files = list(turn.attachments)
        node = Node(id=turn.node, role="user", text=turn.text, state="waiting", created=time.time(), attachments=files)
        again, chat.waiting = chat.waiting, []
        for old in again:
            self.keeper.do(lambda store, old=old: store.remove_node(old))
        self._put(self._row(chat, turn, settings, chat.last_node()), node)

    def recalled(self, chat: Chat, turn: Turn) -> None:
        """A waiting message was taken back."""
        name, node = chat.id, turn.node

        def work(store: Store) -> None:
            store.remove_node(node)
            store.remove_empty(name)

        self.keeper.do(work)

    def sent(self, chat: Chat, turn: Turn, settings: Settings) -> None:
        """A message, the newest of `chat`, goes to the engine; its reply is awaited."""
        assert turn.reply is not None
        parent = chat.last_node(before=turn)
        now = time.time()
        files = list(turn.attachments)
        node = Node(id=turn.node, role="user", text=turn.text, parent=parent, created=now, attachments=files)
        turn.reply.node = new_id()
        row = self._row(chat, turn, settings, turn.reply.node)
        self._put(row, node)
        self.keeper.begin(chat.id, _reply(turn, settings), settings)

    def rewritten(self, chat: Chat, turn: Turn, settings: Settings) -> None:
        """The user has begun the newest reply, and the model is to go on with it."""
        assert turn.reply is not None
        turn.reply.node = new_id()
        turn.reply.settings = settings
        self._put(self._row(chat, turn, settings, turn.reply.node), self.row(turn, settings))

    def row(self, turn: Turn, settings: Settings) -> Node:
        """What is kept of a reply as it stands now."""
        assert turn.reply is not None
        return row_of(_reply(turn, settings), turn.reply, turn.reply.settings)

    def goes_on(self, chat: Chat, stood: Node, settings: Settings) -> None:
        """The first pass of another part of a reply, which stood like this, is about to be taken."""
        self.keeper.do(lambda store: store.reopen(stood.id))
        self.keeper.begin(chat.id, stood, settings)

    def shows(self, chat: Chat) -> None:
        """Another branch is shown."""
        name, head = chat.id, chat.last_node()
        self.keeper.do(lambda store: store.set_head(name, head))

    def grew(self, turn: Turn, step: Step) -> None:
        """A pass of the reply has come."""
        assert turn.reply is not None
        self.keeper.take(turn.reply.node, step)

    def finished(self, turn: Turn, finish: Finish, report: Report) -> None:
        """The reply has ended."""
        assert turn.reply is not None
        self.keeper.finish(turn.reply.node, finish, report)

    def interrupted(self, chat: Chat, turn: Turn) -> None:
        """The reply has ended without a report; a refused message leaves the branch that is shown.

        One that was answered before stays where it is.
        """
        assert turn.reply is not None
        self.keeper.interrupt(turn.reply.node)
        if turn.failed:
            parent, chat_id = chat.last_node(before=turn), chat.id
            node = turn.reply.node if turn.node in chat.tree else turn.node
            self.keeper.do(lambda store: _take_out(store, chat_id, node, parent))

    def _row(self, chat: Chat, turn: Turn, settings: Settings, head: str | None) -> ChatRow:
        chat.id = chat.id or new_id()
        now = time.time()
        title = title_of(turn.text or next((one.name for one in turn.attachments), ""))
        chat.title = chat.title or title
        return ChatRow(
            id=chat.id, title=title, created=now, updated=now, head=head, system=chat.system, settings=settings
        )

    def _put(self, row: ChatRow, node: Node) -> None:
        def work(store: Store) -> None:
            store.hold(row.id)
            store.put_chat(row)
            store.put_node(row.id, node)

        self.keeper.do(work)


def _reply(turn: Turn, settings: Settings) -> Node:
    assert turn.reply is not None
    return Node(
        id=turn.reply.node,
        role="assistant",
        text="",
        parent=turn.node,
        state="partial",
        created=time.time(),
        model=settings.model.model,
    )


def _take_out(store: Store, chat: str, node: str, head: str | None) -> None:
    store.fail_node(node)
    store.set_head(chat, head)
