"""Several drafters as one: in every round the one whose draft promises the best rate, or none.

Sources: the rule of SAM decoding (Hu et al., arXiv 2411.10666), with measured rates in the place of a match length, and that of
Not-a-Bandit (arXiv 2510.20064): drafters that cost nothing are scored on all text. Free drafters are asked first in every
round, so that the policy knows their offers; of the others at most one works at a time, and what it missed is told to it
when it is asked again.

Why the law of the text stays exact: a free offer hangs on committed tokens alone, so a choice by offers does too. Where a
drafter that draws was silent, its silence may hang on what it drew; who drafts in its place loses its `probs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .drafting import Context, Draft, Needs, Shape, Step
from .known_states import KnownStates
from .policy import Candidate, Offer, Policy
from .registry import GuardedDrafter
from .rounds import first_children
from .shadows import Scored, Shadow

OPEN = 8  # offers of one drafter that wait to be judged
WATCHED = 8  # tokens of each that are judged: soon, rather than deep
LATE, HELD = 64, 1024  # tokens that wait for a free drafter at most, and for another one that does not draft


class Composite:
    """Rides like a `GuardedDrafter`; each part hears everything, about its own drafts only."""

    device = block = False
    chooses = True
    line: int | None = None

    def __init__(
        self, parts: Sequence[GuardedDrafter], policy: Policy, *, trees: bool = True, forked: bool = False
    ) -> None:
        self.name = parts[0].name if len(parts) == 1 else "composite"
        states = tuple(sorted({number for part in parts for number in part.needs.hidden}))
        self._parts = [_Part(drafter, _columns(states, drafter.needs.hidden)) for drafter in parts]
        self._policy, self._trees, self._forked = policy, trees, forked
        self._riding: _Part | None = None
        self._open = False  # whether it has drafted, and waits to hear what came of it
        self.known = 0
        self._states = KnownStates()
        self.trusted = any(part.trusted for part in parts)
        self.free = all(part.free for part in parts)
        needs = [part.needs for part in parts]
        self.needs = Needs(
            states,
            max(need.early for need in needs),
            tuple(sorted({layer for need in needs for layer in need.kv})),
            any(need.choices for need in needs),
        )
        self.shape = Shape(max(part.shape.nodes for part in parts), max(part.shape.depth for part in parts))

    @property
    def failed(self) -> bool:
        """Whether none can go on."""
        return all(part.drafter.failed for part in self._parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of those that can draft."""
        return tuple(part.drafter.name for part in self._parts if not part.drafter.failed)

    @property
    def riding(self) -> str:
        """Who made the last draft, or was asked for it; "none" where nobody was."""
        return self._riding.drafter.name if self._riding is not None else "none"

    def reset(self) -> None:
        """Forget the conversation."""
        self.known, self._riding, self._open = 0, None, False
        self._states = KnownStates()
        for part in self._parts:
            part.forget()
            part.drafter.reset()

    def advance(self, step: Step) -> None:
        """Hand on what became true; nodes and choices go to the one that drafted."""
        elsewhere = replace(step, path=torch.empty(0, dtype=torch.int64), choices=None)
        tokens = step.tokens.tolist()
        for part in self._parts:
            for scored, sure in part.judged(step.start, tokens):
                self._policy.heard(part.drafter.name, scored, sure)
            drafted = self._open and part is self._riding
            part.hear(step if drafted else elsewhere, now=drafted)
        self._open = False
        self.known = step.start + len(tokens)
        self._states.add(step)

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens."""
        for part in self._parts:
            part.rewind(length)
        self.known = min(self.known, length)
        self._states.cut(length)

    def lacking(self, newest: int) -> int:
        """As `Rider`; all parts got the same states."""
        return self._states.lacking(self.known - newest, self.known) if self.needs.hidden else 0

    def restate(self, step: Step) -> None:
        """As `Rider`, for the parts that need states."""
        for part in self._parts:
            if part.drafter.needs.hidden:
                part.rewind(step.start)
                part.hear(step, now=False)
        self._states.cut(step.start)
        self._states.add(step)

    def propose(self, context: Context, vocab: int) -> Draft | None:
        """The draft that the policy chose, if it wants one."""
        self._riding = None
        able = [part for part in self._parts if not part.drafter.failed]
        offers = {part.drafter.name: draft for part in able if (draft := self._offer(part, context, vocab)) is not None}
        draft, probs = None, context.probs
        while draft is None:
            candidates = [_candidate(part, context.nodes, offers) for part in able]
            choose = self._policy.likeliest if self._forked else self._policy.choose
            choice = choose([one for one in candidates if one is not None])
            if not choice.tokens:
                break
            part = self._riding = next(part for part in able if part.drafter.name == choice.name)
            if part.drafter.free:
                draft = _first(offers[choice.name], choice.tokens)
            else:
                able.remove(part)
                asked = replace(context, nodes=choice.tokens, probs=probs and part.drafter.trusted)
                draft, probs = self._ask(part, asked, vocab), False
                if draft is None:
                    self._policy.silent(choice.name)
        self._watch(offers, context)
        self._open = self._riding is not None
        return draft

    def propose_device(self, nodes: int) -> Tensor | None:
        """There is no device form: the choice is the host's."""
        return None

    def advance_device(self, tokens: Tensor, count: Tensor, hidden: Tensor) -> None:
        """Never called."""

    def fork(self, report: Callable[[str], None]) -> Composite | None:
        """Forks of all parts; the length of their drafts is then chosen by whoever asks."""
        made = [fork for part in self._parts if (fork := part.drafter.fork(report)) is not None]
        return Composite(made, self._policy, trees=self._trees, forked=True) if made else None

    def close(self) -> None:
        """Free all."""
        for part in self._parts:
            part.drafter.close()

    def _offer(self, part: _Part, context: Context, vocab: int) -> Draft | None:
        """What a free part proposes; of a tree that the target does not take, the line that it would verify."""
        draft = part.offer(context, vocab)
        if draft is None or draft.parents is None or self._trees:
            return draft
        line = first_children(draft.parents.tolist())
        return Draft(draft.tokens[line], confidence=None if draft.confidence is None else draft.confidence[line])

    def _ask(self, part: _Part, context: Context, vocab: int) -> Draft | None:
        """A draft of one that is not free; what it costs is learnt."""
        costs = self._policy.costs.drafting(part.drafter.name)
        began = time.perf_counter()
        if behind := part.behind:
            part.catch_up()
            costs.caught_up(behind, time.perf_counter() - began)
            began = time.perf_counter()
        draft = part.drafter.propose(context, vocab)
        if draft is not None:
            costs.saw(draft.tokens.shape[0], time.perf_counter() - began)
        return draft

    def _watch(self, offers: dict[str, Draft], context: Context) -> None:
        """Offers that are not verified wait for the text that comes."""
        for part in self._parts:
            draft = offers.get(part.drafter.name)
            if draft is not None and part is not self._riding:
                line = None if draft.parents is None else first_children(draft.parents.tolist())
                sure = None if draft.confidence is None else _along(draft.confidence, line)
                part.watch(len(context.tokens), _along(draft.tokens, line), sure)


