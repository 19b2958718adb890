"""Drafting with heads: one state in, a tree out. What the state remembers of the conversation is up to the heads.

Letters: `n` nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.drafting import (
    Committed,
    Context,
    DeviceContext,
    Draft,
    DraftState,
    InFlight,
    Needs,
    Shape,
    StateDrafter,
)

from .heads import DraftHeads, Guesses, on
from .tree import NODES, PUBLISHED, RANKS, Choice, Meter, grow, parents_of, prior

MEASURED = 32  # rounds after which the tree is grown from what was measured, and after which it is grown anew


class _Table(NamedTuple):
    """What was guessed for a draft of the device: good once its round has been read."""

    length: int  # tokens that were told
    in_flight: InFlight | None
    nodes: list[Choice]
    parents: list[Choice]
    ids: Tensor  # [parents, R]

    @property
    def start(self) -> int:
        """Where the draft begins; -1 where the round before it did not happen."""
        if self.in_flight is None:
            return self.length
        return self.length + self.in_flight.taken if self.in_flight.taken else -1


class MedusaDrafter(StateDrafter):
    """Follows one conversation.

    `choices` fixes the tree. Without it the tree is the published one at first, and then grown from how often each guess of
    each head was right here. A smaller budget takes the likeliest nodes.
    """

    def __init__(
        self,
        heads: DraftHeads,
        vocab: int,
        choices: Sequence[Choice] | None = None,
        meter: Meter | None = None,
        state: DraftState | None = None,
    ) -> None:
        self._heads, self._vocab, self._choices, self.block = heads, vocab, choices, heads.block
        allowed = frozenset(choices) if choices is not None else PUBLISHED
        self._ranks = min(vocab, max(RANKS, *(1 + max(choice) for choice in allowed)))
        self._meter = meter or Meter(heads.count, self._ranks)  # of the heads, not of a conversation
        self._order = grow(NODES, prior(heads.count, self._ranks), allowed)
        self._grown_at = 0
        self.needs = Needs(hidden=(heads.state,))
        if choices is None:
            self.shape = Shape(NODES, heads.count)
        else:
            self.shape = Shape(len(self._order), max(map(len, self._order)), tuple(parents_of(self._order)))
        self._state = state or heads.new_state()
        self._guessed: tuple[int, list[Choice], Guesses] | None = None  # where, the nodes, what was guessed below them
        self._tables = deque[_Table]()  # of drafts of the device that are not judged yet
        self.device = self._state.captured

    def reset(self) -> None:
        """Forget the conversation; what was measured stays."""
        super().reset()
        self._guessed = None
        self._tables.clear()

    def advance(self, step: Committed) -> None:
        """Keep the states that are known; count which guesses were right."""
        if self._guessed is not None and self._guessed[0] == step.start:
            _, nodes, guesses = self._guessed
            self._learn(nodes, {node: ranked.ids for node, ranked in guesses.items()}, step)
        self._guessed = None
        while self._tables and self._tables[0].start <= step.start:
            table = self._tables.popleft()
            if table.start == step.start:
                self._learn(table.nodes, dict(zip(table.parents, table.ids.tolist(), strict=True)), step)
        super().advance(step)

    def _learn(self, nodes: Sequence[Choice], guesses: Mapping[Choice, Sequence[int]], step: Committed) -> None:
        path = [(), *(nodes[node] for node in step.path.tolist())]
        self._meter.learn([guesses[node] for node in path if node in guesses], step.tokens.tolist())

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        self._guessed = None
        self._tables.clear()
        super().rewind(length)

    def fork(self) -> MedusaDrafter:
        """Same heads and measurements, a copy of the conversation."""
        return MedusaDrafter(self._heads, self._vocab, self._choices, self._meter, self._state.fork())

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """The likeliest tree of up to `context.nodes` nodes; None where the newest state is not known."""
        if not self._state.ready(len(context.tokens)):
            return None
        nodes = self._tree()[: context.nodes]
        parents = sorted({node[:-1] for node in nodes}, key=len)
        guesses = self._heads.guesses(self._state.feed(), parents, context, self._ranks)
        if guesses is None:
            return None
        self._guessed = len(context.tokens), nodes, guesses
        ranks = [(guesses[node[:-1]], node[-1]) for node in nodes]
        probabilities = [ranked.probabilities[rank] for ranked, rank in ranks if ranked.probabilities]
        tokens = torch.tensor([ranked.ids[rank] for ranked, rank in ranks])
        return Draft(
            tokens, torch.tensor(parents_of(nodes)), confidence=torch.tensor(probabilities) if probabilities else None
        )

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`. The guesses of all ranks come to the host beside the draft, to be judged when the round has been read."""
        nodes = self._tree()[: context.nodes]
        parents = sorted({node[:-1] for node in nodes}, key=len)
        result = self._state.draft_ahead(context, "newest", lambda state, _, window: (state, window.root), rows=0)
        if result is None:
            return None
        state, root = result
        table = self._heads.table(state, root, parents, context, self._ranks)  # [parents, R]
        ids = torch.empty(table.shape, dtype=table.dtype, pin_memory=table.is_cuda).copy_(table, non_blocking=True)
        self._tables.append(_Table(len(context.tokens), context.in_flight, nodes, parents, ids))
        place = {parent: row for row, parent in enumerate(parents)}
        at = [place[node[:-1]] * table.shape[1] + node[-1] for node in nodes]
        return Draft(table.flatten()[on(table.device, at)], torch.tensor(parents_of(nodes)))

    def _tree(self) -> list[Choice]:
        """The nodes in order of likelihood."""
        if self._choices is None and self._meter.rounds >= self._grown_at + MEASURED:
            self._grown_at = self._meter.rounds
            self._order = grow(NODES, self._meter.accuracy())
        return self._order
