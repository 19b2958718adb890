"""What was read from the headers of files, read again only where the files have changed. Any thread may ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

from outrider.core.formats.gguf.reader import PART

T = TypeVar("T")

_MOST = 256  # models


def remembered(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """`read`, which looks at a file or a folder, called once for each state of it; what it raises is not kept.

    A state is the name, size and time of change of every file. One part of several files is read every time.
    """

    @lru_cache(maxsize=_MOST)
    def kept(path: Path, state: object) -> T:
        return read(path)

    @wraps(read)
    def ask(path: Path) -> T:
        state = _state(path)
        return read(path) if state is None else kept(path, state)

    return ask


def _state(path: Path) -> tuple[tuple[str, int, int], ...] | None:
    """None where it cannot be told."""
    try:
        if path.is_file() and PART.search(path.name):
            return None
        files = [path] if path.is_file() else sorted(path.iterdir())
        return tuple((file.name, (seen := file.stat()).st_size, seen.st_mtime_ns) for file in files)
    except OSError:
        return None
