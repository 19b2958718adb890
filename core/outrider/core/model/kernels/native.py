"""The fused steps of a CPU, in C: norms, gates, and attention of passes that decode. `compiled` builds them.

bf16 is rounded where torch rounds it; sums are made in fp32 in an order that depends on a row alone.

Letters: `S` rows, `I` inner width, `H` query heads, `K` key/value heads, `h` head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int, c_long, c_void_p
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.layout import KVSlots, TreeMask
from outrider.core.model.families.spec import Activation, AttentionSpec

from . import compiled
from .activations import ACTIVATIONS
from .interface import KINDS, BatchAttention, Heads, PlainNorm
from .linear import Linear

_HALF = {torch.bfloat16: 1, torch.float32: 0}
_WIDEST, _STEP = 256, 16  # head sizes: the largest, and what all are multiples of
_GROUP = 64  # the most queries of a key head
STACK = (
    *(c_void_p, c_void_p, c_long, *(c_void_p,) * 4),  # blocks, held, count, x, entry, out, exports
    *(c_long, c_long, c_long, c_void_p, c_void_p, c_void_p, c_long, c_void_p),  # rows, width, start, base to bits
    *(c_float, c_int, c_long),  # scale, half, threads
)


class _Layer(ctypes.Structure):
    """`struct layer` of the source."""

    _fields_ = (
        *((name, c_long) for name in ("heads", "kv_heads", "head", "window", "reads", "q_normed", "k_normed")),
        *((name, c_void_p) for name in ("q_weight", "k_weight", "sinks")),
        *((name, c_float) for name in ("scale", "q_eps", "k_eps")),
    )


class _Share(ctypes.Structure):
    """`struct share` of the source."""

    _fields_ = (
        ("kv", c_void_p),
        ("slots", c_void_p),
        ("ring", c_long),
        *((name, c_void_p) for name in ("cos", "sin", "base", "positions", "loose", "bits")),
        *((name, c_long) for name in ("count", "rows", "first")),
    )


class Known(NamedTuple):
    """A layer as C reads it, and what it points to."""

    address: int
    width: int
    layer: _Layer
    held: tuple[Tensor | None, ...]


class Native:
    """`Fused` by a library that `compiled` has built."""

    walks = False

    def __init__(self, library: ctypes.CDLL, compiler: str, parallel: int = 0) -> None:
        """`parallel`: address of the GOMP_parallel that spreads long work over threads; 0: one thread."""
        self.compiler = compiler
        compiled.begin(library, parallel)
        self.stack = library.stack
        self.stack.argtypes = STACK
        self._norm, self._gated, self._attend = library.rms_norm, library.gated, library.attend
        self._norm.argtypes = (c_void_p, c_void_p, c_void_p, c_long, c_long, c_float, c_int, c_long)
        self._gated.argtypes = (c_void_p, c_void_p, c_long, c_long, c_int, c_int, c_long)
        self._norm.restype = self._gated.restype = None
        self._best = library.best_of
        self._best.argtypes, self._best.restype = (*(c_void_p,) * 4, c_long, c_long, c_int, c_long), None
        self._attend_each = library.attend_each
        self._attend_each.argtypes = (c_void_p, c_void_p, c_long, c_void_p, c_long, c_void_p, c_int, c_long)
        pointers = (c_void_p,) * 5
        self._attend.argtypes = (
            *(c_void_p, c_void_p, c_long, c_void_p, c_void_p, c_long),
            *(*pointers, c_long, c_void_p, c_long, c_void_p, c_int, c_long),
        )

    def attends(self, heads: Heads, dtype: torch.dtype) -> bool:
        """As `Fused`: heads of a multiple of 16 up to 256."""
        spec = heads.spec
        plain = all(norm is None or not norm.centred for norm in (heads.q_norm, heads.k_norm))
        fits = spec.head_dim % _STEP == 0 and spec.head_dim <= _WIDEST and spec.heads <= _GROUP * spec.kv_heads
        return dtype in _HALF and plain and fits

    def attend(self, mixed: Tensor, kv: Tensor, heads: Heads, place: KVSlots) -> Tensor:
        """As `Fused`."""
        layer = known(heads, mixed.dtype)
        rows, sight, cos, sin = mixed.shape[0], place.sight, place.cos, place.sin
        out = torch.empty(rows, layer.width, dtype=mixed.dtype)
        failed = self._attend(
            layer.address,
            mixed.data_ptr(),
            mixed.stride(0),
            kv.data_ptr(),
            place.slots.data_ptr(),
            place.ring,
            None if cos is None else cos.data_ptr(),
            None if sin is None else sin.data_ptr(),
            sight.base.data_ptr(),
            sight.positions.data_ptr(),
            sight.loose.data_ptr(),
            sight.loose.shape[0],
            sight.bits.data_ptr(),
            rows,
            out.data_ptr(),
            _HALF[mixed.dtype],
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the scores of {rows} rows")
        return out

    def attend_batch(self, places: Sequence[KVSlots]) -> BatchAttention:
        """As `Fused`."""
        shares, first = (_Share * len(places))(), 0
        for share, place in zip(shares, places, strict=True):
            sight, rows = place.sight, place.slots.shape[0]
            pointers = (place.cos, place.sin, sight.base, sight.positions, sight.loose, sight.bits)
            share.slots, share.ring = place.slots.data_ptr(), place.ring
            share.cos, share.sin, share.base, share.positions, share.loose, share.bits = (
                None if part is None else part.data_ptr() for part in pointers
            )
            share.count, share.rows, share.first = sight.loose.shape[0], rows, first
            first += rows
        held = list(places)  # what C points to

        def attend(mixed: Tensor, kvs: Sequence[Tensor], heads: Heads) -> Tensor:
            layer = known(heads, mixed.dtype)
            for share, kv in zip(shares, kvs, strict=True):
                share.kv = kv.data_ptr()
            out = torch.empty(mixed.shape[0], layer.width, dtype=mixed.dtype)
            half, threads = _HALF[mixed.dtype], torch.get_num_threads()
            failed = self._attend_each(
                *(layer.address, mixed.data_ptr(), mixed.stride(0), ctypes.addressof(shares), len(held)),
                *(out.data_ptr(), half, threads),
            )
            if failed:
                raise MemoryError(f"no memory for the scores of {mixed.shape[0]} rows")
            return out

        return attend

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """As `Fused`."""
        half, width = _HALF.get(x.dtype), x.shape[-1]
        if half is None or (weight is not None and weight.dtype != x.dtype):
            return F.rms_norm(x, (width,), weight, eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        at = None if weight is None else weight.data_ptr()
        rows = x.numel() // width
        self._norm(x.data_ptr(), at, out.data_ptr(), rows, width, eps, half, torch.get_num_threads())
        return out

    def gated(self, both: Tensor, activation: Activation) -> Tensor:
        """As `Fused`."""
        half = _HALF.get(both.dtype)
        if half is None:
            return ACTIVATIONS[activation](*both.chunk(2, -1))
        rows, width = both.shape[0], both.shape[1] // 2
        both = both.contiguous()
        out = torch.empty(rows, width, dtype=both.dtype)
        kind = KINDS[activation]
        self._gated(both.data_ptr(), out.data_ptr(), rows, width, kind, half, torch.get_num_threads())
        return out

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Fused`."""
        if x.dtype not in _HALF:
            largest, places = x.max(-1)
            return largest, places
        largest, ids = torch.empty(x.shape[0]), torch.empty(x.shape[0], dtype=torch.int64)
        self._best_of(x, largest, ids, None)
        return largest, ids

    def certainty(self, x: Tensor) -> Tensor:
        """As `Fused`."""
        if x.dtype not in _HALF:
            return x.softmax(-1, dtype=torch.float32).amax(-1)
        (largest, shares), ids = torch.empty(2, x.shape[0]), torch.empty(x.shape[0], dtype=torch.int64)
        self._best_of(x, largest, ids, shares)
        return shares

    def _best_of(self, x: Tensor, largest: Tensor, ids: Tensor, shares: Tensor | None) -> None:
        x, half = x.contiguous(), _HALF[x.dtype]
        out = (largest.data_ptr(), ids.data_ptr(), None if shares is None else shares.data_ptr())
        self._best(x.data_ptr(), *out, *x.shape, half, torch.get_num_threads())

    def mixture(
        self, upper: Sequence[Linear], lower: Sequence[Linear], activation: Activation, dtype: torch.dtype
    ) -> None:
        """As `Fused`: none, a CPU knows at once which experts were chosen."""


