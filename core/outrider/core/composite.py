"""Two drafters as one: the cheap one's draft where it promises more this round, else the other's.

Source: the rule of SAM decoding (Hu et al., arXiv 2411.10666), with measured rates in the place of a match length. A cheap
drafter (prompt lookup, suffix) costs microseconds and is often silent, so it is asked first in every round.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .drafting import Context, Draft, Needs, Shape, Step
from .policy import Policy
from .registry import GuardedDrafter


class Composite:
    """Rides like a `GuardedDrafter`; both parts hear everything, each about its own drafts only."""

    name = "composite"
    device = False

    def __init__(self, cheap: GuardedDrafter, other: GuardedDrafter, policy: Policy) -> None:
        self._cheap, self._other, self._policy = cheap, other, policy
        self._riding = other
        self.known = 0
        self.trusted = cheap.trusted and other.trusted
        mine, theirs = cheap.needs, other.needs
        assert not mine.hidden or mine.hidden == theirs.hidden, "both would need the same states"
        self.needs = Needs(
            theirs.hidden or mine.hidden,
            max(mine.early, theirs.early),
            tuple(sorted({*mine.kv, *theirs.kv})),
            mine.choices or theirs.choices,
        )
        self.shape = Shape(max(cheap.shape.nodes, other.shape.nodes), max(cheap.shape.depth, other.shape.depth))

    @property
    def failed(self) -> bool:
        """Whether neither can go on."""
        return self._cheap.failed and self._other.failed

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of those that can draft."""
        return tuple(part.name for part in (self._cheap, self._other) if not part.failed)

    @property
    def riding(self) -> str:
        """Who made the last draft."""
        return self._riding.name

    def reset(self) -> None:
        """Forget the conversation."""
        self.known = 0
        for part in (self._cheap, self._other):
            part.reset()

    def advance(self, step: Step) -> None:
        """Hand on what became true; nodes and choices go to the one that drafted."""
        elsewhere = replace(step, path=torch.empty(0, dtype=torch.int64), choices=None)
        for part in (self._cheap, self._other):
            part.advance(step if part is self._riding else elsewhere)
        self.known = step.start + step.tokens.shape[0]

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens."""
        for part in (self._cheap, self._other):
            part.rewind(length)
        self.known = min(self.known, length)

    def propose(self, context: Context, vocab: int) -> Draft | None:
        """The cheap draft if its measured rate wins, else the other one."""
        quick = None
        if not self._cheap.failed:
            most = min(context.nodes, self._cheap.shape.nodes)
            length, _ = self._policy.best(self._cheap.name, most)
            quick = self._cheap.propose(replace(context, nodes=length), vocab)
        if quick is not None and self._wins(quick.tokens.shape[0], context.nodes):
            self._riding = self._cheap
            return quick
        self._riding = self._other
        if self._other.failed:
            return None
        most = min(context.nodes, self._other.shape.nodes)
        return self._other.propose(replace(context, nodes=most), vocab)

    def propose_device(self, nodes: int) -> Tensor | None:
        """There is no device form: the choice is the host's."""
        return None

    def advance_device(self, tokens: Tensor, count: Tensor, hidden: Tensor) -> None:
        """Never called."""

    def close(self) -> None:
        """Free both."""
        for part in (self._cheap, self._other):
            part.close()

    def _wins(self, length: int, nodes: int) -> bool:
        if self._other.failed:
            return True
        _, theirs = self._policy.best(self._other.name, min(nodes, self._other.shape.nodes))
        return self._policy.gain(self._cheap.name, length) >= theirs
