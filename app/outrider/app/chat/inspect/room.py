"""What the chat screen does to inspect tokens: remembers passes, and shows those of one reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.chat import layout
from outrider.app.chat.inspect.trail import Memory, Passage, joined, of_node
from outrider.app.chat.talk import End
from outrider.app.store.problems import StoreError
from outrider.core.base.protocol import Event, Step

if TYPE_CHECKING:
    from outrider.app.chat.inspect.view import Inspector
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.chat.talk import Reply, Turn


class Inspection:
    """While it is open, or the settings say so, the engine is asked for the details of every token."""

    def __init__(self, screen: ChatScreen, *, always: bool) -> None:
        self._screen = screen
        self.memory = Memory()
        self.view: Inspector | None = None
        self._reply: Reply | None = None
        self._kept: list[Passage] = []
        self._shown: tuple[Reply | None, int] = None, 0
        self.always(always)

    def always(self, on: bool) -> None:
        """Ask for details at all times, or only while the inspector is open."""
        (self._screen.session.details.add if on else self._screen.session.details.discard)("setting")

    def hear(self, turn: Turn, event: Event) -> None:
        """Something came of a running reply."""
        if turn.reply is not None and isinstance(event, Step):
            self.memory.take(turn.reply, event)

    @property
    def beside(self) -> bool:
        """Whether it wants to stand beside the text."""
        return self.view is not None and self._screen.app.screen is self._screen

    @property
    def able(self) -> bool:
        """Whether there is a reply, or the inspector is open."""
        return self.view is not None or self._last() is not None

    def toggle(self) -> None:
        """Inspect the focused reply, else the last one; put away what is open."""
        if self.view is not None:
            self.close()
            return
        reply = getattr(self._screen.focused, "reply", None) or self._last()
        if reply is None:
            self._screen.stage.flash("There is no reply to inspect yet")
            return
        self._screen.session.details.add("inspector")
        self._screen.stage.spawn(self._open(reply))

    def _last(self) -> Reply | None:
        session = self._screen.session
        return session.current.reply if session.current else session.chat.last_reply()

    async def _open(self, reply: Reply) -> None:
        from outrider.app.chat.inspect.cursor import Cursor
        from outrider.app.chat.inspect.view import Inspector, InspectorScreen

        self._reply = reply
        self._kept = await self._stored(reply)
        if self.view is not None:  # asked for twice
            return
        cursor = Cursor(self._passages())
        self.view = Inspector(cursor, self._typed)
        if self._screen.size.width >= layout.BESIDE:
            await self._screen.stats.side.mount(self.view)
            self._fit()
            self.view.focus()
        else:
            self._screen.app.push_screen(InspectorScreen(self.view, self.look, 0.25), self._gone)

    def _typed(self, letter: str) -> None:
        if self._screen.app.screen is self._screen:
            self._screen.prompt.focus()
        self._screen.prompt.insert(letter)  # also where the inspector lies over the chat

    async def _stored(self, reply: Reply) -> list[Passage]:
        chat, node = self._screen.session.chat.id, reply.node
        if reply.end is End.NOT_YET or not chat or not node or self.memory.whole(reply):
            return []
        try:
            whole = await self._screen.session.keeper.ask(lambda store: store.load(chat))
        except StoreError as error:
            self._screen.stage.tell(" ".join(filter(None, (error.message, error.hint))))
            return []
        return next((of_node(one) for one in whole.nodes if one.id == node), [])

    def _passages(self) -> list[Passage]:
        return joined(self._kept, self.memory.of(self._reply)) if self._reply is not None else []

    def look(self) -> None:
        """Follow a reply that runs, and go on to the next one."""
        view, reply = self.view, self._last()
        if view is None or reply is None or (reply is not self._reply and not view.cursor.follows):
            return
        if reply is not self._reply:
            self._reply, self._kept = reply, []
            if not self.memory.count(reply):
                self._screen.stage.spawn(self._look_up(reply))
        count = self.memory.count(reply)
        if (reply, count) != self._shown:
            self._shown = reply, count
            self._paint()

    async def _look_up(self, reply: Reply) -> None:
        kept = await self._stored(reply)
        if reply is self._reply:
            self._kept = kept
            self._paint()

    def _paint(self) -> None:
        if self.view is not None:
            self.view.cursor.grow(self._passages())
            self.view.paint()

    def close(self) -> bool:
        """Put it away. False if it was not open."""
        if self.view is None:
            return False
        view = self.view
        self._gone(None)
        view.remove()
        self._fit()
        self._screen.prompt.focus()
        return True

    def _gone(self, _: None) -> None:
        self.view = None
        self._reply, self._kept, self._shown = None, [], (None, 0)
        self._screen.session.details.discard("inspector")

    def _fit(self) -> None:
        self._screen.fit(self._screen.size.width)
