"""Copies messages, code blocks, the whole chat and selections, and says which way they went."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, cast

from outrider.app.chat import clipboard
from outrider.app.chat.talk import Chat

if TYPE_CHECKING:
    from outrider.app.chat.app import ChatApp
    from outrider.app.chat.codes import Code
    from outrider.app.chat.screen import ChatScreen


def written(chat: Chat) -> str:
    """A chat as Markdown: what was said, exactly, each under who said it; thoughts are left out."""
    parts = [f"# System\n\n{chat.system}"] if chat.system else []
    for turn in chat.turns:
        if turn.failed:
            continue
        if turn.text:
            parts.append(f"# You\n\n{turn.text}")
        if turn.reply is not None and turn.reply.text:
            parts.append(f"# Assistant\n\n{turn.reply.text}")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n" if parts else ""


class Copying:
    """What is copied is the exact Markdown, but for a selection, which is what is seen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def by_words(self, words: str) -> None:
        """`/copy`: the message, `chat`, or `code` with a number."""
        what, _, number = words.partition(" ")
        if what == "chat" and not number:
            self.chat()
        elif what == "code":
            self.code(number)
        elif not what:
            self.message()
        else:
            self._screen.stage.tell(f"/copy takes nothing, chat, code or code NUMBER after it, not {words}.")

    def message(self) -> None:
        """The focused message, else the last reply."""
        text, what = self._text()
        if text:
            self.copy(text, what)
        else:
            self._screen.stage.flash("There is no reply to copy yet")

    def chat(self) -> None:
        """All that was said in this chat."""
        text = written(self._screen.session.chat)
        if text:
            self.copy(text, "the chat")
        else:
            self._screen.stage.flash("Nothing was said here yet")

    def code(self, number: str) -> None:
        """A code block of the focused or the last reply by its number; with several and no number one is asked for."""
        from outrider.app.chat.codes import CodesScreen, codes_of

        codes = codes_of(self._text()[0])
        if not codes:
            self._screen.stage.flash("There is no code block in this message")
        elif number and not (number.isdigit() and 1 <= int(number) <= len(codes)):
            self._screen.stage.flash(f"There are code blocks 1 to {len(codes)} here, not {number}")
        elif number or len(codes) == 1:
            self._code(codes, int(number or 1))
        else:
            self._screen.app.push_screen(CodesScreen(codes), lambda chosen: self._code(codes, chosen or 0))

    def _code(self, codes: list[Code], number: int) -> None:
        if number:
            what = "the code block" if len(codes) == 1 else f"code block {number} of {len(codes)}"
            self.copy(codes[number - 1].text, what)

    def copy(self, text: str, what: str = "", *, tell: bool = True) -> None:
        """Copy any text; `tell`: say how much of `what` went which way."""
        app = cast("ChatApp", self._screen.app)
        app.take_clip(text)
        env = os.environ
        if clipboard.sequences(text, env) and not clipboard.doubtful(env):
            self._tell(clipboard.copy(text, app.write_terminal), what, tell)
        else:
            self._screen.run_worker(self._copy(text, what, tell))

    async def _copy(self, text: str, what: str, tell: bool) -> None:
        done = await asyncio.to_thread(clipboard.copy, text, cast("ChatApp", self._screen.app).write_terminal)
        self._tell(done, what, tell)

    def _tell(self, done: clipboard.Copied, what: str, tell: bool) -> None:
        if tell or done.problem:
            self._screen.stage.flash(done.told(what))

    def _text(self) -> tuple[str, str]:
        focused, chat = self._screen.focused, self._screen.session.chat
        turn = getattr(focused, "turn", None)
        if turn is not None:
            return turn.text, "your message"
        reply = getattr(focused, "reply", None) or chat.last_reply()
        if reply is None:
            return "", ""
        return reply.text, "the reply without its thought" if reply.thought.begun else "the reply"
