"""Bringing a model into the library: staged beside its final name, verified, then renamed; nothing broken is ever used."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.core.errors import DownloadError, OutriderError
from outrider.core.weights import receipts
from outrider.core.weights.catalogue import Entry, Source
from outrider.core.weights.jobs import Job, size_of
from outrider.core.weights.sources import Plan, SourceError, bring, disk_full

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_MARGIN = 16 << 20  # bytes that stay free
_WORTH = 1 << 20  # bytes of a download worth keeping
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}


def fetch(library: Path, entry: Entry, job: Job) -> Path:
    """The verified path of `entry`, brought from the first source that answers. Raises DownloadError, Cancelled."""
    try:
        library.mkdir(parents=True, exist_ok=True)
        with _lock(library / f".{entry.path}.lock", job):
            if settle(library, entry, job):
                return library / entry.path
            return _from_sources(library, entry, job)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise disk_full(library, entry.nbytes) from error
        raise DownloadError(
            f"The library {library} cannot be written: {error.strerror or error}.",
            "Make it writable, or move it with OUTRIDER_HOME.",
        ) from error


def settle(library: Path, entry: Entry, job: Job) -> bool:
    """Whether an entry is there and sound; one without a receipt is hashed once. Raises Cancelled."""
    state = receipts.state(library, entry)
    if state == "unverified":
        receipt = receipts.read(library, entry)
        files = entry.files or (receipt.files if receipt else ())
        if not all(receipts.sound(receipts.location(library, entry, file), file, job) for file in files):
            return False
        stamp = receipts.stamp(library, entry, files)
        receipts.write(library, entry, receipts.Receipt(files, stamp, entry.license, "local"))
        return True
    return state == "ready"


def work_folder(library: Path, entry: Entry) -> Path:
    """Where an entry is staged: beside its final name."""
    return library / f"{entry.path}.partial"


def _from_sources(library: Path, entry: Entry, job: Job) -> Path:
    work = work_folder(library, entry)
    reasons = {"local library": f"nothing sound at {library / entry.path}"}
    finished = False
    try:
        for source in entry.sources:
            _clear(work, keep="hub")
            _check_room(library, entry, source)
            job.report("download", 0, source.bytes or entry.nbytes, source.title())
            try:
                staged, plan = bring(entry, source, work, job)
                _verify(staged, plan, job)
            except SourceError as error:
                reasons[source.title()] = str(error)
                continue
            _install(library, entry, staged, (plan, source))
            finished = True
            return library / entry.path
    except OutriderError:
        finished = True
        raise
    finally:
        # Half a download from the hub is kept for the next try, unless the user stopped it.
        _clear(work, keep="hub" if not finished and size_of(work / "hub") > _WORTH else "")
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise DownloadError(
        f"No source has {entry.name!r}. {listed}.",
        "Check the connection and try again, or give a model of your own with `--model PATH`.",
    )


def _check_room(library: Path, entry: Entry, source: Source) -> None:
    needed = entry.nbytes + source.bytes + _MARGIN
    if shutil.disk_usage(library).free < needed:
        raise disk_full(library, needed)


def _verify(staged: Path, plan: Plan, job: Job) -> None:
    for file in plan.files:
        if not receipts.sound(staged / file.name, file, job):
            (staged / file.name).unlink(missing_ok=True)
            raise SourceError(f"{file.name} arrived broken (its checksum is wrong) and was deleted")


def _install(library: Path, entry: Entry, staged: Path, origin: tuple[Plan, Source]) -> None:
    plan, source = origin
    final = library / entry.path
    for file in plan.files:
        _sync(staged / file.name)
    receipts.drop(library, entry)
    if [file.name for file in plan.files] == [entry.path]:
        os.replace(staged / entry.path, final)
    else:
        if final.exists():  # broken, or it would not be replaced
            shutil.rmtree(final)
        os.replace(staged, final)
    stamp = receipts.stamp(library, entry, plan.files)
    receipts.write(library, entry, receipts.Receipt(plan.files, stamp, plan.license, source.title()))


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _clear(work: Path, keep: str = "") -> None:
    """Delete what a try left, all but the folder `keep`."""
    if not work.exists():
        return
    if not keep or not (work / keep).is_dir():
        shutil.rmtree(work, ignore_errors=True)
        return
    for item in work.iterdir():
        if item.name == keep:
            continue
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path, job: Job) -> Iterator[None]:
    """One process at a time; the system lets go of it when its holder dies. Raises Cancelled while waiting."""
    with path.open("a+b") as file:
        while not _try_lock(file.fileno()):
            job.check()
            job.report("wait", note="another Outrider is bringing this model")
            time.sleep(0.2)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK):
            return False
        raise
    return True
