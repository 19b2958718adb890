"""The seam of fused steps: what a device can do in one go between two matrix products, where torch takes a dozen calls.

A backend is optional everywhere: where there is none, or it does not take a layer, torch's own steps do the same. A CPU has
`native` (C, built once with the machine's compiler), CUDA has `fused` (Triton). `interface` says what they do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from .interface import Fused

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


def backend_status(kind: str) -> tuple[bool, str]:
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
