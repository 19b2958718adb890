"""How many processors this process may use: those of the machine, of its affinity mask and of its container's quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available() -> int:
    """At least 1. A quota of 1.5 processors counts as 2."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, quota())))


def quota(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> float:
    """Processors that the control groups of this process allow it on average; infinity where there is no limit."""
    shares = [math.inf]
    for folder in _folders(membership, groups):
        try:
            limit, period = _limit(folder)
            if limit > 0 and period > 0:
                shares.append(limit / period)
        except (OSError, ValueError):  # a controller that is off, "max"
            continue
    return min(shares)


def _limit(folder: Path) -> tuple[int, int]:
    """Microseconds of processor time, and the period that they are for. Raises OSError, ValueError where there are none."""
    unified = folder / "cpu.max"
    if unified.exists():
        limit, _, period = unified.read_text().partition(" ")
        return int(limit), int(period)
    return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())


def _folders(membership: Path, groups: Path) -> Iterator[Path]:
    """Folders of the groups that hold this process, in both versions of control groups, each with all that are above it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        root = groups / controllers if controllers else groups
        for part in (path, *map(str, Path(path).parents)):
            yield root / part.lstrip("/")
