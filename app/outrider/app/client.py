"""The app's side of the pipe: starts the engine process, sends requests, hands events to whoever asked.

Any program that speaks `outrider.core.protocol` over its stdin and stdout can stand in for the engine; tests and demos
run a scripted one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from outrider.core import paths, protocol

ENGINE = (sys.executable, "-m", "outrider.core.service")
_CHUNK = 1 << 16


class EngineError(Exception):
    """The engine refused or failed a request: what and why, what to do next. `usage`: the request was wrong."""

    def __init__(self, message: str, hint: str = "", *, usage: bool = False, trace: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.usage, self.trace = message, hint, usage, trace


class EngineDied(EngineError):
    """The engine process ended while a request was open."""


class EngineClient:
    """One engine process and the requests open on it. All methods belong to one event loop.

    `on_death(why)` is called once when the process ends without being asked to; `start` brings up a new one.
    """

    def __init__(self, command: Sequence[str] = ENGINE, *, on_death: Callable[[str], None] | None = None) -> None:
        self.command = tuple(command)
        self.on_death = on_death
        self.hello: protocol.Hello | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Queue[protocol.Event | EngineError]] = {}
        self._words: deque[str] = deque(maxlen=200)
        self._tasks: list[asyncio.Task[None]] = []
        self._greeted = asyncio.Event()
        self._closing = False

    @property
    def alive(self) -> bool:
        """Whether the engine process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None before `start`."""
        return self._process.pid if self._process else None

    def last_words(self) -> list[str]:
        """The newest lines that the engine printed to stderr, oldest first."""
        return list(self._words)

    def number(self) -> int:
        """A fresh request id."""
        return next(self._numbers)

    async def start(self) -> None:
        """Start the process if none runs; returns as soon as it exists. Raises EngineError if it cannot be started."""
        if self.alive:
            return
        self._closing = False
        self._greeted.clear()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is the client's to handle
                limit=1 << 20,
            )
        except OSError as error:
            raise EngineError(f"The engine process could not be started: {error}.", "Run `outrider doctor`.") from error
        self._tasks = [asyncio.create_task(self._read(self._process)), asyncio.create_task(self._listen(self._process))]

    async def greeted(self) -> protocol.Hello:
        """Wait for the engine's first frame. Raises EngineDied if the process ends before it."""
        waiter = asyncio.ensure_future(self._greeted.wait())
        reader = self._tasks[0]
        await asyncio.wait({waiter, reader}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self.hello is None or not self._greeted.is_set():
            raise EngineDied(self._why(), "Run `outrider doctor`.")
        return self.hello

    def send(self, request: protocol.Request) -> None:
        """Send without waiting for an answer. Raises EngineDied if there is no process."""
        if not self.alive or self._process is None or self._process.stdin is None:
            raise EngineDied(self._why(), "It is started again with the next message.")
        self._process.stdin.write(protocol.pack(request))

    async def stream(self, request: protocol.Request) -> AsyncIterator[protocol.Event]:
        """Send and yield every event up to the last one (`Done` or `Result`).

        Raises EngineError for `Failed` and EngineDied when the process ends first. Leaving the loop early cancels the request.
        """
        queue: asyncio.Queue[protocol.Event | EngineError] = asyncio.Queue()
        self._open[request.id] = queue
        finished = False
        try:
            self.send(request)
            while not finished:
                event = await queue.get()
                finished = isinstance(event, protocol.Done | protocol.Result | EngineError)
                if isinstance(event, EngineError):
                    raise event
                yield event
        finally:
            self._open.pop(request.id, None)
            if not finished and self.alive:
                self.send(protocol.Cancel(id=self.number(), request=request.id))

    async def ask(self, request: protocol.Request, on_event: Callable[[protocol.Event], None] | None = None) -> Any:
        """Send, hand every event before the last to `on_event`, return `Result.data` (for `Generate` the `Report`)."""
        answer: Any = None
        async for event in self.stream(request):
            if isinstance(event, protocol.Done):
                answer = event.report
            elif isinstance(event, protocol.Result):
                answer = event.data
            elif on_event:
                on_event(event)
        return answer

    async def close(self, patience: float = 2.0) -> None:
        """End the process: ask, then terminate, then kill."""
        self._closing = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(EngineError, ConnectionError):
                self.send(protocol.Quit(id=self.number()))
            for stop in (None, process.terminate, process.kill):
                with contextlib.suppress(ProcessLookupError):
                    if stop:
                        stop()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), patience)
                    break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        unpacker = protocol.Unpacker(protocol.AnyEvent)
        try:
            while data := await process.stdout.read(_CHUNK):
                for event in unpacker.feed(data):
                    self._route(event)
        except protocol.ProtocolError as error:
            self._words.append(str(error))
            process.kill()
        await process.wait()
        self._bury()

    def _route(self, event: protocol.AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self.hello = event
            self._greeted.set()
            return
        number = event.request
        if number is None:
            for queue in self._open.values():
                queue.put_nowait(event)
        elif number in self._open:
            if isinstance(event, protocol.Failed):
                failed = EngineError(event.message, event.hint, usage=event.usage, trace=event.trace)
                self._open[number].put_nowait(failed)
            else:
                self._open[number].put_nowait(event)

    def _bury(self) -> None:
        why = self._why()
        for queue in self._open.values():
            queue.put_nowait(EngineDied(why, "It is started again with the next message."))
        self._open.clear()
        if self.on_death and not self._closing:
            self.on_death(why)

    def _why(self) -> str:
        code = self._process.returncode if self._process else None
        if code is None:
            return "The engine is not running."
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = [line for line in self._words if line.strip()]
        return f"The engine process {how}." + (f" Its last words: {words[-1].strip()}" if words and code > 0 else "")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep what the engine prints: the newest lines in memory, all of it in the log file."""
        assert process.stderr is not None
        log = paths.engine_log()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            while line := await process.stderr.readline():
                self._words.append(line.decode("utf-8", "replace").rstrip())
                file.write(line)
                file.flush()
                if os.environ.get("OUTRIDER_DEBUG"):
                    sys.stderr.buffer.write(line)
