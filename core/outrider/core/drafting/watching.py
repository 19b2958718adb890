"""Says who is busy while plugin code runs for long: a call that never returns would otherwise stop an answer without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

LOOK = 0.25  # seconds between two looks


@dataclass(slots=True)
class _Work:
    """What a plugin does at the moment."""

    name: str
    phase: str
    report: Callable[[str], None]
    until: float  # when it is to be named


class _Watcher:
    """One thread looks at what is running now and then; entering and leaving cost two assignments."""

    def __init__(self) -> None:
        self.work: _Work | None = None
        self._reported: set[tuple[str, str]] = set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, the first time that there is something to look at."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="slow plugins", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK)
            work = self.work
            if work is None or time.monotonic() < work.until or (work.name, work.phase) in self._reported:
                continue
            self._reported.add((work.name, work.phase))
            work.report(f"The drafter {work.name} is slow: {work.phase} takes long. --drafter none goes without it.")


_WATCHER = _Watcher()
_NOBODY = nullcontext()


def watching(
    name: str, phase: str, report: Callable[[str], None], seconds: float, trusted: bool
) -> AbstractContextManager[None]:
    """A plugin works in here; where that takes more than so many seconds `report` is called, once for each kind of work.

    Our own are not looked at: a large drafter may need its time, and that is shown elsewhere.
    """
    return _NOBODY if trusted else _watched(_Work(name, phase, report, time.monotonic() + seconds))


@contextmanager
def _watched(work: _Work) -> Iterator[None]:
    before, _WATCHER.work = _WATCHER.work, work
    _WATCHER.start()
    try:
        yield
    finally:
        _WATCHER.work = before
