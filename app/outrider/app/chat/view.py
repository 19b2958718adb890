"""What a session tells about, and whom: the screen, or whatever else shows a chat."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from outrider.app.chat.problem import Problem
from outrider.app.chat.talk import Chat, Turn


class View(Protocol):
    """What the session tells about."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else; its errors are the program's."""
        ...

    def status_changed(self) -> None:
        """State, progress, drafter or figures are new."""
        ...

    def turn_sent(self, turn: Turn) -> None:
        """A queued turn goes to the engine."""
        ...

    def reply_grew(self, turn: Turn) -> None:
        """More of a reply has come."""
        ...

    def reply_ended(self, turn: Turn) -> None:
        """A reply is complete, stopped or interrupted; a refused turn has `failed` set."""
        ...

    async def path_changed(self, chat: Chat, kept: int) -> None:
        """Another branch of the chat is shown; the first `kept` of its turns are those that were shown before."""
        ...

    async def chat_opened(self, chat: Chat, typed: str) -> None:
        """A chat from the store takes the place of the one that was shown; `typed` was never sent."""
        ...

    def recall(self, prompts: list[str]) -> None:
        """What the user wrote in earlier chats, oldest first."""
        ...

    def tell(self, text: str) -> None:
        """A line for the transcript."""
        ...

    def flash(self, text: str) -> None:
        """A line that goes away by itself."""
        ...

    def complain(self, problem: Problem) -> None:
        """An error card for the transcript."""
        ...
