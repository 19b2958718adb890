"""Downloads, one after the other: what waits, what runs, what has ended and how. Knows no widgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any

from outrider.app import render
from outrider.app.client import EngineError
from outrider.core.base import protocol
from outrider.core.base.protocol import ModelRow, Progress

_BAR = 16  # cells
_LEAST = 1.0  # seconds after which a speed is told
_KEPT = 8  # downloads that have ended and are still shown

Ask = Callable[[Callable[[int], protocol.Request], Callable[[protocol.Event], None]], Awaitable[Any]]


class Way(Enum):
    """Where a download stands."""

    WAITING = "waiting"
    RUNNING = "running"
    HERE = "here"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Pull:
    """One download."""

    name: str
    nbytes: int = 0  # 0: not known
    then: Callable[[ModelRow], None] | None = None
    """What is done once it is here."""
    way: Way = Way.WAITING
    progress: Progress | None = None
    began: tuple[float, float] = (0.0, 0.0)  # seconds and bytes at the beginning
    seen: float = 0.0  # seconds at the newest progress
    error: EngineError | None = None
    trouble: str = ""  # why what came cannot be run

    def take(self, event: protocol.Event, now: float) -> None:
        """Note how far it is."""
        if isinstance(event, Progress):
            if self.progress is None or self.progress.phase != event.phase or event.done < self.progress.done:
                self.began = (now, event.done)
            self.progress, self.seen = event, now

    @property
    def share(self) -> float | None:
        """From 0 to 1, None where the total is not known."""
        told = self.progress
        return min(1.0, told.done / told.total) if told is not None and told.total > 0 else None

    @property
    def words(self) -> str:
        """How far it is: bar, bytes, speed, time left."""
        told = self.progress
        if self.way is not Way.RUNNING or told is None:
            return self._ended()
        if told.phase == "wait":
            return told.note or "waiting"
        parts = [] if told.phase == "download" else [told.phase]
        if self.share is not None:
            parts += [bar(self.share), f"{render.size(told.done)} of {render.size(told.total)}"]
        elif told.done:
            parts.append(render.size(told.done))
        return "  ".join([*parts, *self._pace(told)]) or "begins"

    def _ended(self) -> str:
        size = render.size(self.nbytes) if self.nbytes else ""
        if self.way is Way.FAILED and self.error is not None:
            return f"failed: {self.error.message}"
        if self.way is Way.STOPPED:
            return "stopped; what has come is kept"
        if self.trouble:
            return f"here, but it cannot be run: {self.trouble}"
        return "  ".join(filter(None, (self.way.value if self.way is not Way.RUNNING else "begins", size)))

    def _pace(self, told: Progress) -> list[str]:
        seconds, moved = self.seen - self.began[0], told.done - self.began[1]
        if told.unit != "bytes" or seconds < _LEAST or moved <= 0:
            return []
        left = (told.total - told.done) * seconds / moved
        return [f"{render.size(moved / seconds)}/s", *([f"{render.duration(left)} left"] if left > 0 else [])]


class Pulls:
    """The queue. `ask` sends a request, `changed` is called when anything is new, `ended` when a download has."""

    def __init__(
        self,
        ask: Ask,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
        ended: Callable[[Pull], None],
    ) -> None:
        self._ask, self._spawn, self._changed, self._ended = ask, spawn, changed, ended
        self.all: list[Pull] = []
        self._working = False
        self._task: asyncio.Future[Any] | None = None

    def add(self, name: str, nbytes: int = 0, then: Callable[[ModelRow], None] | None = None) -> Pull:
        """Have a model brought; one that is on its way already gets `then` as well."""
        known = next((pull for pull in self.open if pull.name == name), None)
        if known is not None:
            known.then = then or known.then
            return known
        pull = Pull(name, nbytes, then)
        over = [one for one in self.all if one not in self.open and one.name != name]
        self.all = [*over[-_KEPT:], *self.open, pull]
        if not self._working:
            self._working = True
            self._spawn(self._work())
        self._changed()
        return pull

    def stop(self, name: str) -> bool:
        """Take a download out of the queue, or stop it where it is. False if there is none of that name."""
        for pull in self.open:
            if pull.name == name:
                running = pull.way is Way.RUNNING
                pull.way = Way.STOPPED
                if running and self._task is not None:
                    self._task.cancel()
                self._changed()
                return True
        return False

    @property
    def open(self) -> list[Pull]:
        """Those that wait or run."""
        return [pull for pull in self.all if pull.way in (Way.WAITING, Way.RUNNING)]

    def of(self, name: str) -> Pull | None:
        """The newest download of that name."""
        return next((pull for pull in reversed(self.all) if pull.name == name), None)

    async def _work(self) -> None:
        try:
            while (pull := next((one for one in self.all if one.way is Way.WAITING), None)) is not None:
                await self._bring(pull)
        finally:
            self._working = False

    async def _bring(self, pull: Pull) -> None:
        pull.way = Way.RUNNING
        self._changed()
        self._task = asyncio.ensure_future(
            self._ask(lambda number: protocol.Pull(id=number, name=pull.name), lambda event: self._take(pull, event))
        )
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
        row = self._result(pull, self._task)
        self._changed()
        if pull.way is not Way.STOPPED:
            self._ended(pull)
        if row is not None and pull.then is not None:
            pull.then(row)

    def _take(self, pull: Pull, event: protocol.Event) -> None:
        pull.take(event, monotonic())
        self._changed()

    def _result(self, pull: Pull, task: asyncio.Future[Any]) -> ModelRow | None:
        if pull.way is Way.STOPPED or task.cancelled():
            pull.way = Way.STOPPED
            return None
        error = task.exception()
        if isinstance(error, EngineError):
            pull.way, pull.error = Way.FAILED, error
            return None
        row: ModelRow = protocol.as_type(task.result(), ModelRow)
        pull.way, pull.nbytes, pull.trouble = Way.HERE, row.nbytes, row.problem or row.unsupported
        return row


def bar(share: float, cells: int = _BAR) -> str:
    """A share as a bar."""
    full = round(cells * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (cells - full)
