"""Bringing a model into the library: staged beside its final name, verified, then renamed; nothing broken is ever used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.base.errors import DownloadError

from . import receipts
from .catalogue import Entry, File, Source
from .hubget import NO_SPACE, Plan
from .jobs import Job, size_of
from .locks import lock
from .sources import SourceError, arriving, bring, disk_full, download_text, note, planned, size_text

_MARGIN = 16 << 20  # bytes that stay free
_SLOW = 32 << 20  # bytes; a smaller download is over before its size is read


def fetch(library: Path, entry: Entry, job: Job) -> Path:
    """The verified path of `entry`, brought from the first source that answers. Raises DownloadError, Cancelled."""

    def waiting() -> None:
        job.check()
        job.report("wait", note="another Outrider is bringing this model")

    try:
        library.mkdir(parents=True, exist_ok=True)
        with lock(lock_file(library, entry), waiting):
            if settle(library, entry, job):
                return library / entry.path
            return _from_sources(library, entry, job)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise disk_full(library) from error
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
        receipt = receipt or receipts.Receipt(files, {}, entry.license, "local")
        stamp = receipts.stamp(library, entry, files)
        receipts.write(library, entry, msgspec.structs.replace(receipt, files=files, changed=stamp))
        return True
    return state == "ready"


def work_folder(library: Path, entry: Entry) -> Path:
    """Where an entry is staged: beside its final name."""
    return library / f"{entry.path}.partial"


def lock_file(library: Path, entry: Entry) -> Path:
    """What a pull of an entry holds locked."""
    return library / f".{entry.path}.lock"


def unfinished(library: Path, entry: Entry) -> tuple[int, int]:
    """Bytes of an entry that an earlier try left here, and of how many; 0 and 0 if there are none."""
    work = work_folder(library, entry)
    plan = planned(work)
    return (size_of(arriving(work)), plan.nbytes) if plan else (0, 0)


def _from_sources(library: Path, entry: Entry, job: Job) -> Path:
    work = work_folder(library, entry)
    reasons: dict[str, SourceError] = {}
    finished = False
    try:
        for source in entry.sources:
            _tidy(work)
            _check_room(library, entry, source)
            here, total = unfinished(library, entry) if source.kind == "hub" else (0, 0)
            if (
                source.kind != "hub" and (source.bytes or _size(entry)) >= _SLOW
            ):  # the hub is asked first how much it has
                job.notice(download_text(entry.name, source.bytes or _size(entry), 0, library))
            job.report("download", here, source.bytes or _size(entry) or total, note(source, work))
            try:
                staged, plan = bring(entry, source, work, job)
                files = _verified(staged, plan, job)
            except SourceError as error:
                reasons[source.title()] = error
                continue
            _install(library, entry, staged, receipts.Receipt(**_origin(files, staged, plan, source)))
            finished = True
            return library / entry.path
    finally:
        if finished:
            shutil.rmtree(work, ignore_errors=True)
        else:
            _tidy(work)
    raise _nobody(library, entry, reasons)


def _nobody(library: Path, entry: Entry, reasons: dict[str, SourceError]) -> DownloadError:
    """The error when no source served, with the way out that the last of them knows."""
    here, total = unfinished(library, entry)
    kept_text = f" {size_text(here)} of {size_text(total)} are kept: the next try goes on from there." if here else ""
    hint = next((error.hint for error in reversed(reasons.values()) if error.hint), "")
    if len(reasons) == 1:
        ((source, error),) = reasons.items()
        hint = hint or "Check the connection, then try again."
        return DownloadError(f"{entry.name} cannot be brought from the {source}: {error}.", hint + kept_text)
    tried = {"local library": f"nothing sound at {library / entry.path}", **reasons}
    listed = "; ".join(f"{name}: {reason}" for name, reason in tried.items())
    return DownloadError(
        f"No source has {entry.name!r}. {listed}.",
        "Check the connection and try again, or give a model of your own with `--model PATH`." + kept_text,
    )


def _check_room(library: Path, entry: Entry, source: Source) -> None:
    here = size_of(arriving(work_folder(library, entry))) if source.kind == "hub" else 0
    needed = max(0, _size(entry) + source.bytes - here) + _MARGIN
    if shutil.disk_usage(library).free < needed:
        raise disk_full(library, needed)


def _size(entry: Entry) -> int:
    """Bytes of its files, 0 while they are not known."""
    return sum(file.bytes for file in entry.files)


def _verified(staged: Path, plan: Plan, job: Job) -> tuple[File, ...]:
    """The files with their hashes, those that the source did not tell included. Raises SourceError for a broken one."""
    done, files = 0, []
    for item in plan.files:
        path = staged / item.name
        whole = path.is_file() and path.stat().st_size == item.bytes
        sha256 = receipts.digest(path, job, done, plan.nbytes) if whole else ""
        whole = whole and sha256 == (item.sha256 or sha256)
        if not whole or (item.git and receipts.blob_id(path) != item.git):
            path.unlink(missing_ok=True)
            raise SourceError(f"{item.name} arrived broken (its checksum is wrong) and was deleted", "Try again.")
        done += item.bytes
        files.append(File(item.name, item.bytes, sha256))
    return tuple(files)


def _origin(files: tuple[File, ...], staged: Path, plan: Plan, source: Source) -> dict[str, Any]:
    return {
        "files": files,
        "changed": {file.name: (staged / file.name).stat().st_mtime_ns for file in files},
        "license": plan.license,
        "source": source.title(),
        "repo": source.repo,
        "revision": source.revision,
        "commit": plan.revision,
        "label": plan.label,
        "labels": plan.labels,
    }


def _install(library: Path, entry: Entry, staged: Path, receipt: receipts.Receipt) -> None:
    """Rename what is staged to its final place; the receipt is there before it."""
    final = library / entry.path
    for file in receipt.files:
        _sync(staged / file.name)
    single = [file.name for file in receipt.files] == [entry.path]
    if final.is_dir() and not single:  # broken, or it would not be replaced
        shutil.rmtree(final)
    receipts.write(library, entry, receipt)
    os.replace(staged / entry.path if single else staged, final)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _tidy(work: Path) -> None:
    """Delete what a try left, all but files from the hub: the next try continues with those, and so does who stopped this one."""
    keep = "hub" if planned(work) and size_of(arriving(work)) else ""
    if not keep:
        shutil.rmtree(work, ignore_errors=True)
        return
    for item in work.iterdir():
        if item.name == keep:
            continue
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)
