"""Choosing and accepting on the device: the rules of `sample` and `accept` for rounds that the host reads later.

The same numbers as there: the noise is bit-equal, filters keep the same ids up to rounding. What the host would have to look at
is told by a flag instead: a row is *sure* if its choice holds for certain.

Letters: `W` rows of a pass (the root and the draft), `V` vocabulary, `m` ids looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from outrider.core.model.lane import Form

from .noise import Noise, gumbel
from .sample import Settings

POOL = 1024  # best ids in which a nucleus is looked for, unless every row has to be sure

Kind = Literal["greedy", "whole", "filtered"]


def kind_of(settings: Settings) -> Kind | None:
    """How the device chooses under these settings; None where that is the host's work."""
    if settings.penalised or settings.logit_bias:
        return None
    if settings.temperature == 0:
        return "greedy"
    if settings.top_k > POOL:
        return None
    return "filtered" if settings.top_k or settings.top_p < 1 else "whole"


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings of one answer as tensors [1], so that one graph serves all answers of a kind."""

    heat: Tensor  # fp32
    top_k: Tensor  # int64, 0: all
    top_p: Tensor  # float64
    min_p: Tensor  # fp32, its logarithm
    key: Tensor  # int64, of the `target` noise

    @staticmethod
    def on(device: torch.device) -> Knobs:
        """Knobs that nobody has turned yet."""
        kinds = (torch.float32, torch.int64, torch.float64, torch.float32, torch.int64)
        return Knobs(*(torch.zeros(1, dtype=kind, device=device) for kind in kinds))

    @torch.inference_mode()
    def turn(self, settings: Settings, noise: Noise) -> None:
        """To the settings and the seed of an answer."""
        self.heat.fill_(settings.temperature or 1.0)
        self.top_k.fill_(settings.top_k)
        self.top_p.fill_(settings.top_p)
        self.min_p.fill_(math.log(settings.min_p) if settings.min_p > 0 else -math.inf)
        self.key.fill_(noise.key("target"))


def choose(logits: Tensor, positions: Tensor, knobs: Knobs, kind: Kind, *, sure: bool) -> tuple[Tensor, Tensor]:
    """The target's choice at every row: ids [W] and whether each is sure [W], for logits [W, V] of `positions` [W].

    `sure`: look at as many ids as that takes.
    """
    if kind == "greedy":
        best, ids = logits.max(-1)
        return ids, best.isfinite()
    x = (logits if logits.dtype == torch.float64 else logits.float()) / knobs.heat  # [W, V]
    finite = x.amax(-1).isfinite()
    if kind == "whole":
        every = torch.arange(x.shape[1], device=x.device)
        kept, enough = x >= x.amax(-1, keepdim=True) + knobs.min_p, finite
        scores, ids = x.double(), every.expand_as(x)
    else:
        scores, ids, kept, enough = _filtered(x, knobs, x.shape[1] if sure else min(POOL, x.shape[1]))
    noise = gumbel(Noise.uniform_at(knobs.key, positions[:, None], ids))
    best = (scores + noise).masked_fill(~kept, -math.inf).argmax(-1, keepdim=True)
    return ids.gather(1, best)[:, 0], enough & finite


def _filtered(x: Tensor, knobs: Knobs, pool: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the best `pool` ids of a row: log-weights, ids, those that top-k, top-p and min-p leave [W, m]; if these are all [W]."""
    best, ids = x.topk(pool)  # [W, m], best first
    rank = torch.arange(pool, device=x.device)
    ranked = (knobs.top_k == 0) | (rank < knobs.top_k)
    among = best.masked_fill(~ranked, -math.inf)
    total = torch.where(knobs.top_k == 0, x.logsumexp(-1), among.logsumexp(-1))[:, None]
    share = (among - total).double().exp()
    upto = share.cumsum(-1)
    mass = torch.where(knobs.top_p < 1, knobs.top_p, math.inf)
    kept = ranked & (upto - share < mass) & (best >= best[:, :1] + knobs.min_p)
    enough = (knobs.top_k > 0) | (upto[:, -1] >= mass) | (pool == x.shape[1])
    return best.double(), ids, kept, enough


class Kept(NamedTuple):
    """What a round leaves."""

    taken: Tensor  # [1] rows that are true, the root among them
    path: Tensor  # [W] their numbers, in order, then each row's own number
    tokens: Tensor  # [W] the target's choice at each of `path`: the first `taken` are the round's new tokens


def keep(draft: Tensor, choice: Tensor, form: Form | None) -> Kept:
    """The path of draft tokens that the target's choices [W] agree with; `draft` [W - 1], below 0 where a node is missing.

    Without a form the draft is a chain. Of equal siblings the first counts.
    """
    rows = torch.arange(choice.shape[0], device=choice.device)
    if form is None:
        taken = 1 + (draft == choice[:-1]).to(torch.int64).cumprod(0).sum(0, keepdim=True)
        return Kept(taken, rows, choice)
    named = torch.cat((draft.new_full((1,), -1), draft))  # [W]
    twin = (form.parents[:, None] == form.parents) & (named[:, None] == named) & (rows[:, None] > rows)
    agree = (named == choice[form.parents]) & ~twin[:, 1:].any(1)  # the root is nobody's sibling
    agree |= rows == 0
    on = ~(form.seen & ~agree).any(1)  # [W]
    taken = on.to(torch.int64).sum(0, keepdim=True)
    order = (~on).to(torch.int8).sort(stable=True).indices
    path = torch.where(rows < taken, order, rows)
    return Kept(taken, path, choice[path])
