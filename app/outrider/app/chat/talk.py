"""A chat as data: turns, replies as they grow, and the messages that the engine is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from outrider.app.chat.marks import Runs
from outrider.app.chat.meter import Meter
from outrider.core.protocol import Finish, Message, Report, Step


class End(Enum):
    """How a reply ended; `NOT_YET` while it is under way."""

    NOT_YET = ""
    WHOLE = "stop"
    LENGTH = "length limit"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


_ENDS: dict[Finish, End] = {
    "stop": End.WHOLE,
    "length": End.LENGTH,
    "cancelled": End.STOPPED,
    "error": End.INTERRUPTED,
}


class Reply:
    """One answer of the model: exact text, the kind of every character, figures."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.meter = Meter()
        self.end = End.NOT_YET
        self.report: Report | None = None
        self.drafters: list[str] = []  # in order of appearance
        self._parts: list[str] = []
        self._shown = 0  # parts that `fresh` has given out

    @property
    def text(self) -> str:
        """All of it so far, exactly as the model wrote it."""
        if len(self._parts) > 1 and self._shown == len(self._parts):
            self._parts = ["".join(self._parts)]
            self._shown = 1
        return "".join(self._parts)

    @property
    def begun(self) -> bool:
        """Whether any text has come."""
        return len(self.runs) > 0

    def take(self, step: Step) -> None:
        """Add what one pass brought."""
        self.meter.take(step)
        if not self.drafters or self.drafters[-1] != step.drafter:
            self.drafters.append(step.drafter)
        for token in step.tokens:
            if token.text:
                self._parts.append(token.text)
                self.runs.add(token.kind, len(token.text))

    def fresh(self) -> str:
        """The text since the last call."""
        new = "".join(self._parts[self._shown :])
        self._shown = len(self._parts)
        return new

    def finish(self, finish: Finish, report: Report) -> bool:
        """Close with the engine's report. False if its text is not what was streamed; then it replaces that."""
        self.end, self.report = _ENDS[finish], report
        streamed = self.text
        if report.text == streamed:
            return True
        if not streamed.startswith(report.text):
            self.runs = Runs()
            self.runs.add("P", len(report.text))
        self.runs.cut(len(report.text))
        self._parts, self._shown = [report.text], 1
        return False

    def interrupt(self) -> None:
        """Close without a report: the engine is gone or gave up."""
        self.end = End.INTERRUPTED


@dataclass(eq=False, slots=True)
class Turn:
    """What the user wrote and what came of it."""

    text: str
    reply: Reply | None = None
    failed: bool = False  # refused before a word was written: not part of the chat


@dataclass(eq=False, slots=True)
class Chat:
    """The turns of one chat, and its system prompt."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """What the engine is sent: kept text of stopped replies included, roles strictly alternating."""
        messages = [Message("system", self.system)] if self.system else []
        for role, content in self._said():
            if messages and messages[-1].role == role == "user":
                messages[-1] = Message(role, messages[-1].content + "\n\n" + content)
            else:
                messages.append(Message(role, content))
        return messages

    def last_reply(self) -> Reply | None:
        """The newest reply that has text."""
        for turn in reversed(self.turns):
            if turn.reply is not None and turn.reply.begun:
                return turn.reply
        return None

    def _said(self) -> Iterator[tuple[str, str]]:
        for turn in self.turns:
            if turn.failed:
                continue
            yield "user", turn.text
            if turn.reply is not None and turn.reply.begun:
                yield "assistant", turn.reply.text
