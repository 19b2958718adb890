"""How much a trained drafter gets accepted on texts that are known already: no pass of the target, its states are enough.
Only a drafter that runs the target's layers, or reads its keys and values, has the target read along.

The drafter is loaded as every drafter is, hears a text round by round and drafts; what agrees with the text would have been
accepted at temperature 0 (of a text that was drawn: a little more would be, as drafts share the noise there).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec
import torch
from torch import Tensor

from outrider.core.drafting.active import ActiveDrafter
from outrider.core.drafting.contract import Committed, Context, Stream
from outrider.core.library.drafter_card import Near
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.sampling.accept import NO_DRAFT

from .answers import Kept
from .teacher import Teacher

LEAST = 256  # tokens before a round, of the first bucket


class Acceptance(msgspec.Struct):
    """Counts over all rounds. By depth: how often it was reached, and how often the token there was right."""

    rounds: int = 0
    tokens: int = 0
    reached: list[int] = msgspec.field(default_factory=list)
    right: list[int] = msgspec.field(default_factory=list)
    near: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Rounds and tokens by how much was read before: up to 256 tokens, up to 512, and so on."""

    @property
    def per_pass(self) -> float:
        """Tokens that a pass of the target would have given."""
        return self.tokens / self.rounds if self.rounds else 1.0

    @property
    def by_depth(self) -> list[float]:
        """Of the drafts that got so far, the share whose next token was right."""
        return [right / reached for reached, right in zip(self.reached, self.right, strict=True) if reached]

    @property
    def by_context(self) -> list[Near]:
        """Tokens of a pass, by how much was read before."""
        found = sorted(self.near.items())
        return [Near(context, rounds, round(tokens / rounds, 4)) for context, (rounds, tokens) in found]

    def count(self, depth: int, accepted: int, before: int) -> None:
        """A round with a draft of so many levels, behind so many tokens."""
        self.rounds += 1
        self.tokens += accepted + 1
        bucket = max(LEAST, 1 << (before - 1).bit_length())
        rounds, tokens = self.near.get(bucket, (0, 0))
        self.near[bucket] = rounds + 1, tokens + accepted + 1
        while len(self.reached) < depth:
            self.reached.append(0)
            self.right.append(0)
        for level in range(min(depth, accepted + 1)):
            self.reached[level] += 1
            self.right[level] += level < accepted


def measure_acceptance(
    drafter: ActiveDrafter,
    teacher: Teacher,
    texts: Sequence[Kept],
    nodes: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Acceptance:
    """Draft up to `nodes` tokens at every place that a round would begin at in `texts`."""
    acceptance, target = Acceptance(), teacher.target
    live = bool(drafter.needs.early or drafter.needs.kv)
    with target.using(target.decoder.new_cache(teacher.longest + MAX_DRAFT_ROWS)) if live else nullcontext():
        for text in texts:
            if cancelled():
                break
            states = teacher.read(text.ids, drafter.needs.hidden) if drafter.needs.hidden else None
            drafter.reset()
            if live:
                target.rewind(0)
            _along(drafter, text, states, (nodes, teacher.info.vocab, target if live else None), acceptance)
    drafter.reset()
    return acceptance


def _along(
    drafter: ActiveDrafter,
    text: Kept,
    states: Tensor | None,
    bounds: tuple[int, int, TargetModel | None],
    acceptance: Acceptance,
) -> None:
    ids, root = text.ids, text.first
    nodes, vocab, target = bounds
    drafter.advance(_step(ids, 0, root + 1, (), states))
    while root + 1 < len(ids):
        if target is not None:
            target.forward(ids[target.length : root], last=True)
            target.commit(root)
        context = _context(ids[: root + 1], min(nodes, drafter.shape.nodes))
        draft = drafter.propose(context, vocab) or NO_DRAFT
        path, node = list[int](), -1
        while root + len(path) + 2 < len(ids):
            wanted = ids[root + 1 + len(path)]
            node = next((child for child in draft.children[node + 1] if draft.ids[child] == wanted), -1)
            if node < 0:
                break
            path.append(node)
        acceptance.count(draft.depth, len(path), root + 1)
        end = root + len(path) + 2
        drafter.advance(_step(ids, root + 1, end, path, states))
        root = end - 1


def _step(ids: Sequence[int], start: int, end: int, path: Sequence[int], states: Tensor | None) -> Committed:
    """Tokens `start` to `end`, each with the state that produced it: the one behind the previous token."""
    hidden = None if states is None else states[max(0, start - 1) : end - 1]
    return Committed(start, torch.tensor(list(ids[start:end])), torch.tensor(list(path), dtype=torch.int64), hidden)


def _context(tokens: Sequence[int], nodes: int) -> Context:
    def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
        return logits.argmax(-1)

    def to_probs(logits: Tensor, path: Sequence[int]) -> Tensor:
        return torch.zeros_like(logits, dtype=torch.float64).index_fill_(0, logits.argmax(-1, keepdim=True), 1.0)

    def rng(position: int) -> Stream:
        raise AssertionError("no law was asked for")

    return Context(tokens, nodes, False, sample, to_probs, rng)
