"""The fused steps of CUDA, in Triton: norms, gates, and attention of passes that decode. Imported only where Triton is.

Sums are made in fp32 in an order that depends on a row's width alone, so a row's result depends on that row; `flash` tells what
holds for attention. No step reads a device value on the host, so all of them can be captured in a graph.

Letters: `S` rows, `d` width, `I` inner width, `H` query heads, `K` key/value heads, `h` head size.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from outrider.core.model.cache.layout import KVSlots, TreeMask
from outrider.core.model.families.spec import Activation, AttentionSpec

from . import flash, sparse
from .gates import activated
from .interface import KINDS, Heads, Mixture, PlainNorm
from .linear import Linear

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 1 << 16  # that one program norms
_BLOCK = 1024  # channels that one program gates


@triton.jit
def _norm(x, weight, out, width, row_stride, eps, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    kind = out.dtype.element_ty
    d = tl.arange(0, BLOCK)
    there = d < width
    value = tl.load(x + row * row_stride + d, mask=there, other=0.0).to(tl.float32)
    y = value * tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    if WEIGHT:
        y *= tl.load(weight + d, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * width + d, y.to(kind), mask=there)


@triton.jit
def _gate(both, out, width, row_stride, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Some channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    kind: tl.constexpr = out.dtype.element_ty
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = d < width
    at = both + row * row_stride + d
    gate = tl.load(at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=there, other=0.0).to(tl.float32)
    y = activated(gate, up, KIND, kind)
    tl.store(out + row * width + d, y.to(kind), mask=there)


class Triton:
    """`Fused` by the kernels of this file and of `flash`."""

    walks = True

    def attends(self, heads: Heads, dtype: torch.dtype) -> bool:
        """As `Fused`: heads of an even size up to 256, normed alike or not at all."""
        spec, q, k = heads.spec, heads.q_norm, heads.k_norm
        alike = spec.source is not None or (q is None) == (k is None)
        if q is not None and k is not None:
            alike = (q.weight is None) == (k.weight is None)
        plain = all(norm is None or not norm.centred for norm in (q, k))
        return dtype in _DTYPES and alike and plain and spec.head_dim % 2 == 0 and spec.head_dim <= flash.WIDEST

    def attend(self, mixed: Tensor, kv: Tensor, heads: Heads, place: KVSlots) -> Tensor:
        """As `Fused`."""
        return flash.attend(mixed, kv, heads, place)

    def attend_batch(self, places: Sequence[KVSlots]) -> None:
        """As `Fused`: none yet."""

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """As `Fused`."""
        width = x.shape[-1]
        if width > _WIDEST:
            return F.rms_norm(x, (width,), weight, eps)
        rows = x.reshape(-1, width)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if rows.shape[0]:
            block = triton.next_power_of_2(width)
            _norm[(rows.shape[0],)](
                rows,
                rows if weight is None else weight,
                out,
                width,
                rows.stride(0),
                eps,
                WEIGHT=weight is not None,
                BLOCK=block,
                num_warps=min(16, max(1, block // 256)),
            )
        return out

    def gated(self, both: Tensor, activation: Activation) -> Tensor:
        """As `Fused`."""
        rows, width = both.shape[0], both.shape[1] // 2
        both = both if both.stride(1) == 1 else both.contiguous()
        out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
        if rows:
            grid = rows, triton.cdiv(width, _BLOCK)
            _gate[grid](both, out, width, both.stride(0), KIND=KINDS[activation], BLOCK=_BLOCK)
        return out

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Fused`."""
        largest, ids = x.max(-1)
        return largest, ids

    def certainty(self, x: Tensor) -> Tensor:
        """As `Fused`."""
        return x.softmax(-1, dtype=torch.float32).amax(-1)

    def mixture(
        self, upper: Sequence[Linear], lower: Sequence[Linear], activation: Activation, dtype: torch.dtype
    ) -> Mixture | None:
        """As `Fused`: experts that are all alike, plain or with codes of one kind."""
        return sparse.mixture(upper, lower, activation, dtype)