class _Part:
    """One drafter, its open offers, and what it has not been told."""

    def __init__(self, drafter: GuardedDrafter, columns: list[int] | None) -> None:
        """`columns`: which of the states that are read are its own, None: all."""
        self.drafter = drafter
        self._columns = columns
        self._waiting: list[Step] = []
        self.forget()

    def forget(self) -> None:
        """No open offer, nothing to tell."""
        self._open: list[tuple[Shadow, list[float] | None]] = []  # and how sure it was of each token
        self._waiting.clear()
        self.behind = 0  # tokens that it has not been told of

    def watch(self, position: int, tokens: Sequence[int], sure: list[float] | None) -> None:
        """An offer of it waits for the text that comes; there are so many at most."""
        if len(self._open) < OPEN:
            shadow = Shadow(self.drafter.name)
            shadow.offer(position, tokens[:WATCHED])
            self._open.append((shadow, sure))

    def judged(self, start: int, tokens: Sequence[int]) -> list[tuple[Scored, list[float] | None]]:
        """Offers that the tokens from `start` on settle, with how sure it was of them."""
        found = [(scored, sure) for shadow, sure in self._open for scored in shadow.heard(start, tokens)]
        self._open = [one for one in self._open if not one[0].wants]
        return found

    def offer(self, context: Context, vocab: int) -> Draft | None:
        """What it proposes, if it is free."""
        if not self.drafter.free:
            return None
        self.catch_up()
        nodes = min(context.nodes, self.drafter.shape.nodes)
        return self.drafter.propose(replace(context, nodes=nodes, probs=False, worth_drafting=None), vocab)

    def hear(self, step: Step, *, now: bool) -> None:
        """Tell it, at once where it has just drafted or much would wait; else when it is asked again, all at once."""
        much = self.behind + step.tokens.shape[0] >= (LATE if self.drafter.free else HELD)
        if now or much or self.drafter.failed:
            self.catch_up()
            self._tell(step)
        else:
            self._waiting.append(step)
            self.behind += step.tokens.shape[0]

    def catch_up(self) -> None:
        """Tell what waits."""
        waiting, self._waiting, self.behind = self._waiting, [], 0
        if waiting:
            self._tell(_joined(waiting))

    def _tell(self, step: Step) -> None:
        if self._columns is not None and step.hidden is not None:
            step = replace(step, hidden=step.hidden[:, self._columns] if self._columns else None)
        self.drafter.advance(step)

    def rewind(self, length: int) -> None:
        """Cut it, and what waits, to `length` tokens."""
        waiting = [step for step in self._waiting if step.start < length]
        self.forget()
        if waiting and waiting[-1].start + waiting[-1].tokens.shape[0] > length:
            waiting[-1] = _cut(waiting[-1], length - waiting[-1].start)
        self._waiting, self.behind = waiting, sum(step.tokens.shape[0] for step in waiting)
        self.drafter.rewind(length)