def known(heads: Heads, dtype: torch.dtype) -> Known:
    """A layer as C reads it, made once."""
    layer = heads.kept.get(dtype)
    if layer is None:
        layer = heads.kept[dtype] = _layer(heads, dtype)
    assert isinstance(layer, Known)
    return layer


def _layer(heads: Heads, dtype: torch.dtype) -> Known:
    spec, q, k = heads.spec, heads.q_norm, heads.k_norm
    weights = [None if norm is None or norm.weight is None else norm.weight.to(dtype).contiguous() for norm in (q, k)]
    sinks = None if heads.sinks is None else heads.sinks.to(dtype).float().contiguous()
    held = (*weights, sinks)
    layer = _Layer(
        *(spec.heads, spec.kv_heads, spec.head_dim, spec.window, spec.source is not None, q is not None, k is not None),
        *(None if part is None else part.data_ptr() for part in held),
        *(spec.scale, 0.0 if q is None else q.eps, 0.0 if k is None else k.eps),
    )
    return Known(ctypes.addressof(layer), spec.heads * spec.head_dim, layer, held)


def find() -> Native | str:
    """The backend, once each step has been tried; else why there is none."""
    try:
        library, compiler = compiled.native()
    except compiled.UnbuiltError as error:
        return str(error)
    backend = Native(library, compiler, compiled.parallel())
    for dtype in _HALF:
        with torch.autocast("cpu", enabled=False):  # a training may be the first to ask
            wrong = failing(backend, dtype)
        if wrong is not None:
            return f"{wrong} gave wrong numbers as {compiler} built it"
    return backend


