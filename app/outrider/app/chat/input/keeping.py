"""Keeps what stands in the prompt while it is written, and puts it back when its chat is opened again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.app import files
from outrider.app.store.problems import StoreError

if TYPE_CHECKING:
    from textual.timer import Timer

    from outrider.app.chat.input.drafts import Draft, Drafts
    from outrider.app.chat.prompt import Prompt
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.store.records import Attachment

_PAUSE = 0.5  # seconds between a key and the file
_LONG, _LONG_PAUSE = 200_000, 3.0  # characters of attachments that are not written that often


def add(prompt: Prompt, text: str, attachments: Sequence[Attachment]) -> None:
    """Put what was never sent before what stands in the prompt, unless it stands there already."""
    texts = [prompt.text] if text.strip() in prompt.text else [text, prompt.text]
    files = [*(one for one in attachments if one not in prompt.attachments), *prompt.attachments]
    prompt.put("\n\n".join(filter(None, texts)), files)


class Keeping:
    """The drafts of one screen. Nothing is kept of a private chat. A disk that fails costs the draft alone."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._drafts: Drafts | None = None
        self._saved: Draft | None = None
        self._chat = ""
        self._timer: Timer | None = None
        self._moving = False  # to another chat
        self._complained = False
        self._one_at_a_time = asyncio.Lock()

    async def begin(self) -> None:
        """Find what an earlier program left, once it is known which chat it is."""
        session = self._screen.session
        if session.options.private:
            return
        from outrider.app.chat.input.drafts import Drafts

        with contextlib.suppress(OSError):
            self._drafts = await asyncio.to_thread(Drafts)
            await session.opened.wait()  # it may be a copy of the chat that was asked for
            await self._bring(session.chat.id)
            with contextlib.suppress(StoreError):
                known = await session.keeper.ask(lambda store: {row.id for row in store.chats()})
                if self._drafts is not None:  # else the program has ended meanwhile
                    await asyncio.to_thread(self._drafts.tidy, known | {session.chat.id})

    def changed(self) -> None:
        """Write it down in a moment; that it was sent, at once."""
        if self._drafts is None or self._moving:
            return
        prompt = self._screen.prompt
        if not prompt.text and not prompt.attachments:
            self._due()
        elif self._timer is None:
            long = sum(len(one.text) for one in prompt.attachments) > _LONG
            self._timer = self._screen.set_timer(_LONG_PAUSE if long else _PAUSE, self._due)

    def _due(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._screen.run_worker(self._write(self._screen.session.chat.id, self._now()))

    def _now(self) -> Draft:
        from outrider.app.chat.input.drafts import Draft

        prompt = self._screen.prompt
        return Draft(prompt.text, list(prompt.attachments))

    async def _write(self, chat: str, draft: Draft) -> None:
        async with self._one_at_a_time:
            drafts = self._drafts
            if chat != self._screen.session.chat.id:  # another has been opened; what was typed is kept with this one
                return
            if drafts is None or (draft == self._saved and chat == self._chat):
                return
            before, self._chat, self._saved = self._chat, chat, draft
            try:
                if chat != before:  # the new chat has got its name, or the text went along into another
                    await asyncio.to_thread(drafts.save, before, type(draft)())
                await asyncio.to_thread(drafts.save, chat, draft)
            except OSError as error:
                if not self._complained:
                    self._complained = True
                    self._screen.stage.tell(f"What you type is not kept until it is sent: {files.reason(error)}.")

    async def moved(self, before: str) -> None:
        """Another chat has been opened: what was typed stays with the one before, its own comes back."""
        if self._drafts is None:
            return
        self._moving = True
        draft = self._now()
        self._screen.prompt.put("", ())
        async with self._one_at_a_time:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._drafts.save, before, draft)
        await self._bring(self._screen.session.chat.id)
        self._moving = False

    async def _bring(self, chat: str) -> None:
        async with self._one_at_a_time:
            if self._drafts is None:
                return
            found = await asyncio.to_thread(self._drafts.load, chat)
            self._chat, self._saved = chat, found
        if found:
            add(self._screen.prompt, found.text, found.attachments)

    def close(self) -> None:
        """Write at once: the program ends."""
        drafts, self._drafts = self._drafts, None
        if drafts is None:
            return
        chat = self._screen.session.chat.id
        with contextlib.suppress(OSError):
            if chat != self._chat:
                drafts.save(self._chat, type(self._now())())
            drafts.save(chat, self._now())
        drafts.leave()
