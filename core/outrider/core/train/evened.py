"""Products of a training on a CPU in bf16, with rows of zeros added so that few different shapes come up.

oneDNN keeps some megabytes for every shape that it has met. Every batch has another number of rows and every text another length,
so a long training would fill the memory. Zeros change no sum; what they add to a result is cut off, and its gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

EACH = 64  # sizes above that become multiples of it
_PRODUCTS = (torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm)


def evened(device: torch.device) -> AbstractContextManager[object]:
    """Shapes of products are evened in it, on a CPU; elsewhere nothing is."""
    return _Evened() if device.type == "cpu" else nullcontext()


class _Evened(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and args[0].dim() == 2:
            return func(_filled(args[0], -2), *args[1:], **kwargs)[: args[0].shape[0]]
        if func in _PRODUCTS and min(part.dim() for part in args[:2]) > 1:
            return _product(func, *args[:2])
        if func is F.scaled_dot_product_attention:
            return _attention(func, args, kwargs)
        return func(*args, **kwargs)


def _product(func: Callable[..., Tensor], one: Tensor, other: Tensor) -> Tensor:
    rows, columns = one.shape[-2], other.shape[-1]
    return func(_filled(_filled(one, -1), -2), _filled(_filled(other, -1), -2))[..., :rows, :columns]


def _attention(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Of the two kinds that a training has: causal over as many keys as queries, or with a mask of what is seen."""
    q, k, v, *rest = args
    seen, rows = kwargs.get("attn_mask"), q.shape[-2]
    if rest or (seen.dtype != torch.bool if seen is not None else not kwargs.get("is_causal") or k.shape[-2] != rows):
        return func(*args, **kwargs)
    if seen is not None:  # added keys are seen by nobody, added queries see all
        seen = F.pad(seen, (0, _missing(k.shape[-2])))
        kwargs = {**kwargs, "attn_mask": F.pad(seen, (0, 0, 0, _missing(rows)), value=True)}
    return func(*(_filled(part, -2) for part in (q, k, v)), **kwargs)[..., :rows, :]


def _missing(size: int) -> int:
    return -size % EACH if size > EACH else 0


def _filled(x: Tensor, dim: int) -> Tensor:
    missing = _missing(x.shape[dim])
    return x if not missing else F.pad(x, (0, 0) * (-1 - dim) + (0, missing))
