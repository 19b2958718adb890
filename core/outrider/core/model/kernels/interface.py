"""What a device can do in one go between two matrix products, where torch takes a dozen calls: the interface of such backends.

Letters: `S` tokens of the pass, `H` query heads, `K` key/value heads, `h` head size, `C` rows held, `I` inner width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from outrider.core.model.cache.layout import KVSlots
from outrider.core.model.families.spec import Activation, AttentionSpec

from .linear import Linear

Mixture = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [S, d], weights and experts [S, k] -> [S, d]
BatchAttention = Callable[
    [Tensor, Sequence[Tensor], "Heads"], Tensor
]  # `Fused.attend` with a `kv` for each of several conversations

KINDS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "clamped": 2}  # as the kernels number them


class NormWeights(Protocol):
    """What a kernel reads of a norm."""

    @property
    def weight(self) -> Tensor | None:
        """[h]; None: no weight."""
        ...

    @property
    def eps(self) -> float:
        """Added to the mean square."""
        ...

    @property
    def centred(self) -> bool:
        """Whether the mean is taken away first."""
        ...


@dataclass(frozen=True, slots=True)
class PlainNorm:
    """A norm as kernels read it, for their own trials."""

    weight: Tensor | None
    eps: float
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Heads:
    """What an attention layer does to its queries and keys, as backends read it."""

    spec: AttentionSpec
    q_norm: NormWeights | None  # over each head
    k_norm: NormWeights | None
    sinks: Tensor | None  # [H]
    kept: dict[torch.dtype, object] = field(default_factory=dict, compare=False, repr=False)  # a backend's own


class Fused(Protocol):
    """One device's fused steps. Each equals torch's steps up to rounding; a row's result depends on that row alone."""

    walks: bool  # whether the kernels of `walk` run here

    def attends(self, heads: Heads, dtype: torch.dtype) -> bool:
        """Whether `attend` takes such a layer. Asked once for each layer."""
        ...

    def attend(self, mixed: Tensor, kv: Tensor, heads: Heads, place: KVSlots) -> Tensor:
        """Norms and turns queries and keys of `mixed` [S, H + 2K or more, h], writes keys and values, attends: [S, H h].

        `kv` [C, 2K, h]: keys, then values. Where the spec has a `source`, keys and values are there already and `mixed`
        holds queries alone. `mixed` may be written over.
        """
        ...

    def attend_batch(self, places: Sequence[KVSlots]) -> BatchAttention | None:
        """What attends for several conversations at once, whose rows are one after another; None: only one at a time."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """`x / rms(x) * weight` over the last dimension, rounded once, at the end."""
        ...

    def gated(self, both: Tensor, activation: Activation) -> Tensor:
        """[S, 2I], gates beside linear halves -> act(gate) * linear [S, I]."""
        ...

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[S, n] -> the largest number of each row [S], NaN where there is one in the row, and its first place [S]."""
        ...

    def certainty(self, x: Tensor) -> Tensor:
        """[S, n] -> the share of the largest number in a softmax of each row, fp32 [S]; not finite where that is none."""
        ...

    def mixture(
        self, upper: Sequence[Linear], lower: Sequence[Linear], activation: Activation, dtype: torch.dtype
    ) -> Mixture | None:
        """What sends few rows through the experts that each has chosen and adds these up, weighted, in the order of slots.

        `upper` and `lower`: the matrices of each expert; with `relu2` they are ungated. None
        if the backend does not take these experts. Asked once for each layer.
        """
        ...
