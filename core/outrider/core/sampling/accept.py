"""Acceptance: which draft tokens stay, and which token follows them. Chains and trees alike.

*match*: the target draws its own token at every row (see `sample`), the draft survives while it agrees. Lossless for any
draft, and the text does not depend on it.

*rejection* (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; several candidates: Miao et al., arXiv
2305.09781): accept x with min(1, p(x) / q(x)), else continue with the positive part of p - q, to the next sibling or to the
final draw. A draft without q counts as certain of its token: accepted with p(x), then x is removed from p.

*typical* (Cai et al., Medusa, arXiv 2401.10774): accept what the target finds likely enough. Not lossless.

Letters: `n` draft nodes, `W` = 1 + n rows of a pass (the root and the draft), `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .device import SamplingTensors
from .draft_tree import DraftTree
from .sample import Sampler, greedy_rows

if TYPE_CHECKING:
    from outrider.core.model.cache.layout import TreeLayout
    from outrider.core.model.graph_runner import DraftInputs

EPSILON = 0.09  # typical acceptance: the least probability that is enough in any case
ALPHA = 0.3  # and the share of exp(-entropy) that is enough where the target is undecided


NO_DRAFT = DraftTree(torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a round leaves. A captured round has `W` places for what may become true, one on the host has only what did.

    Rows are those of the pass: 0 the root, 1 + i draft node i.
    """

    count: Tensor  # [1] draft nodes that stay
    path: (
        Tensor  # rows that are true, in order: the first 1 + count, the root's 0 among them; then each row's own number
    )
    tokens: Tensor  # the target's choice at each of `path`: the first 1 + count are the round's new tokens
    choices: Tensor | None = None  # [W] the target's choice at every row; None where it was not asked for
    sure: Tensor | None = None  # [1] whether this holds; None: it does

    @staticmethod
    def of(nodes: Sequence[int], tokens: Sequence[int], choices: Sequence[int] | None = None) -> Accepted:
        """From lists: the nodes that stay, and one more token than these."""
        return Accepted(
            torch.tensor([len(nodes)]),
            torch.tensor([0, *[node + 1 for node in nodes]]),
            torch.tensor(tokens),
            None if choices is None else torch.tensor(choices),
        )


class Chance(Protocol):
    """Where the rejection rule gets its luck; tests enumerate it."""

    def coin(self, position: int, chance: float, turn: int = 0) -> bool:
        """True with probability `chance`; `turn` counts the siblings that were tossed for at this position."""
        ...

    def draw(self, stream: str, position: int, probs: Tensor) -> int:
        """An id from `probs` [V], which need not sum to one."""
        ...


def accept(
    logits: Tensor,
    draft: DraftTree | DraftInputs,
    sampling: Sampler | SamplingTensors,
    position: int | Tensor,
    *,
    choices: bool = False,
    chosen: Sequence[int] | None = None,
) -> Accepted:
    """Which nodes of `draft` stay, and what follows: logits [W, V], of which row 0 decides the token at absolute `position`.

    With `SamplingTensors` all of it is tensors, no value is read, and a graph can hold it: the target's choice at every row,
    then the path that agrees. With a `Sampler` rows are looked at one after the other while the draft survives: it does
    the work of the other rules, of penalties and of a logit bias, and on a CPU, where noise for every row of a vocabulary
    takes 3 to 10 times as long (`benchmarks/acceptance.py`), of *match* as well. Both give the same numbers.

    `choices`: report the target's choice at every row. `chosen`: these choices, where they are known beforehand (*match* alone).
    Raises ModelError for logits that are not finite; tensors say that they are not `sure` instead.
    """
    if isinstance(sampling, SamplingTensors):
        layout = draft.layout
        depth = torch.arange(logits.shape[0], device=logits.device) if layout is None else layout.depth
        return agreed(draft.tokens, layout, *sampling.choose(logits, position + depth))
    assert isinstance(draft, DraftTree) and isinstance(position, int)
    if sampling.rule == "rejection":
        return rejection(logits, draft, sampling, position, sampling.noise)
    if sampling.rule == "typical":
        return typical(logits, draft, sampling, position)
    return match(logits, draft, sampling, position, choices=choices, chosen=chosen)