def _columns(states: Sequence[int], own: Sequence[int]) -> list[int] | None:
    """Where a part's states lie among all that are read, None where they are all."""
    return None if tuple(own) == tuple(states) else [states.index(number) for number in own]


def _candidate(part: _Part, nodes: int, offers: dict[str, Draft]) -> Candidate | None:
    """How a part stands in this round; None where it is silent."""
    drafter = part.drafter
    most = min(nodes, drafter.shape.nodes)
    if not drafter.free:
        return Candidate(drafter.name, most, block=drafter.block, behind=part.behind, line=drafter.line)
    draft = offers.get(drafter.name)
    if draft is None:
        return None
    sure = None if draft.confidence is None else draft.confidence.tolist()
    count = draft.tokens.shape[0]
    if draft.parents is None:
        return Candidate(drafter.name, count, Offer(range(count), None, sure))
    parents = draft.parents.tolist()
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return Candidate(drafter.name, count, Offer(depths, parents, sure))


def _first(draft: Draft, nodes: int) -> Draft:
    """The first nodes of a draft; parents stand before their children, so it is a draft."""
    if nodes >= draft.tokens.shape[0]:
        return draft
    return Draft(
        draft.tokens[:nodes],
        None if draft.parents is None else draft.parents[:nodes],
        None,
        None if draft.confidence is None else draft.confidence[:nodes],
    )


def _along(values: Tensor, line: list[int] | None) -> list[Any]:
    """Values of all nodes, or of those of a line."""
    return values.tolist() if line is None else values[line].tolist()


def _joined(steps: Sequence[Step]) -> Step:
    """Steps that follow each other as one; of their states those that reach to the end without a gap."""
    if len(steps) == 1:
        return steps[0]
    states: list[Tensor] = []
    for step in reversed(steps):
        if step.hidden is None:
            break
        states.insert(0, step.hidden)
        if step.hidden.shape[0] < step.tokens.shape[0]:
            break
    tokens = torch.cat([step.tokens for step in steps])
    return Step(steps[0].start, tokens, torch.empty(0, dtype=torch.int64), torch.cat(states) if states else None)


def _cut(step: Step, length: int) -> Step:
    """The first tokens of a step, with their states."""
    missing = step.tokens.shape[0] - (step.hidden.shape[0] if step.hidden is not None else 0)
    hidden = None if step.hidden is None or length <= missing else step.hidden[: length - missing]
    return Step(step.start, step.tokens[:length], step.path, hidden)
