"""Work of fixed shape on fixed tensors, recorded once and replayed: CUDA graphs on a GPU, the functions themselves elsewhere.

What is captured reads and writes tensors that stay where they are and asks the device for no value, so that it means the same
each time. A capture that fails is not fatal: the function runs as it is, and `trouble` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Job = Callable[[], None]


class Capture:
    """Where there is no graph: jobs run as they are."""

    trouble: str | None = None  # why the last failed capture failed
    count = 0  # graphs

    def job(self, work: Job, changed: Sequence[Tensor] = ()) -> Job:
        """`work` made fast. `changed`: what it changes beyond its own results; trying it out leaves that as it was."""
        return work

    def apart(self) -> Capture:
        """One of the same kind and memory whose trouble is its own."""
        return self

    @torch.inference_mode()
    def function(self, work: Callable[..., Result], examples: Sequence[Tensor]) -> Callable[..., Result]:
        """`work`, with tensors of the examples' shapes as arguments; what it gives is good until the next call."""
        places = [example.clone() for example in examples]
        made: list[Result] = []

        def once() -> None:
            made[:] = [work(*places)]

        run = self.job(once)

        @torch.inference_mode()
        def call(*arguments: Tensor) -> Result:
            for place, argument in zip(places, arguments, strict=True):
                place.copy_(argument, non_blocking=True)
            run()
            return made[0]

        return call


class Graphs(Capture):
    """CUDA graphs of one device, in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def apart(self) -> Capture:
        """As `Capture`."""
        other = Graphs(self._device)
        other._pool = self._pool
        return other

    @torch.inference_mode()
    def job(self, work: Job, changed: Sequence[Tensor] = ()) -> Job:
        """As `Capture`: run twice so that kernels are built and memory is found, recorded, and put back."""
        if self.trouble:
            return work
        before = [part.clone() for part in changed]
        try:
            graph = self._record(work)
        except RuntimeError as error:  # what cannot be captured, or found no memory, still runs
            self.trouble = str(error).strip().splitlines()[0]
            graph = None
        for part, old in zip(changed, before, strict=True):
            part.copy_(old)
        if graph is None:
            return work
        self.count += 1
        return graph.replay

    def _record(self, work: Job) -> torch.cuda.CUDAGraph:
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                work()
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph


def capture_for(device: torch.device) -> Capture:
    """What a device has for it."""
    return Graphs(device) if device.type == "cuda" else Capture()


def probe(device: torch.device) -> str | None:
    """Why a device records nothing, None where it does."""
    capture, x = capture_for(device), torch.zeros(1, device=device)

    def work() -> None:
        x.add_(1)

    try:
        capture.job(work)()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return capture.trouble