def agreed(draft: Tensor, layout: TreeLayout | None, chosen: Tensor, sure: Tensor) -> Accepted:
    """The path of draft tokens that the target's choices [W] agree with; `draft` [W - 1], below 0 where a node is missing.

    Without a layout the draft is a chain. Of equal siblings the first counts. `sure` [W]: which choices hold.
    """
    rows = torch.arange(chosen.shape[0], device=chosen.device)
    if layout is None:
        count = (draft == chosen[:-1]).to(torch.int64).cumprod(0).sum(0, keepdim=True)
        return Accepted(count, rows, chosen, chosen, (sure | (rows > count)).all()[None])
    named = torch.cat((draft.new_full((1,), -1), draft))  # [W]
    twin = (layout.parents[:, None] == layout.parents) & (named[:, None] == named) & (rows[:, None] > rows)
    agree = (named == chosen[layout.parents]) & ~twin[:, 1:].any(1)  # the root is nobody's sibling
    agree |= rows == 0
    on = ~(layout.seen & ~agree).any(1)  # [W]
    count = on.to(torch.int64).sum(0, keepdim=True) - 1
    order = (~on).to(torch.int8).sort(stable=True).indices
    path = torch.where(rows <= count, order, rows)
    return Accepted(count, path, chosen[path], chosen, (sure[path] | (rows > count)).all()[None])


def match(
    logits: Tensor,
    draft: DraftTree,
    sampler: Sampler,
    position: int,
    *,
    choices: bool = False,
    chosen: Sequence[int] | None = None,
) -> Accepted:
    """Sample-and-match over `logits` [W, V], as `accept`. Rows off the path are looked at only if `choices` asks for them."""
    if chosen is None and sampler.greedy:
        chosen = greedy_rows(logits).tolist()

    ids, children = draft.ids, draft.children
    path, fresh, row = list[int](), list[int](), 0
    while True:  # `row` holds
        token = sampler.token(logits[row], position + len(path), fresh) if chosen is None else chosen[row]
        fresh.append(token)
        for child in children[row]:
            if ids[child] == token:
                break
        else:
            break
        path.append(child)
        row = child + 1
    if choices and chosen is None:
        above = [[ids[node] for node in draft.path(node)] for node in range(-1, len(ids))]
        chosen = [sampler.token(logits[at], position + len(way), way) for at, way in enumerate(above)]
    return Accepted.of(path, fresh, chosen if choices else None)


def rejection(logits: Tensor, draft: DraftTree, sampler: Sampler, position: int, chance: Chance) -> Accepted:
    """Rejection sampling over `logits` [W, V]; siblings are tried in their order.

    The last token is drawn from the `residual` stream too: a drafter sees the `target` noise, and what it proposes, or
    that it proposes nothing, must not depend on the noise that decides.
    """
    node, path, fresh = -1, list[int](), list[int]()
    while True:
        p = sampler.distribution(logits[node + 1], fresh)  # [V]
        here, taken = position + len(path), None
        for turn, child in enumerate(draft.children[node + 1]):
            q = draft.probs[child].to(p) if draft.probs is not None else None
            token = draft.ids[child]
            if chance.coin(here, acceptance(p, q, token), turn):
                taken = child
                break
            p = residual(p, q, token)
            p = p / p.sum()
        if taken is None:
            return Accepted.of(path, [*fresh, chance.draw("residual", here, p)])
        node = taken
        path.append(node)
        fresh.append(draft.ids[node])


def typical(logits: Tensor, draft: DraftTree, sampler: Sampler, position: int) -> Accepted:
    """The longest path of tokens that the target finds likely enough, by its entropy; greedy where it is greedy. Lossy."""
    if sampler.settings.temperature == 0:
        return match(logits, draft, sampler, position)
    best: list[int] = []
    good: dict[int, list[int]] = {-1: []}
    for node, parent in enumerate(draft.above):
        if parent not in good:
            continue
        p = sampler.distribution(logits[parent + 1], [draft.ids[above] for above in good[parent]])
        entropy = float(-(p * p.clamp_min(1e-12).log()).sum())
        if float(p[draft.ids[node]]) > min(EPSILON, ALPHA * math.exp(-entropy)):
            good[node] = [*good[parent], node]
            best = max(best, good[node], key=len)
    row, fresh = logits[best[-1] + 1 if best else 0], [draft.ids[node] for node in best]
    return Accepted.of(best, [*fresh, sampler.token(row, position + len(best), fresh)])


def acceptance(p: Tensor, q: Tensor | None, token: int) -> float:
    """min(1, p(x) / q(x)); without q, p(x)."""
    if q is None:
        return float(p[token])
    return min(1.0, float(p[token]) / float(q[token]))


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """What is left of p [V] after a rejection, not normalised: the positive part of p - q, or p without x."""
    if q is None:
        left = p.clone()
        left[token] = 0.0
    else:
        left = (p - q).clamp_(min=0.0)
    return (
        left if bool(left.any()) else p
    )  # p = q up to rounding: nothing was wrong with the draw, so any of p is right
