"""What all checks share: the device, clocks, and what a check may say and skip."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from outrider.core.model.capture import Capture, capture_for

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if GPU else torch.float32

Figures = dict[str, Any]


class TooLongError(BaseException):
    """A check has used up its time. No `Exception`, so that no guard around plugins swallows it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: fills `figures` as it goes, so that what was measured before a failure is kept."""

    name: str
    run: Callable[[Figures], None]
    seconds: float  # it is stopped after so many


def capture(*, replay: bool = True) -> Capture:
    """Graphs on a GPU, their stand-in of the tests elsewhere; without `replay` nothing, for what is no work of torch's there."""
    if GPU:
        return capture_for(DEVICE)
    if not replay:
        return Capture()
    from replay import Replay

    return Replay()


def wait() -> None:
    """Until the device has done everything."""
    if GPU:
        torch.cuda.synchronize()


def free() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


def held() -> int:
    """Bytes of the device in use, by anyone."""
    if not GPU:
        return 0
    there, total = torch.cuda.mem_get_info()
    return total - there


def fits(nbytes: float, figures: Figures, what: str) -> bool:
    """Whether so many bytes are free; where they are not, `figures` say that `what` was skipped."""
    if not GPU:
        return True
    free()
    there = torch.cuda.mem_get_info()[0]
    if nbytes <= there:
        return True
    figures[what] = f"skipped: needs {nbytes / 2**30:.0f} GiB, {there / 2**30:.0f} are free"
    return False


def count(many: int) -> int:
    """Repetitions: all on a GPU, two elsewhere."""
    return many if GPU else 2


def sustained(call: Callable[[], Any], many: int = 20) -> float:
    """Milliseconds of a call among many, one launched behind the other: the device's time where that is the longer one."""
    many = count(many)
    for _ in range(2):
        call()
    wait()
    began = time.perf_counter()
    for _ in range(many):
        call()
    wait()
    return (time.perf_counter() - began) / many * 1e3


def alone(call: Callable[[], Any], many: int = 10) -> float:
    """Median milliseconds of a call with the device waited for before and after."""
    times = []
    for _ in range(count(many) + 2):
        wait()
        began = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:]) * 1e3


def launching(call: Callable[[], Any], many: int = 10) -> float:
    """Milliseconds until a call returns, whatever the device still has to do."""
    times = []
    for _ in range(count(many) + 2):
        wait()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    wait()
    return statistics.median(times[2:]) * 1e3


@contextmanager
def seconds(figures: Figures, name: str) -> Iterator[None]:
    """Note how long something took."""
    wait()
    began = time.perf_counter()
    yield
    wait()
    figures[name] = round(time.perf_counter() - began, 3)


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference, in units of what `want` spreads over, or of a value where that is larger."""
    want = want.double()
    return float(((got.double() - want).abs() / want.abs().clamp_min(float(want.std()) + 1e-9)).max())
