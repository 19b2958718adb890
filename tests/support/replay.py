"""A stand-in for CUDA graphs on a CPU: the tensor operations of a job are recorded once, and replayed on the same tensors.

As with a graph, whatever Python did while recording is not done again, every tensor stays where it is, and asking a tensor for
its value is an error. Kernels that torch does not dispatch (the C backend) would be missed, so record without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outrider.core.model.capture import Capture, Job
from outrider.core.model.kernels import ops

HOST = ("_local_scalar_dense", "nonzero", "unique", "masked_select")  # results whose value or shape the host would need


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if any(word in name for word in HOST):
            raise RuntimeError(f"{name} asks the device for a value")
        with self:  # what is made of simpler operations is recorded as those: a reshape may be a view or a copy
            made = func.decompose(*args, **(kwargs or {}))
        if made is not NotImplemented:
            return made
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def _views(func: Any) -> bool:
    return any(arg.alias_info is not None and not arg.alias_info.is_write for arg in func._schema.returns)


class Replay(Capture):
    """Records on a CPU."""

    @torch.inference_mode()
    def job(self, work: Job, changed: Sequence[Tensor] = ()) -> Job:
        """As `Graphs`: recording leaves what changes as it was."""
        before = [part.clone() for part in changed]
        recorder = _Recorder()
        with ops.only("cpu", None), recorder:
            work()
        for part, old in zip(changed, before, strict=True):
            part.copy_(old)
        self.count += 1
        return _replayed(recorder.calls)


def _replayed(calls: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]) -> Callable[[], None]:
    @torch.inference_mode()
    def replay() -> None:
        for func, args, kwargs, out in calls:
            if _views(func):
                continue
            fresh = func(*args, **kwargs)
            for place, made in zip(tree_leaves(out), tree_leaves(fresh), strict=True):
                if isinstance(place, Tensor) and place is not made:
                    place.copy_(made)

    return replay
