"""The frame tick: paints what has changed, at a pace that leaves most of the time to everything else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

TICK = 0.033  # seconds between frames at best
REMOTE_TICK = 0.1  # the same where every frame travels over a network
SHARE = 3  # a frame waits this many times what the last one cost


class Frames:
    """Calls `paint` soon after `wake`, however often it is woken, and never more often than a tick."""

    def __init__(self, paint: Callable[[], Awaitable[None]], settle: Callable[[], Awaitable[None]]) -> None:
        self._tick = REMOTE_TICK if os.environ.get("SSH_TTY") else TICK
        self._paint = paint
        self._settle = settle
        self._woken = asyncio.Event()
        self.costs: list[float] = []  # CPU seconds of the newest frames

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Paint for ever; `settle` waits until a frame has reached the screen."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            begun = time.thread_time()
            await self._paint()
            await self._settle()
            cost = time.thread_time() - begun
            self.costs = [*self.costs[-99:], cost]
            await asyncio.sleep(max(self._tick, SHARE * cost))