def version() -> str:
    """What made the kernels."""
    return f"Triton {triton.__version__}"


def find() -> Triton | str:
    """The backend, once each step has been tried on the current CUDA device; else why there is none."""
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"the GPU's capability is {major}.{minor}, at least 8.0 is needed"
    backend = Triton()
    try:
        wrong = failing(backend, torch.device("cuda"), torch.bfloat16)
    except Exception as error:  # noqa: BLE001 - a compiler and a driver may raise anything; torch's own steps are there, and doctor tells
        return f"Triton cannot be used: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return backend if wrong is None else f"{wrong} gave wrong numbers on this GPU"


@torch.inference_mode()
def failing(backend: Triton, device: torch.device, dtype: torch.dtype) -> str | None:
    """The name of a step that does not give what torch gives for a few numbers, if there is one."""
    g = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    x, weight, both = some(3, 96), some(96), some(3, 2 * 80)
    gate, up = both.chunk(2, -1)
    if not _close(backend.rms_norm(x, weight, 1e-6), F.rms_norm(x.float(), (96,), weight.float(), 1e-6)):
        return "rms_norm"
    if not _close(backend.gated(both, "silu"), F.silu(gate.float()) * up.float()):
        return "gated"
    rows, before, heads, kv_heads, head = 3, 70, 4, 2, 64
    spec = AttentionSpec(heads, kv_heads, head, None, head**-0.5)
    one = PlainNorm(None, 1e-6)
    mixed, kv = some(rows, heads + 2 * kv_heads, head), some(128, 2 * kv_heads, head)
    held = kv.float()
    at = torch.arange(before, before + rows, device=device)
    bits = torch.tensor([1, 3, 5], device=device)  # the third row does not see the second
    place = KVSlots(at, 0, None, None, TreeMask(at[:1], at, at, bits))
    got = backend.attend(mixed, kv, Heads(spec, one, one, None), place)
    normed = F.rms_norm(mixed[:, : heads + kv_heads].float(), (head,), None, 1e-6)
    held[at] = torch.cat((normed[:, heads:], mixed[:, heads + kv_heads :].float()), 1)
    keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in held[: before + rows].chunk(2, 1))
    scores = torch.einsum("shd,chd->hsc", normed[:, :heads], keys) * spec.scale
    scores[:, 0, before + 1 :] = scores[:, 1, before + 2 :] = scores[:, 2, before + 1] = float("-inf")
    want = torch.einsum("hsc,chd->shd", scores.softmax(-1), values)
    if not _close(got, want.flatten(1)):
        return "attend"
    return None if _mixes(backend, some) else "mixture"


def _mixes(backend: Triton, some: Callable[..., Tensor]) -> bool:
    """Whether two of three experts give what they should for each row."""
    experts = [(Linear(some(96, 80) / 9), Linear(some(80, 48) / 7)) for _ in range(3)]
    x, weights = some(3, 80), some(3, 2).float()
    chosen = torch.tensor([[0, 2], [1, 2], [2, 0]], device=x.device)
    upper, lower = zip(*experts, strict=True)
    mixture = backend.mixture(upper, lower, "silu", x.dtype)
    halves = [F.linear(x.float(), layer.weight.float()).chunk(2, -1) for layer in upper]
    made = [F.linear(F.silu(gate) * up, layer.weight.float()) for (gate, up), layer in zip(halves, lower, strict=True)]
    each = torch.stack(made, 1)  # [S, E, d]
    want = (each.gather(1, chosen[..., None].expand(-1, -1, 80)) * weights[..., None]).sum(1)
    return mixture is not None and _close(mixture(x, weights, chosen), want)


def _close(got: Tensor, want: Tensor) -> bool:
    return bool(torch.allclose(got.float(), want, atol=0.05, rtol=0.05))
