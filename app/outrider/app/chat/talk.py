"""A chat as data: turns, replies as they grow, and the messages that the engine is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from outrider.app.chat.input.attach import with_attachments
from outrider.app.chat.joined import joined, told_by
from outrider.app.chat.marks import UNKNOWN, Layers, Runs, tenth
from outrider.app.chat.meter import Meter
from outrider.app.chat.tree import Knot, Tree
from outrider.app.render import duration
from outrider.app.store.records import Attachment, Pass, Settings
from outrider.core.base.protocol import Finish, Kind, Message, Report, Step


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
        self.layers = Layers()
        self._parts: list[str] = []
        self._shown = 0  # parts that `fresh` has given out

    @property
    def runs(self) -> Runs[Kind]:
        """The kind of every character."""
        return self.layers.kinds

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

    def add(self, text: str, kind: Kind, chance: int = UNKNOWN) -> None:
        """Append the text of one token; `chance` is the tenth of its probability."""
        if text:
            self._parts.append(text)
            self.layers.add(kind, len(text), chance)

    def fill(self, text: str, kinds: Runs[Kind]) -> None:
        """Take a whole text with the kinds of its characters; passes and chances are for others to tell."""
        self._parts = [text]
        self.layers.kinds = kinds

    def fresh(self) -> str:
        """The text since the last call."""
        new = "".join(self._parts[self._shown :])
        self._shown = len(self._parts)
        return new

    def retell(self) -> None:
        """All of the text is new to whoever asks next."""
        self._shown = 0

    def cut(self, length: int) -> None:
        """Keep so many characters."""
        if length < len(self.runs):
            self._parts, self._shown = [self.text[:length]], min(self._shown, 1)
            self.layers.cut(length)

    def agree(self, final: str) -> bool:
        """Take the final text. False if it is not what was streamed; then it replaces that."""
        streamed = self.text
        if final == streamed:
            return True
        if final.startswith(streamed):  # the engine held the rest back
            self.layers.add("P", len(final) - len(streamed))
        elif not streamed.startswith(final):
            self.layers.clear()
            self.layers.add("P", len(final))
        self.layers.cut(len(final))
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

    def go_on(self) -> None:
        """The clock begins again with the next pass."""
        self._since = None

    def take(self, step: Step, tokens: int) -> None:
        """Count a pass of which so many tokens were thought."""
        if self._since is None:
            self._since = step.t - self.seconds
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
    """One answer of the model and the thought before it, with figures.

    It may be gone on with after its end. Its report is then that of all parts together, and `parts` says at which passes the
    later ones begin.
    """

    def __init__(self) -> None:
        self.answer, self.thought = Strand(), Thought()
        self.meter = Meter()
        self.end = End.NOT_YET
        self.report: Report | None = None
        self.drafters: list[str] = []  # in order of appearance
        self.node = ""  # its name in the store
        self.ids: list[int] = []
        self.kinds = ""  # a letter for each of `ids`
        self.passes: list[Pass] = []
        self.parts: list[int] = []
        self.lead = 0  # characters of the answer that the user wrote for the model to go on from
        self.settings: Settings | None = None  # what it was asked with, if that is known
        self._stood: _Stood | None = None  # as it was before the part at hand

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def begun(self) -> bool:
        """Whether anything has come, be it thought."""
        return self.answer.begun or self.thought.begun

    @property
    def resuming(self) -> bool:
        """Whether it is to go on and nothing of the new part has come."""
        return self._stood is not None and len(self.passes) == self._stood.passes

    @property
    def can_go_on(self) -> bool:
        """Whether it was cut, so that the model has more to say."""
        return self.begun and self.end in (End.LENGTH, End.STOPPED, End.INTERRUPTED)

    def begin_with(self, text: str) -> None:
        """Words of the user that the model is to go on from."""
        self.answer.add(text, "P")
        self.answer.layers.end_pass()
        self.end, self.lead = End.STOPPED, len(text)

    def go_on(self) -> None:
        """Another part will come."""
        seconds = self.passes[-1].t if self.passes else 0.0
        counts = len(self.passes), len(self.ids)
        self._stood = _Stood(self.end, self.report, *counts, self.text, self.thought.text, seconds)
        if self.passes:
            self.parts.append(len(self.passes))
        self.end, self.report, self.meter = End.NOT_YET, None, Meter()
        self.thought.go_on()
        self.answer.retell()
        self.thought.retell()

    def take(self, step: Step) -> None:
        """Add what one pass brought."""
        if step.stands is not None and self._stood is not None:
            self._take_back(*step.stands)
            self._stood.text, self._stood.thought = self.text, self.thought.text
        self.meter.take(step)
        if not self.drafters or self.drafters[-1] != step.drafter:
            self.drafters.append(step.drafter)
        for token in step.tokens:
            strand = self.thought if token.thinking else self.answer
            strand.add(token.text, token.kind, tenth(token.p))
        self.answer.layers.end_pass()
        self.thought.layers.end_pass()
        if thought := sum(token.thinking for token in step.tokens):
            self.thought.take(step, thought)
        self._count(step)

    def _take_back(self, answer: int, thought: int) -> None:
        """Keep so many characters: the others were only held, and come again."""
        self.answer.cut(answer)
        self.thought.cut(thought)
        extra = (
            sum(one.answer for one in self.passes) + self.lead - answer,
            sum(one.thought for one in self.passes) - thought,
        )
        left = [max(0, count) for count in extra]
        for place in range(len(self.passes) - 1, -1, -1):
            one = self.passes[place]
            gone = min(left[0], one.answer), min(left[1], one.thought)
            if any(gone):  # rows that are being saved share the passes
                self.passes[place] = msgspec.structs.replace(
                    one, answer=one.answer - gone[0], thought=one.thought - gone[1]
                )
            left = [count - less for count, less in zip(left, gone, strict=True)]

    def _count(self, step: Step) -> None:
        self.ids += [token.id for token in step.tokens]
        self.kinds += "".join(token.kind for token in step.tokens)
        thought = sum(len(token.text) for token in step.tokens if token.thinking)
        answer = sum(len(token.text) for token in step.tokens) - thought
        times = (round(step.draft_ms, 3), round(step.verify_ms, 3), round(step.host_ms, 3))
        told = (step.drafter, step.proposed, step.accepted, len(step.tokens), thought, answer)
        t = step.t + (self._stood.seconds if self._stood is not None else 0.0)
        self.passes.append(Pass(round(t, 4), *told, *times))

    def finish(self, finish: Finish, report: Report) -> bool:
        """Close with the engine's report. False if its texts are not what was streamed; then they replace that."""
        stood, then = self._stood, (report.text, report.thinking)
        if stood is not None:
            if self.resuming:  # stopped before anything came
                self.stay()
                return True
            if stood.passes:
                counts = self.ids[: stood.ids], self.kinds[: stood.ids]
                first = stood.report or told_by(self.passes[: stood.passes], self.parts[:-1], *counts, report)
                report = joined(first, report)
            report = msgspec.structs.replace(report, text=stood.text + then[0], thinking=stood.thought + then[1])
        self.end, self.report, self._stood = _ENDS[finish], report, None
        self.ids, self.kinds = list(report.token_ids), report.kinds
        same = self.answer.agree(report.text)
        return self.thought.agree(report.thinking) and same

    def stay(self) -> None:
        """Nothing of the new part has come, nor will it: all is as before."""
        if self._stood is not None:
            self.parts = [part for part in self.parts if part < self._stood.passes]
            self.end, self.report, self._stood = self._stood.end, self._stood.report, None

    def interrupt(self) -> None:
        """Close without a report: the engine is gone or gave up."""
        if self.resuming:
            self.stay()
        else:
            self.end, self._stood = End.INTERRUPTED, None


