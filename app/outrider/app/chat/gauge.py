"""What the chat itself costs: paints, their time, what the terminal is sent. Counts only once somebody asks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.app import App

from outrider.app.chat.frames import Frames


class Written:
    """Bytes that go to the terminal, from now on."""

    def __init__(self, app: App[Any]) -> None:
        self.nbytes = 0
        driver = app._driver  # nothing public tells
        if driver is not None:
            write = driver.write

            def counted(data: str) -> None:
                self.nbytes += len(data) if data.isascii() else len(data.encode())
                write(data)

            driver.write = counted


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment. `cpu`: seconds of this process."""

    at: float
    cpu: float
    paints: int
    written: int
    received: int
    frames: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two readings, for each second."""

    paints: float
    written: float
    received: float
    frames: float
    cpu: float  # share of a core


def rates(before: Reading, after: Reading) -> Rates:
    """Both in order."""
    seconds = max(1e-6, after.at - before.at)
    return Rates(
        paints=(after.paints - before.paints) / seconds,
        written=(after.written - before.written) / seconds,
        received=(after.received - before.received) / seconds,
        frames=(after.frames - before.frames) / seconds,
        cpu=(after.cpu - before.cpu) / seconds,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the others does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Profile:
    """Every paint of a session with its cost, for a file."""

    def __init__(self, app: App[Any], frames: Frames) -> None:
        self._written, self._begun = Written(app), time.monotonic()
        self._cpu = time.process_time()
        frames.log = self._ticks = []

    def data(self) -> dict[str, Any]:
        """Totals, then every paint: seconds since the start, CPU milliseconds."""
        costs = [1000 * cost for _, cost in self._ticks]
        return {
            "seconds": round(time.monotonic() - self._begun, 3),
            "cpu_s": round(time.process_time() - self._cpu, 3),
            "bytes_to_terminal": self._written.nbytes,
            "paints": len(costs),
            "cost_ms": {
                "mean": round(sum(costs) / len(costs), 3) if costs else 0.0,
                "p50": round(quantile(costs, 0.5), 3),
                "p95": round(quantile(costs, 0.95), 3),
                "max": round(max(costs, default=0.0), 3),
            },
            "ticks": [[round(at - self._begun, 4), round(1000 * cost, 3)] for at, cost in self._ticks],
        }

    def write(self, path: str) -> None:
        """As JSON. Raises OSError."""
        Path(path).write_text(json.dumps(self.data()) + "\n")
