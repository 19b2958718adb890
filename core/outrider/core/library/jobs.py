"""A long task that reports how far it is and can be stopped; child processes that are watched by the bytes they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.base import protocol
from outrider.core.base.errors import Cancelled

NOTE = "note"  # the phase of what a user should know: the text is in the note

Progress = Callable[[str, int, int, str], None]  # phase, done, total (0 = not known), note

_POLL = 0.1  # seconds
STALL = 300.0  # seconds without a new byte before a child is given up


def event(request: int, phase: str, done: float, total: float, note: str) -> protocol.Progress | protocol.Notice:
    """What a pull reports, as the frame that tells a client."""
    if phase == NOTE:
        return protocol.Notice(note, request, "info")
    return protocol.Progress(request, phase, done, total, "bytes", note)


@dataclass(frozen=True, slots=True)
class Job:
    """What the caller of a pull handed over."""

    progress: Progress | None = None
    cancelled: Callable[[], bool] | None = None

    def report(self, phase: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """Say how far `phase` is, in bytes."""
        if self.progress is not None:
            self.progress(phase, done, total, note)

    def notice(self, text: str) -> None:
        """Say something that the user should know."""
        self.report(NOTE, note=text)

    def check(self) -> None:
        """Raises Cancelled once the user stopped the job."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled


@dataclass(frozen=True, slots=True)
class Child:
    """A command whose output goes to `log` and whose progress is the growth of `folder`."""

    command: Sequence[str]
    folder: Path
    log: Path
    total: Callable[[], int]  # bytes expected, 0 = not known yet
    note: Callable[[], str]
    waiting: Callable[[], str] = str  # why nothing moves, empty if all is well
    environment: Mapping[str, str] | None = None


def run(child: Child, job: Job) -> int | None:
    """Run to the end; the exit status, None if no byte came for too long. Raises Cancelled.

    The child and its children are gone then. Its stdin ends when this process dies, however that happens.
    """
    with child.log.open("wb") as log:
        process = subprocess.Popen(
            list(child.command),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=child.folder,
            env={**os.environ, **(child.environment or {})},
            start_new_session=True,
        )
        try:
            return _watch(process, child, job)
        finally:
            _end(process)


def _watch(process: subprocess.Popen[bytes], child: Child, job: Job) -> int | None:
    most, since = 0, time.monotonic()
    while process.poll() is None:
        job.check()
        done, total = size_of(child.folder), child.total()
        if done > most:
            most, since = done, time.monotonic()
        elif time.monotonic() - since > STALL:
            return None
        why = child.waiting()
        job.report("wait" if why else "download", min(done, total) if total else done, total, why or child.note())
        time.sleep(_POLL)
    job.check()
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # it leads its own group, helpers of `uv run` included
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def size_of(folder: Path) -> int:
    """Bytes of all files under `folder`, some of which may vanish meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total
