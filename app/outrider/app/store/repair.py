"""Puts what can be read of a damaged store in its place. The damaged file is kept beside it, whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from outrider.app import files
from outrider.app.store import schema
from outrider.app.store.placing import Loss
from outrider.app.store.problems import Busy, StoreError, copies_of
from outrider.app.store.salvage import fill, salvage
from outrider.app.store.writers import Writers, take, writers_of


@contextmanager
def alone(path: Path, patience: float) -> Iterator[None]:
    """While no other program has the store open or repairs it. Raises Busy, and OSError."""
    lock = path.with_name(f".{path.name}.repair")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, files.FILE)
    try:
        end = time.monotonic() + patience
        while not take(descriptor):
            if time.monotonic() > end:
                raise Busy("Another Outrider is repairing the chats.", "Start again in a moment.")
            time.sleep(0.02)
        writers = Writers(writers_of(path))
        try:
            if writers.others():
                raise Busy("Another Outrider window has the chats open.", "Close it, then start again.")
            yield
        finally:
            writers.leave()
            with contextlib.suppress(OSError):  # Windows keeps what is open
                lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def repair(path: Path) -> str:
    """Repair the store, which nobody else has open; returns what to tell the user.

    Raises StoreError if there is nothing in it that can be read, sqlite3.Error and OSError if it cannot be written.
    """
    rows, loss = salvage(path)
    if not rows.chats:
        raise StoreError("Nothing of it can be read.")
    fresh = path.with_name(f".{path.name}.repaired")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, files.FILE))
        with closing(schema.connect(fresh)) as connection:
            schema.migrate(connection, fresh)
            fill(connection, rows)
        kept = _keep(path)
        _put_in_place(fresh, path, kept)
    finally:
        fresh.unlink(missing_ok=True)
    return _notice(path, kept, loss)


def _put_in_place(fresh: Path, path: Path, kept: Path) -> None:
    """Replace the damaged file; its log, which must not be read with the new one, goes with `kept`. Raises OSError."""
    log, kept_log = (one.with_name(f"{one.name}-wal") for one in (path, kept))
    try:
        if log.exists():
            os.replace(log, kept_log)
        os.replace(fresh, path)
    except OSError:
        if kept_log.exists():
            os.replace(kept_log, log)
        kept.unlink()
        raise
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


def _keep(path: Path) -> Path:
    """Give the damaged file a second name. Raises OSError."""
    stem = f"{path.stem}.damaged-{time.strftime('%Y-%m-%d')}"
    names = (f"{stem}{more}{path.suffix}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    kept = next(one for name in names if not (one := path.with_name(name)).exists())
    try:
        os.link(path, kept)
    except OSError:  # not on every file system
        shutil.copyfile(path, kept)
    kept.chmod(files.FILE)
    return kept


def _notice(path: Path, kept: Path, loss: Loss) -> str:
    older = copies_of(path) if loss.words() != Loss().words() else []
    more = f" An older copy, which may have what is lost, is {older[-1]}." if older else ""
    return f"The chats were damaged and are repaired. {loss.words()} The damaged file is kept as {kept}.{more}"
