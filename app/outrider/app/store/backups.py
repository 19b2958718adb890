"""Whole copies of the store: one a week, and one before each change of its tables. Only the newest few are kept."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from outrider.app.store import schema
from outrider.app.store.problems import backups_of

_WEEK = 7 * 24 * 3600.0  # seconds
_WEEKLY, _BEFORE = 3, 2  # copies that are kept


def due(path: Path) -> bool:
    """Whether the newest weekly copy of the store at `path` is older than a week, or there is none."""
    copies = _weekly(path)
    return not copies or time.time() - copies[-1].stat().st_mtime > _WEEK


def back_up(path: Path) -> Path | None:
    """Copy the store, which may be in use, and remove old copies; returns where, None if there was nothing to copy or no room.

    Writers need not wait for it. What goes wrong costs the copy alone.
    """
    folder = backups_of(path)
    copy = folder / f"{path.stem}-{time.strftime('%Y-%m-%d')}{path.suffix}"
    with contextlib.suppress(OSError, sqlite3.Error):
        for unfinished in folder.glob(f".{path.stem}-*.part"):  # by a program that was ended
            unfinished.unlink(missing_ok=True)
        if shutil.disk_usage(path.parent).free < 4 * path.stat().st_size:
            return None
        with closing(schema.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            if source.execute("SELECT 1 FROM chat LIMIT 1").fetchone() is None:
                return None
            schema.copy(source, copy)
        _prune(path)
        return copy
    return None


def _prune(path: Path) -> None:
    before = sorted(path.parent.glob(f"{path.stem}.before-*{path.suffix}"), key=lambda one: one.stat().st_mtime)
    for old in (*_weekly(path)[:-_WEEKLY], *before[:-_BEFORE]):
        old.unlink(missing_ok=True)


def _weekly(path: Path) -> list[Path]:
    """The weekly copies, the newest last."""
    return sorted(backups_of(path).glob(f"{path.stem}-*{path.suffix}"), key=lambda one: one.name)
