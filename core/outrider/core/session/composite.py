"""A choice among drafters of the pool: in every round the one whose draft promises the best rate, or none.

Sources: the rule of SAM decoding (Hu et al., arXiv 2411.10666), with measured rates in the place of a match length, and that of
Not-a-Bandit (arXiv 2510.20064): drafters that cost nothing are scored on all text. Free drafters are asked first in every
round, so that the policy knows their offers; of the others at most one works at a time, and what it missed is told to it
when it is asked again.

Why the law of the text stays exact: what a free drafter offers depends on committed tokens alone, and so does a choice between
offers. Where a drafter that draws proposed nothing, that may depend on what it drew; the drafter that takes its place loses its
`probs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from outrider.core.drafting.active import GuardedDrafter
from outrider.core.drafting.contract import Committed, Context, Needs, Shape
from outrider.core.policy.decisions import Candidate, Choice, Drafted, Judged, UpcomingRound
from outrider.core.policy.policy import Policy
from outrider.core.sampling.draft_tree import DraftTree

from .pool import PooledDrafter

_FAILED = attrgetter("failed")
NOBODY = torch.empty(0, dtype=torch.int64)  # path of a step for one that did not draft


class Composite:
    """An `ActiveDrafter` made of several; every part gets all tokens, but only its own drafts."""

    block = False
    line: int | None = None

    def __init__(
        self, parts: Sequence[PooledDrafter], policy: Policy, *, trees: bool = True, forked: bool = False
    ) -> None:
        self.name = parts[0].name if len(parts) == 1 else "composite"
        states = tuple(sorted({number for part in parts for number in part.needs.hidden}))
        self._parts, self._named = list(parts), {part.name: part for part in parts}
        self._columns = [_columns(states, part.needs.hidden) for part in parts]
        self._policy, self._trees, self._forked = policy, trees, forked
        self._active: PooledDrafter | None = None
        self._open = False  # whether it has drafted, and waits for the result
        self._offers: dict[str, DraftTree] = {}  # of this round, by drafter
        self._now, self._choice = UpcomingRound(), Choice("silent")
        self._context: Context | None = None  # that the choice was made with
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
    def known(self) -> int:
        """Tokens that every part knows; one that drafted by itself before may know more."""
        return min(part.known for part in self._parts)

    @property
    def failed(self) -> bool:
        """Whether none can go on."""
        return all(map(_FAILED, self._parts))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of those that can draft."""
        return tuple(part.name for part in self._parts if not part.failed)

    @property
    def active(self) -> str:
        """Who made the last draft, or was asked for it; "none" where nobody was."""
        return self._active.name if self._active is not None else "none"

    def reset(self) -> None:
        """Forget the conversation."""
        self._active, self._open, self._offers = None, False, {}
        for part in self._parts:
            part.reset()

    def advance(self, step: Committed) -> None:
        """Hand on what became true; nodes and choices go to the one that drafted."""
        tokens, elsewhere = step.tokens.tolist(), Committed(step.start, step.tokens, NOBODY, step.hidden)
        for part, columns in zip(self._parts, self._columns, strict=True):
            offer = self._offers.get(part.name)
            if offer is not None and part is not self._active:  # it was not verified, and waits for the text to come
                line = offer.line()
                part.watch(step.start, line.ids, line.confidences)
            for scored, sure in part.judged(step.start, tokens):
                self._policy.learn(Judged(part.name, scored, sure))
            if self._open and part is self._active:
                part.advance(_news(step, step.start, columns))
            elif part.known < step.start + len(tokens):
                part.observe(_news(elsewhere, part.known, columns))
        self._open, self._offers = False, {}

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens."""
        for part in self._parts:
            part.rewind(length)

    def lacking(self, newest: int) -> int:
        """As `ActiveDrafter`: of the part that lacks most."""
        return max(part.lacking(newest) for part in self._parts)

    def restate(self, step: Committed) -> None:
        """As `ActiveDrafter`, for the parts that lack states."""
        for part, columns in zip(self._parts, self._columns, strict=True):
            if part.lacking(step.tokens.shape[0]):
                part.rewind(step.start)
                part.observe(_news(step, step.start, columns))

    def choose(self, now: UpcomingRound, context: Context, vocab: int) -> Choice:
        """Who of all drafts in this round and how many tokens, at most `context.nodes`: asked of the policy."""
        self._active, self._offers = None, {}
        self._now, self._context = now, context
        self._choice = self._policy.choose(now, partial(self._candidates, self._parts, context, vocab))
        return self._choice

    def propose(self, context: Context, vocab: int, *, trees: bool = True) -> DraftTree | None:
        """The draft that was chosen; where the chosen drafter has none, that of the next best."""
        self._active = None
        if self._forked:  # whoever asks has chosen the length
            choice = self._policy.likeliest(self._candidates(self._parts, context, vocab))
        else:
            choice, context = self._choice, self._context or context
        able, draft, probs = list(self._parts), None, context.probs
        while draft is None and choice.tokens:
            part = self._active = self._named[choice.name]
            if part.free:
                draft = self._offers[choice.name].first(choice.tokens)
            else:
                able.remove(part)
                asked = replace(context, nodes=choice.tokens, probs=probs and part.trusted)
                draft, probs = self._ask(part, asked, vocab), False
                if draft is None:
                    choice = self._choose_instead(able, context)
        self._open = self._active is not None
        return draft

    def on_device(self, name: str | None = None) -> PooledDrafter | None:
        """As `ActiveDrafter`."""
        wanted = self._choice.name if name is None else name
        return next((part for part in self._parts if part.name == wanted and part.on_device()), None)

    def drafted_by(self, author: GuardedDrafter | None) -> None:
        """As `ActiveDrafter`."""
        self._active = next((part for part in self._parts if part is author), None)
        self._open = self._active is not None

    def states_of(self, author: GuardedDrafter, hidden: Tensor | None) -> Tensor | None:
        """As `ActiveDrafter`."""
        columns = next(columns for part, columns in zip(self._parts, self._columns, strict=True) if part is author)
        if hidden is None or columns is None:
            return hidden
        return torch.stack([hidden[:, column] for column in columns], 1) if columns else hidden[:, :0]

    def fork(self, report: Callable[[str], None]) -> Composite | None:
        """Forks of all parts; the length of their drafts is then chosen by whoever asks."""
        forks = [fork for part in self._parts if (fork := part.fork(report)) is not None]
        return Composite(forks, self._policy, trees=self._trees, forked=True) if forks else None

    def close(self) -> None:
        """Free all."""
        for part in self._parts:
            part.close()

    def _candidates(self, parts: Sequence[PooledDrafter], context: Context, vocab: int) -> list[Candidate]:
        """The candidates of this round, with what the free ones propose."""
        self._offers, context = {}, replace(context, probs=False, worth_drafting=None)
        for part in parts:
            if part.free and not part.failed:
                most = part.shape.nodes
                asked = context if context.nodes <= most else replace(context, nodes=most)
                draft = part.propose(asked, vocab, trees=self._trees)
                if draft is not None:
                    self._offers[part.name] = draft
        return self._standing(parts, context.nodes)

    def _standing(self, parts: Sequence[PooledDrafter], nodes: int) -> list[Candidate]:
        """The candidates of this round without the silent ones."""
        candidates = list[Candidate]()
        for part in parts:
            offer = self._offers.get(part.name)
            if part.failed:
                continue
            if not part.free:
                most = min(nodes, part.shape.nodes)
                candidates.append(Candidate(part.name, most, block=part.block, behind=part.behind, line=part.line))
            elif offer is not None:
                candidates.append(Candidate(part.name, len(offer.ids), offer))
        return candidates

    def _choose_instead(self, left: Sequence[PooledDrafter], context: Context) -> Choice:
        candidates = partial(self._standing, left, context.nodes)
        return (
            self._policy.likeliest(candidates())
            if self._forked
            else self._policy.choose(self._now, candidates, instead=True)
        )

    def _ask(self, part: PooledDrafter, context: Context, vocab: int) -> DraftTree | None:
        """A draft of one that is not free; what it costs is learnt."""
        behind, began = part.behind, time.perf_counter()
        part.catch_up()
        updated = time.perf_counter()
        draft = part.propose(context, vocab, trees=self._trees)
        tokens = 0 if draft is None else draft.tokens.shape[0]
        self._policy.learn(Drafted(part.name, tokens, time.perf_counter() - updated, behind, updated - began))
        return draft


def _columns(states: Sequence[int], own: Sequence[int]) -> list[int] | None:
    """Where a part's states are among all that are read, None where they are all."""
    return None if tuple(own) == tuple(states) else [states.index(number) for number in own]


def _news(step: Committed, known: int, columns: list[int] | None) -> Committed:
    """What of a step is new to a part that knows `known` tokens, fewer than all of them, with the states of its own alone."""
    hidden = step.hidden
    if columns is not None and hidden is not None:
        hidden = hidden[:, columns] if columns else None
    if known == step.start:
        return Committed(known, step.tokens, step.path, hidden, step.choices)
    count = step.start + step.tokens.shape[0] - known
    return Committed(known, step.tokens[-count:], step.path, None if hidden is None else hidden[-count:])
