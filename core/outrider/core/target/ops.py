"""The seam of fused steps: what a device can do in one go between two matrix products, where torch takes a dozen calls.

A backend is optional everywhere: where there is none, or it does not take a layer, torch's own steps do the same. A CPU has
`native` (C, built once with the machine's compiler), CUDA has `fused` (Triton).

Letters: `S` tokens of the pass, `H` query heads, `K` key/value heads, `h` head size, `C` rows held, `T` loose rows, `I` inner
width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from .spec import Activation, AttentionSpec

if TYPE_CHECKING:
    from .norm import Norm

LOOSE = 64  # rows that a `Sight` can tell apart


class Sight(NamedTuple):
    """Whom each row of a pass sees, without a mask: all rows below `base`, and loose rows from there on by bits.

    A window further hides whatever lies `window` positions or more before a row's own; below `base` the row number is the
    position.
    """

    base: Tensor  # [1] int64
    positions: Tensor  # [S] int64, of the pass's rows
    loose: Tensor  # [T] int64, positions of the rows from `base` on
    bits: Tensor  # [S] int64: bit t tells whether loose row t is seen


class Place(NamedTuple):
    """Where the rows of a pass stand in one layer."""

    slots: Tensor  # [S] int64: where their keys and values go, of the C rows held
    ring: int  # row r is held in slot r mod ring; 0: in slot r
    cos: Tensor | None  # [S, h]; None: no rope
    sin: Tensor | None  # [S, h], signed as in `rope.table`
    sight: Sight


@dataclass(frozen=True, slots=True)
class Heads:
    """What an attention layer does to its queries and keys, as backends read it."""

    spec: AttentionSpec
    q_norm: Norm | None  # over each head
    k_norm: Norm | None
    sinks: Tensor | None  # [H]


class Fused(Protocol):
    """One device's fused steps. Each equals torch's steps up to rounding; a row's result depends on that row alone."""

    def attends(self, heads: Heads, dtype: torch.dtype) -> bool:
        """Whether `attend` takes such a layer. Asked once for each layer."""
        ...

    def attend(self, mixed: Tensor, kv: Tensor, heads: Heads, place: Place) -> Tensor:
        """Norms and turns queries and keys of `mixed` [S, H + 2K or more, h], writes keys and values, attends: [S, H h].

        `kv` [C, 2K, h]: keys, then values. Where the spec has a `source`, keys and values are there already and `mixed`
        holds queries alone. `mixed` may be written over.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """`x / rms(x) * weight` over the last dimension, rounded before and after the weight."""
        ...

    def gated(self, both: Tensor, activation: Activation) -> Tensor:
        """[S, 2I], gates beside linear halves -> act(gate) * linear [S, I]."""
        ...


_found: dict[str, Fused | None] = {}


def fused(x: Tensor) -> Fused | None:
    """The backend of a tensor's device and dtype, if there is one."""
    kind = x.device.type
    if kind not in _found:
        _found[kind] = _find(kind)
    found = _found[kind]
    return found if found is not None and x.dtype != torch.float64 else None


def _find(kind: str) -> Fused | None:
    return None


@contextmanager
def only(kind: str, backend: Fused | None) -> Iterator[None]:
    """Take `backend` for a kind of device for a while, None for torch's own steps."""
    before = dict(_found)
    _found[kind] = backend
    try:
        yield
    finally:
        _found.clear()
        _found.update(before)
