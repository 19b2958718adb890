"""Exceptions that are no bug of ours: memory, disk, permissions, input. What they mean in words, and what to do next.

They are told by their kind and text, so that neither this file nor who asks needs torch.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import re
import sys
from typing import Any

# What torch, its allocators and the C++ library say where memory is short; an `OutOfMemoryError` says so by its name.
_SHORT = re.compile(
    r"out of memory|not enough memory|can't allocate memory|std::bad_alloc|bad allocation|ALLOC_FAILED|ErrorMemoryAllocation",
    re.IGNORECASE,
)
_GPU = re.compile(r"cuda|cublas|cudnn|\bgpu\b|\bhip\b", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]i?B)", re.IGNORECASE)
_FREE = re.compile(r"of which ([\d.]+ [KMGT]i?B) is free")
_UNITS = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_SMALLER = {
    "load": "Try --quantize int4, a shorter --context, or a smaller model.",
    "generate": "Try a shorter --context, --quantize int8 or int4, or --drafter none.",
    "train": "Try a smaller batch or shorter texts, or close other programs that use this memory.",
    "bench": "Try fewer answers at once (--batch), a shorter --context, or fewer --drafters.",
}


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is exhausted, on a GPU or not."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and bool(_SHORT.search(str(error)))


def explain(error: BaseException, job: str = "generate") -> tuple[str, str] | None:
    """Message and hint for an exception that a person can do something about; None for what is a bug.

    `job`: load, generate, train or bench; it decides what to try next where memory is exhausted.
    """
    if out_of_memory(error):
        return _memory(error), _SMALLER[job]
    if isinstance(error, OSError):
        return _system(error)
    if isinstance(error, RecursionError):
        return "The input is nested too deeply.", "Make its brackets, lists or quotes less deep."
    if isinstance(error, UnicodeError):
        return f"Text cannot be read or written: {error}.", "Use text in UTF-8, without halves of characters."
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        return f"The GPU failed: {_line(error)}.", "Restart Outrider. If it happens again, use --device cpu."
    return None


def memory_words(error: BaseException) -> str:
    """How much was asked for and how much is free, where the exception tells; "" where it does not."""
    text = str(error)
    asked, free = _ASKED.search(text), _FREE.search(text)
    parts = [f"{_size(asked[1], asked[2])} more were needed"] if asked else []
    parts += [f"{free[1]} are free"] if free else []
    return ", ".join(parts)


def release() -> None:
    """Return what nothing uses any more to the system: PyTorch's store of GPU memory, and the C library's of the rest."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc alone has it
    if trim is not None:
        trim(0)


def _memory(error: BaseException) -> str:
    where = "The GPU's memory" if _GPU.search(str(error)) else "The memory"
    numbers = memory_words(error)
    return f"{where} is exhausted{f': {numbers}' if numbers else ''}."


def _system(error: OSError) -> tuple[str, str] | None:
    where = str(error.filename) if error.filename else "a file"
    if error.errno in _FULL:
        return f"The disk is full: {where} could not be written.", "Free some space, then try again."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{where} may not be read or written.", "Check its permissions and those of its folder."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open.", "Close other programs, or raise the limit with `ulimit -n`."
    if error.filename and error.strerror:
        return f"{where} could not be used: {error.strerror}.", "Check that it is there and can be read."
    return None


def _size(number: str, unit: str) -> str:
    if unit.lower() != "bytes":
        return f"{number} {unit}"
    nbytes = float(number)
    name = next((name for name, size in _UNITS.items() if nbytes >= size), "KiB")
    return f"{nbytes / _UNITS[name]:.1f} {name}"


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
