"""Free memory: the machine's, or what control groups leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.library.memory import free_on_cpu

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nHugePages_Total:       0\n"
STAT = "file 90000\nactive_file 30000\ninactive_file 20000\nslab_reclaimable 1000\n"


class Machine:
    """Files of a made-up /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.write(self.proc / "meminfo", MEMINFO)

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, folder: str, **files: str) -> None:
        for name, text in files.items():
            self.write(self.cgroups / folder / name.replace("__", "."), text)

    @property
    def free(self) -> int | None:
        return free_on_cpu(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_machine_alone(machine: Machine) -> None:
    assert machine.free == 600 * 1024


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert free_on_cpu(tmp_path, tmp_path) is None


def test_a_limit_around_the_process_with_its_cache_given_up(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box/inner\n")
    machine.group("box/inner", memory__max="max\n", memory__current="5\n")
    machine.group("box", memory__max="400000\n", memory__current="300000\n", memory__stat=STAT)
    assert machine.free == 400_000 - 300_000 + 51_000


def test_a_limit_above_what_the_machine_has(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box\n")
    machine.group("box", memory__max="900000000\n", memory__current="0\n")
    assert machine.free == 600 * 1024


def test_a_group_that_is_over_its_limit(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/\n")
    machine.group("", memory__max="1000\n", memory__current="90000\n")
    assert machine.free == 0


def test_the_first_version_and_a_path_that_is_not_visible_from_inside(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "5:cpu,memory:/docker/abc\n3:cpuset:/\n")
    stat = "inactive_file 7\ntotal_inactive_file 2000\ntotal_active_file 1000\n"
    files = {"memory__limit_in_bytes": "100000\n", "memory__usage_in_bytes": "60000\n", "memory__stat": stat}
    machine.group("memory", **files)
    assert machine.free == 100_000 - 60_000 + 3000
