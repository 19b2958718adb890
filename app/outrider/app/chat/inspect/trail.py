"""The passes behind a reply, token by token: as they came, or as the store has kept them. Knows no widgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from weakref import WeakKeyDictionary, WeakSet

from outrider.app.chat.talk import Reply
from outrider.app.store.codec import expand, runs_of
from outrider.app.store.records import Answer, Node, Pass
from outrider.core.base.protocol import RejectedToken, Step

MOST = 20_000  # tokens that are remembered with what stood behind them


@dataclass(slots=True)
class Seen:
    """One token, or `count` neighbours of one kind where their border is not known. `top`: the target's best, text and p."""

    text: str
    kind: str
    p: float | None = None
    top: list[tuple[str, float]] = field(default_factory=list)
    count: int = 1
    thinking: bool = False


@dataclass(slots=True)
class Passage:
    """One pass of the target. `rejected` is None where it was not asked for."""

    t: float
    drafter: str
    proposed: int
    accepted: int
    tokens: list[Seen]
    draft_ms: float
    verify_ms: float
    host_ms: float
    prompt: bool = False  # it read the prompt
    rejected: list[RejectedToken] | None = None

    @property
    def text(self) -> str:
        """What it brought."""
        return "".join(token.text for token in self.tokens)


def of_step(step: Step) -> Passage:
    """A pass as it came."""
    tokens = []
    for index, token in enumerate(step.tokens):
        ids = step.top[index] if step.top and index < len(step.top) else []
        texts = step.top_text[index] if step.top_text and index < len(step.top_text) else [f"#{one}" for one, _ in ids]
        top = [(text, p) for text, (_, p) in zip(texts, ids, strict=False)]
        tokens.append(Seen(token.text, token.kind, token.p, top, thinking=token.thinking))
    return Passage(
        t=step.t,
        drafter=step.drafter,
        proposed=step.proposed,
        accepted=step.accepted,
        tokens=tokens,
        draft_ms=step.draft_ms,
        verify_ms=step.verify_ms,
        host_ms=step.host_ms,
        prompt=step.seq == 0,
        rejected=step.rejected,
    )


def of_node(node: Node) -> list[Passage]:
    """The passes that the store has kept of a reply, with as much of its tokens as it knows."""
    kept = node.answer or Answer()
    kinds = expand(kept.kinds)
    answer = _Strand(node.text, kept.marks)
    thought = _Strand(node.thinking, kept.thought_marks)
    made: list[Passage] = []
    at = 0
    for place, one in enumerate(kept.passes):
        letters = kinds[at : at + one.tokens]
        at += one.tokens
        parts = [*thought.take(one.thought, thinking=True), *answer.take(one.answer, thinking=False)]
        made.append(_passage(one, _counted(parts, letters), prompt=place == 0))
    return made


def _passage(one: Pass, tokens: list[Seen], *, prompt: bool) -> Passage:
    return Passage(
        t=one.t,
        drafter=one.drafter,
        proposed=one.proposed,
        accepted=one.accepted,
        tokens=tokens,
        draft_ms=one.draft_ms,
        verify_ms=one.verify_ms,
        host_ms=one.host_ms,
        prompt=prompt,
    )


class _Strand:
    """A text with its marks, given out from its beginning."""

    def __init__(self, text: str, marks: str) -> None:
        self._text = text
        self._runs = list(runs_of(marks, len(text)))
        self._at = 0

    def take(self, length: int, *, thinking: bool) -> Iterator[Seen]:
        """The next characters, one part for each kind."""
        start, end = self._at, min(self._at + length, len(self._text))
        self._at = end
        for run in self._runs:
            low, high = max(run.start, start), min(run.end, end)
            if low < high:
                yield Seen(self._text[low:high], run.kind, thinking=thinking)


def _counted(parts: list[Seen], letters: str) -> list[Seen]:
    """The parts of a pass with how many tokens each is, where the kinds tell."""
    groups = [(kind, len(list(some))) for kind, some in groupby(letters)]
    if [kind for kind, _ in groups] == [part.kind for part in parts]:
        for part, (_, count) in zip(parts, groups, strict=True):
            part.count = count
    return parts


class Memory:
    """The newest passes of this session, as many as `most` tokens: those of the oldest replies go first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: WeakKeyDictionary[Reply, list[Step]] = WeakKeyDictionary()
        self._whole: WeakSet[Reply] = WeakSet()

    def take(self, reply: Reply, step: Step) -> None:
        """Remember one pass, before the reply takes it."""
        if reply not in self._held and not reply.begun:
            self._whole.add(reply)
        self._held.setdefault(reply, []).append(step)
        if step.seq % 64 == 0:
            self._forget(reply)

    def _forget(self, newest: Reply) -> None:
        sizes = {reply: sum(len(step.tokens) for step in steps) for reply, steps in self._held.items()}
        total = sum(sizes.values())
        for reply, size in sizes.items():
            if total <= self._most:
                return
            total -= size
            self._whole.discard(reply)
            if reply is not newest:
                del self._held[reply]
            else:
                self._held[reply] = self._held[reply][-max(1, len(self._held[reply]) // 2) :]

    def count(self, reply: Reply) -> int:
        """How many passes of a reply are remembered."""
        return len(self._held.get(reply, ()))

    def whole(self, reply: Reply) -> bool:
        """Whether all passes of a reply are remembered."""
        return reply in self._whole

    def of(self, reply: Reply) -> list[Passage]:
        """What is remembered of a reply: its newest passes, or none."""
        return [of_step(step) for step in self._held.get(reply, [])]


def joined(kept: list[Passage], heard: list[Passage]) -> list[Passage]:
    """What the store has of a finished reply, with what is remembered of its end in place of that."""
    return [*kept[: max(0, len(kept) - len(heard))], *heard]
