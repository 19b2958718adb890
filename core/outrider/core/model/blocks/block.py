"""One layer of a decoder, and all that a decoder reads.

Letters: `S` new tokens, `V` vocabulary, `L` layers, `d` width, `D` width of the extra embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import CacheConfig, State
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import Linear, Table

from .mlp import Experts
from .norm import Norm


class Mixer(Protocol):
    """A token mixer."""

    def new_state(self, room: CacheConfig) -> State | None:
        """Its memory of a new conversation."""
        ...

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        ...


class Channel(Protocol):
    """A channel mixer."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        ...


@dataclass(slots=True)
class PerLayer:
    """Gemma 4 E sizes: what a block adds from the extra embedding."""

    gate: Linear  # d -> D
    project: Linear  # D -> d
    norm: Norm

    def __call__(self, x: Tensor, extra: Tensor) -> Tensor:
        """[S, d] for what the block gave [S, d] and its part of the extra embedding [S, D]."""
        return self.norm(self.project(F.gelu(self.gate(x), approximate="tanh") * extra))


@dataclass(slots=True)
class ParallelExperts:
    """Gemma 4: experts beside the dense MLP, each branch with norms of its own."""

    experts: Experts
    before: Norm
    after: Norm
    after_dense: Norm


@dataclass(slots=True)
class Block:
    """One layer: mixers with the norms around them."""

    mixer: Mixer
    channel: Channel
    source: int  # whose state the mixer uses
    before_mixer: Norm | None
    after_mixer: Norm | None
    before_channel: Norm | None
    after_channel: Norm | None
    beside: ParallelExperts | None = None
    per_layer: PerLayer | None = None
    scalar: Tensor | None = None  # []

    def run(
        self, x: Tensor, where: PassLayout, state: State | None, spec: TargetSpec, entry: Tensor | None = None
    ) -> Tensor:
        """[S, d] -> [S, d]: both mixers with their residuals; `spec` is that of the decoder the block belongs to.

        `entry` [S, n]: what the token mixer reads in place of the normed `x`.
        """
        channel = self.channel
        if (where.still or where.real) and isinstance(channel, Experts):
            channel = partial(channel, still=where.still, real=where.real)
        if spec.parallel:
            y = _maybe(self.before_mixer, x)
            return channel(y, self.mixer(y, where, state, x))
        scale = spec.residual_scale
        y = entry if entry is not None else x if self.before_mixer is None else self.before_mixer(x)
        if self.after_mixer is None and scale == 1.0:
            x = self.mixer(y, where, state, x)
        else:
            x = x + _maybe(self.after_mixer, self.mixer(y, where, state)) * scale
        y = x if self.before_channel is None else self.before_channel(x)
        if self.beside is not None:
            beside = self.beside
            routed = beside.experts.routed(beside.before(x), x, still=where.still, real=where.real)
            y = beside.after_dense(channel(y)) + beside.after(routed)
            return x + _maybe(self.after_channel, y)
        if self.after_channel is None and scale == 1.0:
            return channel(y, x)
        return x + _maybe(self.after_channel, channel(y)) * scale


@dataclass(frozen=True, slots=True)
class ExtraEmbedding:
    """Gemma 4 E sizes: one more embedding for every layer, mixed with a projection of the ordinary one."""

    table: Table  # [V, L D]
    project: Linear  # d -> L D
    norm: Norm  # over D

    def __call__(self, ids: Tensor, x: Tensor, layers: int) -> Tensor:
        """[S, L, D] for the scaled embedding `x` [S, d]."""
        rows = self.table(ids).view(ids.shape[0], layers, -1)
        made = (self.project(x) * x.shape[-1] ** -0.5).view(rows.shape)
        return (self.norm(made) + rows * rows.shape[-1] ** 0.5) * 2**-0.5


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything a decoder reads."""

    embedding: Table  # [V, d]
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear  # d -> V
    tables: Tables
    rows: int  # positions the tables reach
    extra: ExtraEmbedding | None = None
    embed_norm: Norm | None = None
    nbytes: int = 0
    parameters: int = 0
    each: float = 0.0  # bytes of a parameter of the blocks; 0: not known
    form: WeightFormat | None = None  # what was asked of its matrices; None: plain


def _maybe(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)
