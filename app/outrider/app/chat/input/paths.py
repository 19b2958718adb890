"""Files and folders that a path may go on with. Everything here may wait for a disk and belongs into a thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from outrider.app.chat.input.candidate import Candidate, Entry, least, match, rank

_FILES, _WIDE, _DEEP, _SECONDS = 20_000, 1_000, 12, 0.5  # of a walk: in all, in one folder, levels, time
_PASSED = {"node_modules", "__pycache__", "venv", "env", "site-packages", "target", "build", "dist", "vendor"}
_FRESH = 10.0  # seconds that a walk is good for
_SHOWN = 100


class Tree:
    """What lies below a folder, walked level by level so that no huge branch hides the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: list[str] = []
        self._walked = -_FRESH

    def candidates(self, query: str) -> list[Entry]:
        """Files that fit: those of the folder that the query names, then those anywhere below."""
        lead, slash, last = query.rpartition("/")
        if query.startswith(("/", "~", ".")) or slash:
            listed = self._listed(lead + slash, last)
            return listed or ([] if query.startswith(("/", "~", ".")) else self._anywhere(query))
        return self._anywhere(query)

    def _anywhere(self, query: str) -> list[Entry]:
        if monotonic() - self._walked > _FRESH:
            self._known = list(walk(self.folder))
            self._walked = monotonic()
        if not query:
            near = [name for name in self._known if "/" not in name.rstrip("/")]
            return [Entry(_candidate(name)) for name in near[:_SHOWN]]
        return _fitting(query, self._known)

    def _listed(self, lead: str, last: str) -> list[Entry]:
        place = Path(lead).expanduser() if lead.startswith(("/", "~")) else self.folder / lead
        names = [name for name in _names(place, hidden=last.startswith(".")) if match(last, name)]
        entries = rank(last, [Candidate(name, more=name.endswith("/")) for name in names], _SHOWN)
        shift = len(lead)
        return [
            Entry(_candidate(lead + one.candidate.text), tuple(at + shift for at in one.places), one.sure)
            for one in entries
        ]


def _candidate(name: str) -> Candidate:
    return Candidate(name, more=name.endswith("/"))


def _fitting(query: str, names: list[str]) -> list[Entry]:
    """Best first: by the last part of the path, else by all of it."""
    scored = []
    for name in names:
        whole = match(query, name)
        if whole is None:
            continue
        base = len(name.rstrip("/").rpartition("/")[0])
        base += base > 0
        inner = match(query, name[base:])
        if inner is not None and inner[0] + 50 >= whole[0]:
            score, places = inner[0] + 50 - min(49, name.count("/")), tuple(at + base for at in inner[1])
        else:
            score, places = whole
        scored.append((-score, name, Entry(_candidate(name), places, inner is not None and inner[0] > 500)))
    scored.sort(key=lambda one: one[:2])
    best = -scored[0][0] if scored else 0
    return [entry for score, _, entry in scored[:_SHOWN] if -score >= least(best)]


def walk(folder: Path) -> Iterator[str]:
    """Names below a folder, those of folders with a slash; hidden ones and huge trees are left out."""
    until = monotonic() + _SECONDS
    waiting = deque([("", 0)])
    left = _FILES
    while waiting and left > 0 and monotonic() < until:
        lead, depth = waiting.popleft()
        for name in _names(folder / lead)[:_WIDE]:
            left -= 1
            yield lead + name
            if not name.endswith("/") or depth == _DEEP or name[:-1] in _PASSED:
                continue
            if not (folder / lead / name[:-1]).is_symlink():  # it may lead back
                waiting.append((lead + name, depth + 1))


def _names(folder: Path, *, hidden: bool = False) -> list[str]:
    """What a folder holds, folders with a slash and first; nothing where it cannot be read."""
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") == hidden and entry.name.isprintable():
                    found.append(entry.name + ("/" if entry.is_dir() else ""))
    except OSError:
        return []
    return sorted(found, key=lambda name: (not name.endswith("/"), name.lower()))
