"""The loss of many rows over a large head, a few rows at a time: their logits are never in memory as a whole.

On a CPU a step of a small drafter spends most of its time on logits of 16k words and more, in memory rather than in products.
So the target's laws are kept as its likeliest words, and a slice of logits is made, turned into its gradient and forgotten.

Letters: `Q` places, `R` rows, `n` words, `k` likeliest words, `d` width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .parts import wide

LIKELIEST = 64  # words of a law; what the others have together is noise to a drafter
SLICE, WIDE = 64, 4096  # rows at a time: what a processor's cache holds, and on a GPU


class Law(NamedTuple):
    """What the target says behind some places, as its likeliest words."""

    columns: Tensor  # [Q, k] int64, numbers of words
    shares: Tensor  # [Q, k] of 1 together
    held: Tensor  # [Q] whether the target's best token is a word

    @property
    def weights(self) -> Tensor:
        """Of the places in a mean over those that are held, [Q]."""
        return self.held / self.held.sum().clamp(min=1)

    def at(self, places: Tensor | slice) -> Law:
        """Of some places."""
        return Law(*(part[places] for part in self))

    def loss(self, logits: Tensor) -> Tensor:
        """Cross-entropy of logits [R, n], each row's own: [R]."""
        z = wide(logits)
        return z.logsumexp(-1) - (z.gather(-1, self.columns) * self.shares).sum(-1)

    def spread(self, like: Tensor) -> Tensor:
        """The laws over all words [R, n], in as wide numbers as `like` [R, n] has."""
        return wide(torch.zeros_like(like)).scatter(-1, self.columns, self.shares.to(wide(like).dtype))

    def right(self, logits: Tensor) -> Tensor:
        """Whether the target's best token is the likeliest word of logits [R, n], [R]."""
        logits = logits.detach()
        return (logits.gather(-1, self.columns[:, :1])[:, 0] >= logits.amax(-1)) & self.held


class Asked(NamedTuple):
    """What came out for some rows."""

    loss: Tensor  # [] sum of their cross-entropies, each times its weight
    right: Tensor  # [R] whether what each holds likeliest is the target's best token


def rows_of(x: Tensor) -> int:
    """How many rows of `x` are worked on at a time."""
    return SLICE if x.device.type == "cpu" else WIDE


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Columns and shares [R, k] of logits [R, n], likeliest first; the shares are 1 together."""
    best = wide(logits).topk(min(LIKELIEST, logits.shape[-1]), -1)
    return best.indices, best.values.softmax(-1)


def ask(x: Tensor, rows: Tensor, law: Law, weights: Tensor, cap: float | None = None) -> Asked:
    """Rows [R, d] times output rows [n, d] against the laws of as many places; `cap`: the target's on its logits.

    Gradients go into `x` and `rows`, the laws and `weights` [R] get none.
    """
    loss, right = _Ask.apply(x, rows, law, weights, cap)  # type: ignore[misc]
    return Asked(loss, right)


class _Ask(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, law: Law, weights: Tensor, cap: float | None
    ) -> tuple[Tensor, Tensor]:
        half = rows.dtype == torch.bfloat16
        some = x.to(rows.dtype if half else torch.promote_types(x.dtype, rows.dtype))
        output = rows.to(some.dtype)
        wanted = ctx.needs_input_grad[:2]
        into_x = torch.empty_like(some) if wanted[0] else None
        into_rows = torch.zeros_like(rows) if wanted[1] else None
        total, right = wide(some.new_zeros(())), torch.empty(len(x), dtype=torch.bool, device=x.device)
        for at in range(0, len(x), rows_of(x)):
            here = slice(at, at + rows_of(x))
            z = wide(some[here] @ output.t())  # [r, n]
            slope = None
            if cap is not None:
                z = torch.tanh(z / cap)
                slope, z = 1 - z.square(), z * cap
            said, weight = law.at(here), weights[here].to(z.dtype)
            right[here] = said.right(z)
            total += (said.loss(z) * weight).sum()
            if not any(wanted):
                continue
            z = z.softmax(-1).scatter_add_(-1, said.columns, -said.shares.to(z.dtype)).mul_(weight[:, None])
            z = (z if slope is None else z.mul_(slope)).to(some.dtype)
            if into_x is not None:
                into_x[here] = z @ output
            if into_rows is not None:
                into_rows += (z.t() @ some[here]).to(rows.dtype)
        ctx.save_for_backward(*(part for part in (into_x, into_rows) if part is not None))
        ctx.wanted, ctx.dtypes = wanted, (x.dtype, rows.dtype)
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        made = [
            (next(saved) * grads[0]).to(dtype) if want else None
            for want, dtype in zip(ctx.wanted, ctx.dtypes, strict=True)
        ]
        return made[0], made[1], None, None, None
