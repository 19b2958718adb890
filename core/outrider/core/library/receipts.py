"""Which files of the library have been verified: checked once by hash, afterwards by size and time of change."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from .catalogue import Entry, File
from .jobs import Job

State = Literal["missing", "unverified", "ready", "broken"]
_CHUNK = 1 << 20  # bytes


class Receipt(msgspec.Struct, frozen=True):
    """What was verified, where it came from, and the time of change of each file then."""

    files: tuple[File, ...]
    changed: dict[str, int]  # file name -> nanoseconds
    license: str = ""
    source: str = ""
    repo: str = ""
    revision: str = ""  # as it was asked for, empty = the newest
    commit: str = ""
    label: str = ""  # quantisation, if the repository has several
    labels: tuple[str, ...] = ()  # all that it has


def location(library: Path, entry: Entry, file: File) -> Path:
    """Where a file of an entry is: an entry with a single weight file is that file, any other one is a folder."""
    base = library / entry.path
    return base if entry.path == file.name else base / file.name


def read(library: Path, entry: Entry) -> Receipt | None:
    """The receipt of an entry, if there is a usable one."""
    try:
        return msgspec.json.decode(_path(library, entry).read_bytes(), type=Receipt)
    except (OSError, msgspec.MsgspecError):
        return None


def write(library: Path, entry: Entry, receipt: Receipt) -> None:
    """Keep a receipt."""
    path = _path(library, entry)
    with suppress(OSError):  # without one, a library that cannot be written is hashed again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
        draft.write_bytes(msgspec.json.encode(receipt))
        draft.replace(path)


def drop(library: Path, entry: Entry) -> None:
    """Forget an entry."""
    _path(library, entry).unlink(missing_ok=True)


def state(library: Path, entry: Entry) -> State:
    """Whether an entry is in the library as it should, by sizes and the receipt alone."""
    if not (library / entry.path).exists():
        return "missing"
    receipt = read(library, entry)
    files = entry.files or (receipt.files if receipt else ())
    for file in files:
        place = location(library, entry, file)
        if not place.is_file() or place.stat().st_size != file.bytes:
            return "broken"
    if receipt is None:
        return "unverified" if files else "ready"  # put there by hand: there is nothing to check against
    known = {file.name: file.sha256 for file in receipt.files}
    for file in files:
        changed = location(library, entry, file).stat().st_mtime_ns
        if known.get(file.name) != file.sha256 or receipt.changed.get(file.name) != changed:
            return "unverified"
    return "ready"


def stamp(library: Path, entry: Entry, files: tuple[File, ...]) -> dict[str, int]:
    """Times of change of an entry's files."""
    return {file.name: location(library, entry, file).stat().st_mtime_ns for file in files}


def sound(path: Path, file: File, job: Job) -> bool:
    """Whether a file has its published size and hash. Raises Cancelled."""
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    return not file.sha256 or digest(path, job, 0, file.bytes) == file.sha256


def digest(path: Path, job: Job, before: int, total: int) -> str:
    """SHA-256 of a file, told as the bytes from `before` on of `total`. Raises Cancelled."""
    found, done = hashlib.sha256(), before
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            job.check()
            found.update(chunk)
            done += len(chunk)
            job.report("verify", done, total, path.name)
    return found.hexdigest()


def blob_id(path: Path) -> str:
    """The id that git gives a file: how a hub names the small ones."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _path(library: Path, entry: Entry) -> Path:
    return library / ".verified" / f"{entry.path}.json"
