"""The frame tick: paints what has changed, at a pace that leaves most of the time to everything else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from outrider.app.chat import terminal

TICK = 1 / terminal.FPS  # seconds between frames at best
SHARE = 3  # a frame waits this many times what the last one cost


class Frames:
    """Calls `paint` soon after `wake`, however often it is woken, and never more often than a tick."""

    def __init__(self, paint: Callable[[], Awaitable[None]], settle: Callable[[], Awaitable[None]]) -> None:
        self.tick = terminal.REMOTE_TICK if terminal.is_remote(os.environ) else TICK
        self._paint = paint
        self._settle = settle
        self._woken = asyncio.Event()
        self.costs: list[float] = []  # CPU seconds of the newest frames
        self.painted = 0
        self.late = 0.0  # seconds that the newest frame was waited for
        self.log: list[tuple[float, float]] | None = None
        """Every frame from now on, if this is set to a list: when, and its CPU seconds."""
        self._since: float | None = None  # when the next frame was first asked for

    def wake(self) -> None:
        """Something has changed."""
        if self._since is None:
            self._since = time.monotonic()
        self._woken.set()

    async def run(self) -> None:
        """Paint for ever; `settle` waits until a frame has reached the screen."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            now, begun = time.monotonic(), time.thread_time()
            self.late, self._since = now - (self._since or now), None
            await self._paint()
            await self._settle()
            cost = time.thread_time() - begun
            self.costs = [*self.costs[-99:], cost]
            self.painted += 1
            if self.log is not None:
                self.log.append((now, cost))
            await asyncio.sleep(max(self.tick, SHARE * cost))
