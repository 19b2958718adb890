"""How much memory is free on a device, page cache that would be given up included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
_CACHE = ("active_file", "inactive_file", "slab_reclaimable")  # of memory.stat: what is given up under pressure


def free(device: str) -> int | None:
    """Bytes free on `cpu`, `cuda` or `cuda:N`; None where that cannot be known."""
    return free_on_cuda(device) if device.startswith("cuda") else free_on_cpu()


def free_on_cuda(device: str) -> int:
    """What the driver has left, and what torch holds of it without use. Loads torch."""
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def free_on_cpu(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """The kernel's own estimate, or what a control group around this process leaves, if that is less."""
    machine = _available(proc / "meminfo")
    if machine is None:
        return None
    return min([machine, *(room for folder in _groups(proc, cgroups) if (room := _room(folder)) is not None)])


def _available(meminfo: Path) -> int | None:
    found = _numbers(meminfo).get("MemAvailable:")
    return None if found is None else found * 1024


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders of the control groups around this process, in both versions: its own, then the ones around that."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = cgroups / "memory" if controllers else cgroups
        folder = top / own.strip("/")
        yield from (folder, *folder.parents[: len(folder.parts) - len(top.parts)])


def _room(group: Path) -> int | None:
    """Bytes that a control group leaves, or None if it sets no limit."""
    for limit, usage, prefix in _LIMITS:
        try:
            most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        except (OSError, ValueError):
            continue
        if most != "max":
            told = _numbers(group / "memory.stat")
            return max(0, int(most) - used + sum(told.get(prefix + name, 0) for name in _CACHE))
    return None


def _numbers(file: Path) -> dict[str, int]:
    """Lines `name number …` of a file, {} if there is none."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
