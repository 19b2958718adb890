"""A lock on a file that the system releases when its holder dies."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_POLL = 0.2  # seconds
_HELD = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK)


@contextmanager
def lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """One process at a time. `waiting` is called again and again while another one holds the lock; it may raise."""
    with path.open("a+b") as file:
        while not _take(file.fileno()):
            waiting()
            time.sleep(_POLL)
        yield


def _take(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True
