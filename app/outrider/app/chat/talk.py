"""A chat as data: turns, replies as they grow, and the messages that the engine is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from outrider.app.chat.marks import Runs
from outrider.app.chat.meter import Meter
from outrider.app.render import duration
from outrider.core.protocol import Finish, Kind, Message, Report, Step


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


class Strand:
    """A text that grows token by token: exact, with the kind of every character."""

    def __init__(self) -> None:
        self.runs = Runs()
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

    def add(self, text: str, kind: Kind) -> None:
        """Append the text of one token."""
        if text:
            self._parts.append(text)
            self.runs.add(kind, len(text))

    def fresh(self) -> str:
        """The text since the last call."""
        new = "".join(self._parts[self._shown :])
        self._shown = len(self._parts)
        return new

    def agree(self, final: str) -> bool:
        """Take the final text. False if it is not what was streamed; then it replaces that."""
        streamed = self.text
        if final == streamed:
            return True
        if final.startswith(streamed):  # the engine held the rest back
            self.runs.add("P", len(final) - len(streamed))
        elif not streamed.startswith(final):
            self.runs = Runs()
            self.runs.add("P", len(final))
        self.runs.cut(len(final))
        self._parts, self._shown = [final], 1
        return False


class Thought(Strand):
    """What the model thought, and the figures of it. Seconds are the engine's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0
        self.seconds = 0.0
        self.proposed = self.accepted = 0
        self._since: float | None = None

    def take(self, step: Step, tokens: int) -> None:
        """Count a pass of which so many tokens were thought."""
        if self._since is None:
            self._since = step.t
        self.seconds = step.t - self._since
        self.tokens += tokens
        self.proposed += step.proposed
        self.accepted += step.accepted


def figures(thought: Thought) -> str:
    """`12 s, 340 tokens, 78% accepted`."""
    time = f"{thought.seconds:.1f} s" if thought.seconds < 9.95 else duration(thought.seconds)
    parts = [time, f"{thought.tokens:,} token{'s' if thought.tokens != 1 else ''}"]
    if thought.proposed:
        parts.append(f"{100 * thought.accepted / thought.proposed:.0f}% accepted")
    return ", ".join(parts)


class Reply:
    """One answer of the model and the thought before it, with figures."""

    def __init__(self) -> None:
        self.answer, self.thought = Strand(), Thought()
        self.meter = Meter()
        self.end = End.NOT_YET
        self.report: Report | None = None
        self.drafters: list[str] = []  # in order of appearance
        self.node = ""  # its name in the store

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def begun(self) -> bool:
        """Whether anything has come, be it thought."""
        return self.answer.begun or self.thought.begun

    def take(self, step: Step) -> None:
        """Add what one pass brought."""
        self.meter.take(step)
        if not self.drafters or self.drafters[-1] != step.drafter:
            self.drafters.append(step.drafter)
        for token in step.tokens:
            strand = self.thought if token.thinking else self.answer
            strand.add(token.text, token.kind)
        if thought := sum(token.thinking for token in step.tokens):
            self.thought.take(step, thought)

    def finish(self, finish: Finish, report: Report) -> bool:
        """Close with the engine's report. False if its texts are not what was streamed; then they replace that."""
        self.end, self.report = _ENDS[finish], report
        same = self.answer.agree(report.text)
        return self.thought.agree(report.thinking) and same

    def interrupt(self) -> None:
        """Close without a report: the engine is gone or gave up."""
        self.end = End.INTERRUPTED


@dataclass(eq=False, slots=True)
class Turn:
    """What the user wrote and what came of it."""

    text: str
    reply: Reply | None = None
    failed: bool = False  # refused before a word was written: not part of the chat
    node: str = ""  # its name in the store


@dataclass(eq=False, slots=True)
class Chat:
    """The turns of one chat, and its system prompt."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    id: str = ""  # its name in the store, empty until something is said
    waiting: list[str] = field(default_factory=list)  # messages in the store that were never sent and are typed again

    def messages(self) -> list[Message]:
        """What the engine is sent: kept text of stopped replies and all thoughts included, roles strictly alternating."""
        messages = [Message("system", self.system)] if self.system else []
        for said in self._said():
            if messages and messages[-1].role == said.role:
                messages[-1] = Message(said.role, messages[-1].content + "\n\n" + said.content)
            else:
                messages.append(said)
        return messages

    def last_reply(self) -> Reply | None:
        """The newest reply that has begun."""
        for turn in reversed(self.turns):
            if turn.reply is not None and turn.reply.begun:
                return turn.reply
        return None

    def last_node(self, before: Turn | None = None) -> str | None:
        """Name in the store of what stands above the turn `before`, or above the next one."""
        turns = self.turns[: self.turns.index(before)] if before in self.turns else self.turns
        for turn in reversed(turns):
            if not turn.failed:
                return (turn.reply.node if turn.reply else "") or turn.node or None
        return None

    def _said(self) -> Iterator[Message]:
        for turn in self.turns:
            if turn.failed:
                continue
            if turn.text:  # a chat from elsewhere may begin with an answer
                yield Message("user", turn.text)
            if turn.reply is not None and turn.reply.text:  # a thought alone was never said
                yield Message("assistant", turn.reply.text, turn.reply.thought.text)
