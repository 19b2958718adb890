"""Another way from some message on: edited, answered anew, gone on with, chosen, deleted, brought back. Knows no widgets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from outrider.app.chat.context import is_full, newest
from outrider.app.chat.talk import Chat, Reply, Turn
from outrider.app.chat.tree import Knot
from outrider.app.store.records import Attachment
from outrider.core.base.protocol import Sampling

if TYPE_CHECKING:
    from outrider.app.chat.session import Session


class Branches:
    """What a session does with the tree of its chat.

    Whoever edits a message or has it answered anew stops the reply that is under way: it stands below that message, and is
    kept. Everything else waits for the user to stop it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gone: list[tuple[Chat, list[Knot]]] = []  # what was deleted, the last one last

    def edit(self, turn: Turn, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Say something else in the place of a message; what followed from that stays as a branch."""
        session, chat = self._session, self._session.chat
        edited = Turn(text, attachments=tuple(attachments))
        above = _above(chat, turn)
        session.diary.queued(chat, edited, session.settings())
        self._anew(chat, above, edited, session.sampling)

    def regenerate(self, turn: Turn) -> None:
        """Answer a message once more, by a fresh seed; the answers before stay as branches."""
        chat = self._session.chat
        again = Turn(turn.text, node=turn.node, attachments=turn.attachments)
        self._anew(chat, _above(chat, turn), again, msgspec.structs.replace(self._session.sampling, seed=None))

    def _anew(self, chat: Chat, above: str, turn: Turn, sampling: Sampling) -> None:
        self._session.stop()
        self._session.errands.append(partial(self._answer, chat, above, turn, sampling))
        self._session.see_to_it()

    async def _answer(self, chat: Chat, above: str, turn: Turn, sampling: Sampling) -> None:
        session = self._session
        if session.chat is not chat:
            return
        before = chat.last_node() or ""
        session.claim()
        kept = chat.show(above)
        chat.turns.append(turn)
        await session.view.path_changed(chat, kept)
        if not session.still(chat):
            return
        await session.answer(turn, sampling)
        if turn.failed and session.chat is chat:
            await self._show(chat, before)

    def rewrite(self, turn: Turn, text: str) -> None:
        """Have the model go on from other words than its own, which stay as a branch."""
        self._session.stop()
        self._session.errands.append(partial(self._rewrite, self._session.chat, turn, text))
        self._session.see_to_it()

    async def _rewrite(self, chat: Chat, turn: Turn, text: str) -> None:
        session = self._session
        if session.chat is not chat:
            return
        session.claim()
        kept = chat.show(_above(chat, turn))
        reply = Reply()
        reply.begin_with(text)
        other = Turn(turn.text, reply, node=turn.node, attachments=turn.attachments)
        chat.turns.append(other)
        session.diary.rewritten(chat, other, session.settings())
        chat.plant(other)
        await session.view.path_changed(chat, kept)
        if session.still(chat):
            await session.go_on(other, reply)

    def keep_going(self, turn: Turn) -> None:
        """Go on with the last reply, which was cut."""
        self._session.errands.append(partial(self._go_on, self._session.chat, turn))
        self._session.see_to_it()

    async def _go_on(self, chat: Chat, turn: Turn) -> None:
        if self._session.chat is chat and self.can_go_on(turn) is not None:
            assert turn.reply is not None
            await self._session.go_on(turn, turn.reply)

    def can_go_on(self, turn: Turn) -> Reply | None:
        """The reply of a turn, if it was cut and nothing came after it."""
        reply = turn.reply
        last = next((one for one in reversed(self._session.chat.turns) if not one.failed), None)
        able = reply is not None and reply.can_go_on and turn is last and not is_full(reply, self.room)
        return reply if able else None

    @property
    def room(self) -> int:
        """Tokens of the context, 0 while that is not known."""
        return self._session.loaded.context if self._session.loaded is not None else 0

    async def carry_over(self) -> str:
        """Open a new chat that begins with the newest turns of this one, which stays; says what it did."""
        session, chat = self._session, self._session.chat
        kept, old, head = newest(chat, self.room), chat.id, chat.last_node()
        count = sum(not turn.failed for turn in chat.turns)
        first = kept[0].node if kept[0].said else kept[0].reply.node if kept[0].reply is not None else ""
        made = await session.keeper.ask(lambda store: store.branch(old, head, "continued", since=first))
        if not await session.open_chat(made):
            return ""
        turns = "the last turn" if len(kept) == 1 else f"the last {len(kept)} turns"
        return f"This is a new chat that begins with {turns} of {count}. The old one is kept as it was."

    async def choose(self, node: str) -> None:
        """Show the branch that goes through a message, down to its newest one."""
        chat = self._session.chat
        await self._show(chat, chat.tree.leaf(node))

    async def delete(self, node: str) -> None:
        """Delete a message and what follows from it. Its nearest sibling is shown then, or what stands above it."""
        chat, tree = self._session.chat, self._session.chat.tree
        siblings, above = tree.siblings(node), tree[node].above
        place = siblings.index(node)
        left = siblings[:place] + siblings[place + 1 :]
        self._gone.append((chat, tree.cut(node)))
        self._session.keeper.do(lambda store: store.delete_node(node))
        await self._show(chat, tree.leaf(left[min(place, len(left) - 1)]) if left else above)

    async def bring_back(self, node: str = "") -> bool:
        """Put back what was deleted last, or what began with this message. False if it is not known here."""
        chat = self._session.chat
        for number in range(len(self._gone) - 1, -1, -1):
            where, knots = self._gone[number]
            if where is chat and node in ("", knots[0].node):
                del self._gone[number]
                for knot in knots:
                    chat.tree.add(knot)
                await self.choose(knots[0].node)
                return True
        return False

    async def _show(self, chat: Chat, node: str) -> None:
        kept = chat.show(node)
        self._session.diary.shows(chat)
        await self._session.view.path_changed(chat, kept)


def _above(chat: Chat, turn: Turn) -> str:
    """What stands above a turn of the tree."""
    return chat.tree[turn.node].above
