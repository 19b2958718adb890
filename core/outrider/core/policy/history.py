"""What the policy learnt, kept between runs: what passes cost on this machine, and how the drafters of a model did.

One small JSON file in the state folder. A file that is broken or of another version is as good as none: it is told in the log,
and written anew. Importing this module loads no torch.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outrider.core.base import paths
from outrider.core.base.protocol import DrafterRow, ModelChoice

from .acceptance import DrafterRecord
from .policy import Policy
from .why import measured

if TYPE_CHECKING:
    import torch

VERSION = 1
MOST = 64  # records of each kind; the longest unused goes first
TURN = 0.3  # share by which a pass may differ from its record before that is dropped


class CostRecord(msgspec.Struct):
    """Seconds, of one model loaded in one way on one machine."""

    used: float  # seconds since 1970
    threads: int
    passes: dict[int, float]  # by rows
    slopes: tuple[float, float]  # as `Costs.slopes`
    drafting: dict[str, list[float]] = {}  # as `Drafting.dump`, by drafter


Record = TypeVar("Record", CostRecord, DrafterRecord)


class _File(msgspec.Struct):
    version: int = VERSION
    costs: dict[str, CostRecord] = {}
    drafters: dict[str, DrafterRecord] = {}  # by model and drafter


def add_measured(rows: Sequence[DrafterRow], path: Path) -> None:
    """Say in each row how that drafter did with the model at `path`."""
    model, known = _digest(_files(path)), _read().drafters
    for row in rows:
        record = known.get(f"{model}/{row.name}")
        row.choice = measured(record) if record is not None else ""


class History:
    """The records of one loaded model. `path`: its file or folder."""

    def __init__(self, choice: ModelChoice, path: Path, device: torch.device) -> None:
        import torch

        files = _files(path)
        self._model = _digest(files)
        self._way = _digest([files, _machine(device), _way(choice), torch.__version__, version("outrider")])

    def costs(self) -> CostRecord | None:
        """What passes cost when this model was loaded here in this way."""
        return _read().costs.get(self._way)

    def recall(self, policy: Policy) -> None:
        """Give a policy what is known of the drafters, and of their time where nothing on the machine has changed."""
        file = _read()
        for key, record in file.drafters.items():
            model, _, name = key.partition("/")
            if model == self._model:
                policy.remember(name, record)
        known = file.costs.get(self._way)
        if known is None:
            return
        then, now = known.passes.get(1, 0.0), policy.costs.of(1)  # the machine may have been busy then, or be so now
        scale = now / then if policy.costs.known and 0 < then < math.inf else 1.0
        for name, numbers in known.drafting.items():
            policy.costs.remember(name, numbers, scale)

    def save(self, policy: Policy) -> None:
        """Write what a policy knows now. A folder that cannot be written to is reported in the log."""
        import torch

        file, now = _read(), time.time()
        costs = policy.costs
        file.costs[self._way] = CostRecord(now, torch.get_num_threads(), costs.passes, costs.slopes, costs.dump())
        for name, record in policy.dump().items():
            record.used = now
            file.drafters[f"{self._model}/{name}"] = record
        file.costs, file.drafters = _newest(file.costs), _newest(file.drafters)
        _write(file)


def _file() -> Path:
    return paths.state_dir() / "policy.json"


def _read() -> _File:
    try:
        made = msgspec.json.decode(_file().read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.DecodeError) as error:
        _tell(f"{_file()} is not used: {error}")
        return _File()
    if made.version != VERSION:
        _tell(f"{_file()} is of version {made.version}, not {VERSION}, and not used")
        return _File()
    return made


def _write(file: _File) -> None:
    path = _file()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.json.encode(file))
        fresh.replace(path)
    except OSError as error:
        _tell(f"{path} could not be written: {error}")
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")  # the engine's log


def _newest(records: Mapping[str, Record]) -> dict[str, Record]:
    """The `MOST` that were used last."""
    names = sorted(records, key=lambda key: records[key].used)[-MOST:]
    return {key: records[key] for key in names}


def _files(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of all files of a model."""
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    return [(str(one), (about := one.stat()).st_size, about.st_mtime_ns) for one in files]


def _machine(device: torch.device) -> list[object]:
    import torch

    parts = [platform.node(), platform.machine(), os.cpu_count(), torch.backends.cpu.get_cpu_capability()]
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        parts += [about.name, about.total_memory, torch.version.cuda]
    return [*parts, str(device)]


def _way(choice: ModelChoice) -> dict[str, object]:
    """How the model is loaded: all of a choice but the name."""
    return {name: getattr(choice, name) for name in choice.__struct_fields__ if name != "model"}


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]
