"""Compiles what `kernel_checks` launches for a CUDA GPU, on a machine that has none: what the interpreter lets pass shows here.

    PYTHONPATH=core:tests/support python benchmarks/gpu/compiles.py [--capability 90] [--few]

Nothing runs, so nothing is compared. Prints how many kernels there were, and the shared memory of the largest.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before Triton is imported

import kernel_checks
import rig
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

SHARED = 227 << 10  # bytes that a program of capability 9.0 may have


class Driver:
    """Says that there is a GPU."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """The one there is."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """None is needed."""
        return 0


def recorded(kernels: dict[str, int]) -> Callable[..., Any]:
    """Instead of a launch: compile, and note the kernel's shared memory by its hash."""
    launch = JITFunction.run

    def run(self: JITFunction, *arguments: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        made = launch(self, *arguments, grid=grid, warmup=True, **options)
        assert made is not None
        kernels[f"{self.__name__} {made.hash}"] = made.metadata.shared
        return made

    return run


def main() -> None:
    """Compile all of them, or a few."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--few", action="store_true")
    asked = parser.parse_args()
    kernels: dict[str, int] = {}
    triton.runtime.driver.set_active(Driver(asked.capability))  # type: ignore[arg-type]
    JITFunction.run = recorded(kernels)
    nothing: Any = lambda *_: None  # noqa: E731 - what compares has nothing to compare
    kernel_checks._near = kernel_checks._same = kernel_checks._right = nothing
    kernel_checks._recurrence = lambda *_: (None, None)  # type: ignore[assignment]
    kernel_checks.GPU = rig.GPU = True  # the sizes of one
    kernel_checks.ROWS = kernel_checks.SOME_ROWS = (1, 64) if asked.few else (1, 2, 5, 16, 17, 33, 64)
    kernel_checks.DTYPES = (torch.bfloat16,) if asked.few else (torch.bfloat16, torch.float16, torch.float32)
    few = ("8b", "sinks", "tree in a ring")
    kernel_checks.CASES = {name: case for name, case in kernel_checks.CASES.items() if not asked.few or name in few}
    kernel_checks.attention({})
    kernel_checks.recurrences({})
    if not asked.few:
        kernel_checks.norms_and_gates({})
        for dtype in kernel_checks.DTYPES:
            kernel_checks.quantised(dtype)({})
    most = max(kernels.values())
    print(f"{len(kernels)} kernels, at most {most} bytes of shared memory")
    assert most <= SHARED, "a kernel wants more shared memory than there is"


if __name__ == "__main__":
    main()
