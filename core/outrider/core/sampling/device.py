"""The target's choices as tensors, for rounds that the host reads later and for many answers at once.

The same numbers as in `sample`: the noise is bit-equal, filters keep the same ids up to rounding. Instead of asking for a value,
a flag says whether a row is *sure*: whether its choice holds for certain.

Letters: `W` rows of a pass (the root and the draft), `R` rows with settings of their own, `V` vocabulary, `m` ids looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .noise import Noise, gumbel
from .sample import Sampler, Settings

_DTYPES = (torch.float32, torch.int64, torch.float64, torch.float32, torch.int64)
POOL = 1024  # best ids in which a nucleus is looked for, unless every row has to be sure

Kind = Literal["greedy", "whole", "top_k", "filtered"]


def kind_of(settings: Settings) -> Kind | None:
    """How tokens are chosen by tensors under these settings; None where that is the host's work."""
    if settings.penalised or settings.logit_bias:
        return None
    if settings.temperature == 0:
        return "greedy"
    if settings.top_k > POOL:
        return None
    if settings.top_k:
        return "top_k"
    return "filtered" if settings.top_p < 1 else "whole"


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """The settings of one answer as tensors [1], so that one graph serves all answers of a kind; or of `R` rows, [R, 1]."""

    temperature: Tensor  # fp32
    top_k: Tensor  # int64, 0: all
    top_p: Tensor  # float64
    min_p: Tensor  # fp32, its logarithm
    key: Tensor  # int64, of the `target` noise
    kind: Kind = "greedy"
    pool: int = 0  # best ids of a row that are looked at where there are filters; 0: all

    @staticmethod
    def on(device: torch.device) -> SamplingTensors:
        """Tensors of one answer that nobody has set yet."""
        return _with([torch.zeros(1, dtype=dtype, device=device) for dtype in _DTYPES], "greedy", 0)

    @staticmethod
    def of(samplers: Sequence[Sampler], kind: Kind, device: torch.device) -> SamplingTensors:
        """Those of several answers of one kind, a row for each."""
        columns = zip(*(_values(sampler.settings, sampler.noise) for sampler in samplers), strict=True)
        tensors = [
            torch.tensor(column, dtype=dtype, device=device)[:, None]
            for column, dtype in zip(columns, _DTYPES, strict=True)
        ]
        return _with(tensors, kind, max(sampler.settings.top_k for sampler in samplers))

    @property
    def all(self) -> tuple[Tensor, ...]:
        """The five."""
        return self.temperature, self.top_k, self.top_p, self.min_p, self.key

    @torch.inference_mode()
    def set(self, settings: Settings, noise: Noise) -> None:
        """To the settings and the seed of an answer."""
        for tensor, value in zip(self.all, _values(settings, noise), strict=True):
            tensor.fill_(value)

    def like(self, kind: Kind, *, sure: bool) -> SamplingTensors:
        """The same tensors, read in this way; `sure`: look at as many ids as that takes."""
        return replace(self, kind=kind, pool=0 if sure and kind != "top_k" else POOL)

    def choose(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The choice at every row: ids [W] and whether each is sure [W], for logits [W, V] of absolute `positions` [W]."""
        if self.kind == "greedy":
            best, ids = logits.max(-1)
            return ids, best.isfinite()
        x = (logits if logits.dtype == torch.float64 else logits.float()) / self.temperature  # [W, V]
        finite = x.amax(-1).isfinite()
        if self.kind == "whole":
            every = torch.arange(x.shape[1], device=x.device)
            mask, enough = x >= x.amax(-1, keepdim=True) + self.min_p, finite
            scores, ids = x.double(), every.expand_as(x)
        else:
            scores, ids, mask, enough = self._filtered(x, min(self.pool or x.shape[1], x.shape[1]))
        noise = gumbel(Noise.uniform_at(self.key, positions[:, None], ids))
        best = (scores + noise).masked_fill(~mask, -math.inf).argmax(-1, keepdim=True)
        return ids.gather(1, best)[:, 0], enough & finite

    def _filtered(self, x: Tensor, pool: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the best `pool` ids of a row: log-weights, ids, those that the filters leave [W, m]; if these are all [W]."""
        best, ids = x.topk(pool)  # [W, m], best first
        ranked = (self.top_k == 0) | (torch.arange(pool, device=x.device) < self.top_k)
        among = best.masked_fill(~ranked, -math.inf)
        total = torch.where(self.top_k == 0, x.logsumexp(-1, keepdim=True), among.logsumexp(-1, keepdim=True))
        share = (among - total).double().exp()
        upto = share.cumsum(-1)
        mass = torch.where(self.top_p < 1, self.top_p, math.inf)
        mask = ranked & (upto - share < mass) & (best >= best[:, :1] + self.min_p)
        enough = ((self.top_k > 0) | (upto[:, -1:] >= mass) | (pool == x.shape[1]))[:, 0]
        return best.double(), ids, mask, enough


def _with(tensors: Sequence[Tensor], kind: Kind, pool: int) -> SamplingTensors:
    temperature, top_k, top_p, min_p, key = tensors
    return SamplingTensors(temperature, top_k, top_p, min_p, key, kind, pool)


def _values(settings: Settings, noise: Noise) -> tuple[float, int, float, float, int]:
    """What the five tensors hold."""
    min_p = math.log(settings.min_p) if settings.min_p > 0 else -math.inf
    return settings.temperature or 1.0, settings.top_k, settings.top_p, min_p, noise.key("target")
