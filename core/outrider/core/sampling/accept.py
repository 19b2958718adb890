"""Acceptance: which draft tokens stay, and which token follows them. Chains and trees alike.

*match*: the target draws its own token at every row (see `sample`), the draft survives while it agrees. Lossless for any
draft, and the text does not depend on it.

*rejection* (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; several candidates: Miao et al., arXiv
2305.09781): accept x with min(1, p(x) / q(x)), else go on with the positive part of p - q, to the next sibling or to the
final draw. A draft without q counts as certain of its token: accepted with p(x), then x is removed from p.

*typical* (Cai et al., Medusa, arXiv 2401.10774): accept what the target finds likely enough. Not lossless.

Letters: `n` draft tokens, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .sample import Sampler, greedy_rows

EPSILON = 0.09  # typical acceptance: the least probability that is enough in any case
ALPHA = 0.3  # and the share of exp(-entropy) that is enough where the target is undecided


class Guess:
    """A draft as it is verified: tokens, parents (-1 is the root), and the law each token was drawn from, if it is told.

    `confidence`: what the drafter held of each node, if it told.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        probs: Tensor | None = None,
        confidence: list[float] | None = None,
    ) -> None:
        self.tokens, self.probs, self.confidence = list(tokens), probs, confidence
        self.parents = list(range(-1, len(self.tokens) - 1)) if parents is None else list(parents)
        self.children: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]  # by 1 + parent
        for node, parent in enumerate(self.parents):
            self.children[parent + 1].append(node)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def line(self) -> bool:
        """Whether it is a chain."""
        return self.parents == list(range(-1, len(self.tokens) - 1))

    @property
    def depth(self) -> int:
        """Levels below the root: of a chain as many as nodes."""
        levels: list[int] = []
        for parent in self.parents:
            levels.append(1 if parent < 0 else levels[parent] + 1)
        return max(levels, default=0)

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; none for the root, -1."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def shorter(self, length: int) -> Guess:
        """Its first nodes. Not for one with `probs` that is cut by the values of its tokens."""
        probs = None if self.probs is None else self.probs[:length]
        held = self.confidence and self.confidence[:length]
        return Guess(self.tokens[:length], self.parents[:length], probs, held)

    def names(self, nodes: Sequence[int]) -> list[int]:
        """Tokens of some nodes."""
        return [self.tokens[node] for node in nodes]


class Verdict(NamedTuple):
    """The nodes of `path` stay, then comes `token`. `choices`: what the target drew at each row, if asked for."""

    path: list[int]
    token: int
    choices: Tensor | None = None  # [1 + n]

    @property
    def accepted(self) -> int:
        """Draft tokens that stay."""
        return len(self.path)


class Chance(Protocol):
    """Where the rejection rule gets its luck; tests enumerate it."""

    def coin(self, position: int, chance: float, turn: int = 0) -> bool:
        """True with probability `chance`; `turn` counts the siblings that were tossed for at this position."""
        ...

    def draw(self, stream: str, position: int, probs: Tensor) -> int:
        """An id from `probs` [V], which need not sum to one."""
        ...


def match(logits: Tensor, guess: Guess, sampler: Sampler, position: int, *, choices: bool = False) -> Verdict:
    """Sample-and-match over `logits` [1 + n, V]; row 0 decides the token at `position`, row 1 + i what follows node i.

    Rows off the path are not looked at unless `choices` asks for the target's choice everywhere.
    """
    ids = greedy_rows(logits).tolist() if sampler.greedy else None

    def choice(node: int, path: list[int]) -> int:
        if ids is not None:
            return ids[node + 1]
        return sampler.token(logits[node + 1], position + len(path), guess.names(path))

    node, path = -1, []
    while True:
        token = choice(node, path)
        following = next((child for child in guess.children[node + 1] if guess.tokens[child] == token), None)
        if following is None:
            break
        node = following
        path.append(node)
    if not choices:
        return Verdict(path, token)
    everywhere = [choice(node, guess.path(node)) for node in range(-1, len(guess))]
    return Verdict(path, token, torch.tensor(everywhere, dtype=torch.int64))


def rejection(logits: Tensor, guess: Guess, sampler: Sampler, position: int, chance: Chance) -> Verdict:
    """Rejection sampling over `logits` [1 + n, V]; siblings are tried in their order.

    The last token is drawn from the `residual` stream too: a drafter sees the `target` noise, and what it proposes, or
    that it proposes nothing, must not depend on the noise that decides.
    """
    node, path = -1, []
    while True:
        p = sampler.distribution(logits[node + 1], guess.names(path))  # [V]
        here, taken = position + len(path), None
        for turn, child in enumerate(guess.children[node + 1]):
            q = guess.probs[child].to(p) if guess.probs is not None else None
            token = guess.tokens[child]
            if chance.coin(here, acceptance(p, q, token), turn):
                taken = child
                break
            p = residual(p, q, token)
            p = p / p.sum()
        if taken is None:
            return Verdict(path, chance.draw("residual", here, p))
        node = taken
        path.append(node)


def typical(logits: Tensor, guess: Guess, sampler: Sampler, position: int) -> Verdict:
    """The longest path of tokens that the target finds likely enough, by its entropy; greedy where it is greedy. Lossy."""
    if sampler.settings.temperature == 0:
        return match(logits, guess, sampler, position)
    best: list[int] = []
    good: dict[int, list[int]] = {-1: []}
    for node, parent in enumerate(guess.parents):
        if parent not in good:
            continue
        p = sampler.distribution(logits[parent + 1], guess.names(good[parent]))
        entropy = float(-(p * p.clamp_min(1e-12).log()).sum())
        if float(p[guess.tokens[node]]) > min(EPSILON, ALPHA * math.exp(-entropy)):
            good[node] = [*good[parent], node]
            best = max(best, good[node], key=len)
    row = logits[best[-1] + 1] if best else logits[0]
    return Verdict(best, sampler.token(row, position + len(best), guess.names(best)))


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
