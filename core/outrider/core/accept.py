"""Acceptance: which draft tokens stay, and which token follows them.

*match*: the target draws its own token at every row (see `sample`), the draft survives while it agrees. Lossless for any
draft, and the text does not depend on it.

*rejection* (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): accept x with min(1, p(x) / q(x)), else
draw from the positive part of p - q. A draft without q counts as certain of its token: accepted with p(x), then x is
removed from p.

Letters: `n` draft tokens, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .sample import Sampler, greedy_rows


class Verdict(NamedTuple):
    """`accepted` leading draft tokens stay, then comes `token`. `choices`: what the target drew at each row it looked at."""

    accepted: int
    token: int
    choices: Tensor | None = None  # [1 + n] if asked for


class Chance(Protocol):
    """Where the rejection rule gets its luck; tests enumerate it."""

    def coin(self, position: int, chance: float) -> bool:
        """True with probability `chance`."""
        ...

    def draw(self, stream: str, position: int, probs: Tensor) -> int:
        """An id from `probs` [V], which need not sum to one."""
        ...


def match(logits: Tensor, draft: Sequence[int], sampler: Sampler, position: int, *, choices: bool = False) -> Verdict:
    """Sample-and-match over `logits` [1 + n, V]; row 0 decides the token at `position`.

    Rows behind the first disagreement are not looked at unless `choices` asks for the target's choice everywhere.
    """
    n = len(draft)
    ids = greedy_rows(logits).tolist() if sampler.greedy else []

    def choice(row: int) -> int:
        if row == len(ids):
            ids.append(sampler.token(logits[row], position + row, draft[:row]))
        return ids[row]

    accepted = 0
    while accepted < n and choice(accepted) == draft[accepted]:
        accepted += 1
    token = choice(accepted)
    if not choices:
        return Verdict(accepted, token)
    return Verdict(accepted, token, torch.tensor([choice(row) for row in range(n + 1)], dtype=torch.int64))


def rejection(
    logits: Tensor, draft: Sequence[int], probs: Tensor | None, sampler: Sampler, position: int, chance: Chance
) -> Verdict:
    """Rejection sampling over `logits` [1 + n, V]; `probs` [n, V] is the law each draft token was drawn from, or None.

    The last token is drawn from the `residual` stream too: a drafter sees the `target` noise, and what it proposes, or
    that it proposes nothing, must not depend on the noise that decides.
    """
    for index, token in enumerate(draft):
        p = sampler.distribution(logits[index], draft[:index])  # [V]
        q = probs[index].to(p) if probs is not None else None
        if not chance.coin(position + index, acceptance(p, q, token)):
            return Verdict(index, chance.draw("residual", position + index, residual(p, q, token)))
    n = len(draft)
    return Verdict(n, chance.draw("residual", position + n, sampler.distribution(logits[n], draft)))


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