@torch.inference_mode()
def failing(backend: Native, dtype: torch.dtype) -> str | None:
    """The name of a step that does not give what torch gives for a few numbers, if there is one."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    x, weight, both = some(3, 90), some(90), some(3, 2 * 90)
    gate, up = both.float().chunk(2, -1)
    if not _close(backend.rms_norm(x, weight, 1e-6), F.rms_norm(x.float(), (90,), weight.float(), 1e-6)):
        return "rms_norm"
    if not _close(backend.gated(both, "silu"), F.silu(gate) * up):
        return "gated"
    if not torch.equal(backend.best(both)[1], both.argmax(-1)) or not _close(
        backend.certainty(both), both.float().softmax(-1).amax(-1)
    ):
        return "best"
    before, heads, kv_heads, head = 300, 6, 2, 48
    spec = AttentionSpec(heads, kv_heads, head, None, head**-0.5)
    one = PlainNorm(None, 1e-6)
    mixed, kv = some(3, heads + 2 * kv_heads, head), some(320, 2 * kv_heads, head)
    held, at = kv.float(), torch.arange(before, before + 3)
    bits = torch.tensor([1, 3, 5])  # the third row does not see the second
    place = KVSlots(at, 0, None, None, TreeMask(at[:1], at, at, bits))
    got = backend.attend(mixed, kv, Heads(spec, one, one, None), place)
    normed = F.rms_norm(mixed[:, : heads + kv_heads].float(), (head,), None, 1e-6)
    held[at] = torch.cat((normed[:, heads:], mixed[:, heads + kv_heads :].float()), 1)
    keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in held[: before + 3].chunk(2, 1))
    scores = torch.einsum("shd,chd->hsc", normed[:, :heads], keys) * spec.scale
    scores[:, 0, before + 1 :] = scores[:, 1, before + 2 :] = scores[:, 2, before + 1] = float("-inf")
    want = torch.einsum("hsc,chd->shd", scores.softmax(-1), values)
    return None if _close(got, want.flatten(1)) else "attend"


def _close(got: Tensor, want: Tensor) -> bool:
    tolerance = 0.02 if got.dtype == torch.bfloat16 else 1e-4
    return bool(torch.allclose(got.float(), want, atol=tolerance, rtol=tolerance))
