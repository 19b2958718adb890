"""How many processors a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from outrider.core.base import cpus


def groups(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A made-up /proc/self/cgroup and /sys/fs/cgroup."""
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text)
    (folder / "cgroup").write_text(membership)
    return folder / "cgroup", folder / "fs"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),  # set further up
        ("0::/a/b\n", {"a/cpu.max": "800000 100000\n", "a/b/cpu.max": "300000 100000\n"}, 3.0),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n0::/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "50000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, math.inf),
        ("", {}, math.inf),
        ("nonsense\n", {"cpu.max": "nonsense"}, math.inf),
    ],
)
def test_a_quota_is_the_tightest_of_all_groups(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float
) -> None:
    assert cpus.quota(*groups(tmp_path, membership, files)) == quota


def test_what_counts_is_the_least_of_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cpus, "quota", lambda: 2.5)
    assert cpus.available() == 3
    monkeypatch.setattr(cpus, "quota", lambda: math.inf)
    assert cpus.available() == 8
    monkeypatch.setattr(cpus, "quota", lambda: 0.2)
    assert cpus.available() == 1
