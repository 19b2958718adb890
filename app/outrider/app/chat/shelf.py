"""What the chat screen does with chats as a whole: open another, delete, bring back, rename, export."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app import files
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Hit, Row, short, title_of
from outrider.app.store.writing import FORMATS, free_name, kind_of, write_file, written

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


class Shelf:
    """All of it runs beside the typing, as workers of the screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def show(self, word: str = "") -> None:
        """Choose a chat from a list, or open the one that `word` means."""
        from outrider.app.chat.chats import ChatsScreen

        if word:
            self._screen.stage.spawn(self._find(word))
            return
        self._screen.app.push_screen(ChatsScreen(self._look, self._delete), self._open)

    async def _find(self, word: str) -> None:
        try:
            self._open(await self._screen.session.keeper.ask(lambda store: store.resolve(word)))
        except StoreError as error:
            self._tell(error)

    def _open(self, name: str | None) -> None:
        session = self._screen.session
        if name and name != session.chat.id:
            self._screen.stage.spawn(self._opened(name))

    async def _opened(self, name: str) -> None:
        """Open it; one that another window has open only as a copy, if that is wanted."""
        session = self._screen.session
        try:
            in_use = await session.keeper.ask(lambda store: store.in_use(name))
            title = (await session.keeper.ask(lambda store: store.load(name))).chat.title if in_use else ""
        except StoreError as error:
            self._tell(error)
            return
        if not in_use:
            await self._open_at_once(name)
            return
        from outrider.app.chat.confirm import ConfirmScreen

        question = f"“{title}” is open in another window, where it goes on. Open a copy of it here?"

        def answered(yes: bool | None) -> None:
            if yes:
                self._screen.stage.spawn(self._open_at_once(name))

        self._screen.app.push_screen(ConfirmScreen(question, "opens a copy", "stays here"), answered)

    async def _open_at_once(self, name: str) -> None:
        await self._screen.session.open_chat(name)
        self._screen.prompt.focus()

    async def _look(self, words: str, limit: int) -> Sequence[Row | Hit]:
        keeper = self._screen.session.keeper
        if words:
            return await keeper.ask(lambda store: store.search(words, limit))
        return await keeper.ask(lambda store: store.chats(limit))

    async def _delete(self, name: str) -> bool:
        session = self._screen.session
        if name == session.chat.id:
            self._screen.new_chat()
        try:
            gone = await session.keeper.ask(lambda store: store.delete_chat(name))
        except StoreError as error:
            self._tell(error)
            return False
        self._screen.stage.flash(f"Deleted “{gone.title}”; /undo brings it back")
        return True

    def delete(self) -> None:
        """Delete the chat that is open."""
        if name := self._screen.session.chat.id:
            self._screen.stage.spawn(self._deleted(name))
        else:
            self._screen.stage.flash("Nothing was said here yet")

    async def _deleted(self, name: str) -> None:
        await self._delete(name)

    def undo(self) -> None:
        """Bring back what was deleted last."""
        self._screen.stage.spawn(self._undo())

    async def _undo(self) -> None:
        session, stage = self._screen.session, self._screen.stage
        try:
            back = await session.keeper.ask(lambda store: store.undo())
        except StoreError as error:
            if not await session.branches.bring_back():  # nothing is saved, but this chat knows its own
                self._tell(error)
            return
        if back is None:
            stage.flash("There is nothing to bring back")
        elif not back.node:
            stage.flash(f"Brought back “{back.title}”")
            if not session.chat.turns:
                await session.open_chat(back.chat)
        elif back.chat == session.chat.id:
            stage.flash("Brought back what was deleted")
            if not await session.branches.bring_back(back.node):
                await session.open_chat(back.chat)
        else:
            stage.flash(f"Brought back a message of “{back.title}”")

    def rename(self, title: str) -> None:
        """Give the open chat another title."""
        name, stage = self._screen.session.chat.id, self._screen.stage
        if not title:
            stage.tell("/rename needs the new title after it.")
            return
        if not name:
            stage.flash("Nothing was said here yet")
            return
        self._screen.session.keeper.do(lambda store: store.rename(name, title))
        self._screen.session.chat.title = title_of(title)
        self._screen.stage.status_changed()
        stage.flash(f"Title: {title_of(title)}")

    def export(self, words: str) -> None:
        """Write the open chat to a file: `words` name it, or the format alone."""
        name = self._screen.session.chat.id
        if name:
            self._screen.stage.spawn(self._export(name, words))
        else:
            self._screen.stage.flash("Nothing was said here yet")

    async def _export(self, name: str, words: str) -> None:
        stage = self._screen.stage
        try:
            whole = await self._screen.session.keeper.ask(lambda store: store.load(name))
            kind = words if words in FORMATS else kind_of(Path(words) if words else None)
            given = Path(words).expanduser() if words not in ("", *FORMATS) else None
            path = given or free_name(Path.cwd(), whole.chat.title, kind)
            text = await asyncio.to_thread(written, kind, [whole])
            await asyncio.to_thread(write_file, path, text)
        except StoreError as error:
            self._tell(error)
        except OSError as error:
            stage.tell(f"The chat {short(name)} could not be written: {files.reason(error)} ({error.filename}).")
        else:
            stage.tell(f"Wrote this chat to {path.absolute()}")

    def _tell(self, error: StoreError) -> None:
        self._screen.stage.tell(" ".join(filter(None, (error.message, error.hint))))
