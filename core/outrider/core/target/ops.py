"""The seam of fused steps: what a device can do in one go between two matrix products, where torch takes a dozen calls.

A backend is optional everywhere: where there is none, or it does not take a layer, torch's own steps do the same. A CPU has
`native` (C, built once with the machine's compiler), CUDA has `fused` (Triton).

Letters: `S` tokens of the pass, `H` query heads, `K` key/value heads, `h` head size, `C` rows held, `T` loose rows, `I` inner
width.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from .spec import Activation, AttentionSpec, TargetSpec

if TYPE_CHECKING:
    from .decoder import Weights
    from .mlp import Dense, Ungated
    from .norm import Norm
    from .stack import Stack

LOOSE = 64  # rows that a `Sight` can tell apart

Mixture = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [S, d], weights and experts [S, k] -> [S, d]
Crowd = Callable[
    [Tensor, Sequence[Tensor], "Heads"], Tensor
]  # `Fused.attend` with a `kv` for each of several conversations


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
    kept: dict[torch.dtype, object] = field(default_factory=dict, compare=False, repr=False)  # a backend's own


class Fused(Protocol):
    """One device's fused steps. Each equals torch's steps up to rounding; a row's result depends on that row alone."""

    walks: bool  # whether the kernels of `walk` run here

    def attends(self, heads: Heads, dtype: torch.dtype) -> bool:
        """Whether `attend` takes such a layer. Asked once for each layer."""
        ...

    def attend(self, mixed: Tensor, kv: Tensor, heads: Heads, place: Place) -> Tensor:
        """Norms and turns queries and keys of `mixed` [S, H + 2K or more, h], writes keys and values, attends: [S, H h].

        `kv` [C, 2K, h]: keys, then values. Where the spec has a `source`, keys and values are there already and `mixed`
        holds queries alone. `mixed` may be written over.
        """
        ...

    def crowd(self, places: Sequence[Place]) -> Crowd | None:
        """What attends for several conversations at once, whose rows lie behind each other; None: only one at a time."""
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

    def stacks(self, weights: Weights, spec: TargetSpec) -> Mapping[int, Stack]:
        """Blocks of a decoder that run in one go where a pass allows, by the number of each. Asked once."""
        ...

    def mixture(self, experts: Sequence[Dense | Ungated], dtype: torch.dtype) -> Mixture | None:
        """What sends few rows through the experts that each has chosen and adds these up, weighted, in the order of slots.

        None if the backend does not take these experts. Asked once for each layer.
        """
        ...


_found: dict[str, Fused | None] = {}
_told: dict[str, str] = {}


def fused(x: Tensor) -> Fused | None:
    """The backend of a tensor's device and dtype, if there is one. None where gradients are wanted: no backend has them."""
    kind = x.device.type
    if kind not in _found:
        _found[kind] = _find(kind)
    found = _found[kind]
    return found if found is not None and x.dtype != torch.float64 and not x.requires_grad else None


def walker(x: Tensor) -> ModuleType | None:
    """The kernels of recurrences on a tensor's device, `walk`; None where tokens are taken one by one with torch's steps."""
    found = fused(x)
    if found is None or not found.walks:
        return None
    from . import walk

    return walk


def _find(kind: str) -> Fused | None:
    if kind == "cpu":
        from . import native

        found = native.find()
        _told[kind] = found if isinstance(found, str) else f"built with {found.compiler}"
        return None if isinstance(found, str) else found
    if kind == "cuda":
        return _cuda()
    return None


def _cuda() -> Fused | None:
    found: Fused | str = "Triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        from .fused import find, version

        found = find()
        _told["cuda"] = version()
    if isinstance(found, str):
        _told["cuda"] = found
        return None
    return found


def told(kind: str) -> tuple[bool, str]:
    """Whether there is a backend for a kind of device, and how it was made or why there is none."""
    if kind not in _found:
        _found[kind] = _find(kind)
    return _found[kind] is not None, _told.get(kind, "none is known for this device")


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
