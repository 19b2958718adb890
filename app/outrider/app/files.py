"""Files that belong to the user alone: 0600, in folders of 0700; and why one could not be written."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER, FILE, ANYONE = 0o700, 0o600, 0o666
_LITTLE = 64 << 10  # bytes: a disk with less is full


def make_folder(folder: Path) -> None:
    """Make a folder for the user alone, and those above it that are missing. Raises OSError."""
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        one.mkdir(FOLDER, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def write(path: Path, data: bytes, mode: int = FILE) -> None:
    """Write a file, all of it or nothing; ANYONE leaves the mode to the system. Raises OSError that names it."""
    unready = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    with naming(path):
        try:
            unready.unlink(missing_ok=True)
            with open(os.open(unready, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
            if mode != ANYONE:
                unready.chmod(mode)
            os.replace(unready, path)
        finally:
            unready.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError name the file that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


def reason(error: OSError) -> str:
    """Why a file could not be written, to stand in a sentence."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):  # Windows knows no quota
        return "the disk is full"
    if error.errno == errno.EROFS:
        return "the file system is read-only"
    return error.strerror or str(error)


def hindrance(folder: Path) -> str:
    """What keeps every file of the disk with `folder` from being written, in the words of `reason`; empty if nothing does."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    try:
        if hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY:
            return reason(OSError(errno.EROFS, ""))
        return reason(OSError(errno.ENOSPC, "")) if shutil.disk_usage(there).free < _LITTLE else ""
    except OSError:
        return ""


def too_wide(path: Path) -> bool:
    """Whether others on this machine may read or change it."""
    return os.name != "nt" and bool(path.stat().st_mode & 0o077)