@dataclass(slots=True)
class _Stood:
    """A reply as it was before it went on."""

    end: End
    report: Report | None
    passes: int
    ids: int
    text: str
    thought: str
    seconds: float


@dataclass(eq=False, slots=True)
class Turn:
    """What the user wrote and what came of it."""

    text: str
    reply: Reply | None = None
    failed: bool = False  # refused before a word was written: not part of the chat
    node: str = ""  # its name in the store
    attachments: tuple[Attachment, ...] = ()

    @property
    def said(self) -> bool:
        """Whether the user said anything: a chat from elsewhere may begin with an answer."""
        return bool(self.text or self.attachments)


@dataclass(eq=False, slots=True)
class Chat:
    """The turns of one chat that are shown, its system prompt, and all of its messages as a tree."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    id: str = ""  # its name in the store, empty until something is said
    waiting: list[str] = field(default_factory=list)  # messages in the store that were never sent and are typed again
    unsent: list[Attachment] = field(default_factory=list)  # what was attached to them

    tree: Tree = field(default_factory=Tree)
    title: str = ""
    warned: float = 0.0  # the share of the context of which it was said that it is used

    def messages(self, *, going_on: bool = False) -> list[Message]:
        """What the engine is sent: kept text of stopped replies and all thoughts included, roles strictly alternating.

        `going_on`: the last one is a reply that goes on, be it a thought alone.
        """
        messages = [Message("system", self.system)] if self.system else []
        for said in self._said(going_on):
            if messages and messages[-1].role == said.role:
                messages[-1] = Message(said.role, messages[-1].content + "\n\n" + said.content, said.thinking)
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

    def plant(self, turn: Turn) -> None:
        """Put what a turn at the end says into the tree; both of its messages have their names."""
        above = self.last_node(before=turn) or ""
        if turn.said and turn.node not in self.tree:
            self.tree.add(Knot(turn.node, above, turn.text, turn.attachments))
        if turn.reply is not None:
            self.tree.add(Knot(turn.reply.node, turn.node or above, made=turn.reply))

    def uproot(self, turn: Turn) -> None:
        """Take the reply of a refused turn out of the tree, and its message unless it was answered before."""
        if turn.reply is not None:
            self.tree.cut(turn.reply.node)
        if not self.tree.under(turn.node):
            self.tree.cut(turn.node)

    def show(self, node: str) -> int:
        """Show the branch that ends with a message, or with nothing; returns how many of the turns shown before stay."""
        turns = _turns(self.tree.path(node))
        kept = 0
        for old, new in zip(self.turns, turns, strict=False):
            if old.failed or old.node != new.node or old.reply is not new.reply:
                break
            kept += 1
        self.turns = self.turns[:kept] + turns[kept:]
        return kept

    def turn_of(self, node: str) -> Turn | None:
        """The shown turn with a message of this name."""
        named = (turn for turn in self.turns if node in (turn.node, turn.reply.node if turn.reply else ""))
        return next((turn for turn in named if node and not turn.failed), None)

    def _said(self, going_on: bool) -> Iterator[Message]:
        for turn in self.turns:
            if turn.failed:
                continue
            if turn.said:
                yield Message("user", with_attachments(turn.text, turn.attachments))
            reply = turn.reply
            last = going_on and turn is self.turns[-1]
            if reply is not None and (reply.text or last):  # a thought alone was never said
                yield Message("assistant", reply.text, reply.thought.text)


def _turns(path: list[Knot]) -> list[Turn]:
    """A branch as turns."""
    turns: list[Turn] = []
    for knot in path:
        if not knot.of_model:
            turns.append(Turn(knot.text, node=knot.node, attachments=knot.attachments))
            continue
        if not turns or turns[-1].reply is not None:  # only in chats that came from elsewhere
            turns.append(Turn("", node=knot.above))
        turns[-1].reply = knot.reply
    return turns
