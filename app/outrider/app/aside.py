"""A second engine process, for what must not wait until the chat's own is free: lists of models, downloads.

It is started with the first request and ended when nothing was asked for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from outrider.app.client import EngineClient
from outrider.core.base import protocol

IDLE = 45.0  # seconds


class Aside:
    """Answers requests one after the other. `make` makes a client that has not started. Belongs to one event loop."""

    def __init__(self, make: Callable[[], EngineClient], idle: float = IDLE) -> None:
        self._make, self._idle = make, idle
        self.client: EngineClient | None = None
        """The process, None before the first request."""
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None
        self._door = asyncio.Lock()  # it is not started while it ends
        self._closing: asyncio.Task[None] | None = None

    async def ask(
        self,
        request: Callable[[int], protocol.Request],
        on_event: Callable[[protocol.Event], None] | None = None,
    ) -> Any:
        """`Result.data` of what `request` makes of a number. Cancelling this stops it. Raises EngineError."""
        self._open += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with self._door:
                if self.client is None:
                    self.client = self._make()
                await self.client.start()
            return await self.client.ask(request(self.client.number()), on_event)
        finally:
            self._open -= 1
            if not self._open:
                self._timer = asyncio.get_running_loop().call_later(self._idle, self._rest)

    def _rest(self) -> None:
        self._closing = asyncio.ensure_future(self.close())

    async def close(self) -> None:
        """End the process, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._door:
            if self.client is not None and not self._open:
                await self.client.close(patience=1.0)

    async def end(self) -> None:
        """End the process even though somebody waits for an answer."""
        self._open = 0
        await self.close()


class Beside:
    """The engine processes beside the chat's own: one for questions, one each for downloads and trainings, which take long."""

    def __init__(self, make: Callable[[], EngineClient]) -> None:
        self.questions, self.downloads, self.training = Aside(make), Aside(make), Aside(make)

    async def end(self) -> None:
        """End all of them."""
        for one in (self.questions, self.downloads, self.training):
            await one.end()
