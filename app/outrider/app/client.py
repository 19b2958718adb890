"""The app's side of the pipe: starts the engine process, sends requests, hands events to whoever asked.

Any program that speaks `outrider.core.base.protocol` over its stdin and stdout can stand in for the engine; tests and demos
run a scripted one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import IO, Any

from outrider.app import files
from outrider.app.config import folders
from outrider.core.base import paths, protocol, terminal

# Weights are read from end to end for every token; in huge pages that is a tenth faster. Only the C library's start-up
# reads this, so it cannot be set from inside; where it is not known it does nothing.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

ENGINE = (sys.executable, "-m", "outrider.core.service")
_CHUNK = 1 << 16
_HELD = 1 << 20  # bytes of frames that wait while nobody reads them
_LOG_LIMIT = 4 << 20  # bytes of the engine's log that are kept from one start to the next
_LINES = 1000  # of the log that are kept in memory
_LOOK = 0.01  # seconds between two looks whether the process has ended
_LAST_BREATH = 5.0  # seconds between the end of the frames and the end of the process


@dataclass(slots=True)
class Traffic:
    """What has come out of an engine's pipes so far."""

    received: int = 0  # bytes
    frames: Counter[str] = field(default_factory=Counter)  # by name


_MISMATCH = (
    "Install one version for both (`pip install --upgrade outrider`), end every running Outrider and start again."
)


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
    `on_notice` gets what the engine says outside of any request. `echo` repeats what it prints on stderr; by default
    if `OUTRIDER_DEBUG` is set.
    """

    def __init__(
        self,
        command: Sequence[str] = ENGINE,
        *,
        on_death: Callable[[str], None] | None = None,
        on_notice: Callable[[protocol.Notice], None] | None = None,
        echo: bool | None = None,
    ) -> None:
        self.command = tuple(command)
        self.echo = bool(os.environ.get("OUTRIDER_DEBUG")) if echo is None else echo
        self.on_death = on_death
        self.on_notice = on_notice
        self.hello: protocol.Hello | None = None
        self._process: Process | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Queue[protocol.Event | EngineError]] = {}
        self.traffic = Traffic()
        self._words: deque[str] = deque(maxlen=_LINES)
        self._tasks: list[asyncio.Task[None]] = []
        self._greeted = asyncio.Event()
        self._door = asyncio.Lock()  # held while it is started or cleared away
        self._closing = False
        self._garbled = False
        self._stranger = ""  # what is wrong with an engine of another protocol version

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

    @property
    def backlog(self) -> int:
        """Events that have come and that nobody has taken yet."""
        return sum(queue.qsize() for queue in self._open.values())

    def number(self) -> int:
        """A fresh request id."""
        return next(self._numbers)

    async def start(self) -> None:
        """Start the process if none runs; returns as soon as it exists. Raises EngineError if it cannot be started.

        One that is being closed ends first.
        """
        while self._closing and self.alive:
            await asyncio.sleep(_LOOK)
        async with self._door:
            if not self.alive:
                if self._tasks and not self._closing:  # who has a request open hears first why it ended
                    await asyncio.wait({self._tasks[0]}, timeout=_LAST_BREATH)
                await self._end_tasks()
                await self._start()

    async def _start(self) -> None:
        self._closing = self._garbled = False
        self._stranger = ""
        self._greeted.clear()
        loop = asyncio.get_running_loop()
        variables, descriptors = terminal.inherited()
        try:
            self._transport, streams = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(_CHUNK, loop),
                *self.command,
                start_new_session=True,  # a Ctrl-C in the terminal is the client's to handle
                pass_fds=descriptors,
                env={**_HUGE_PAGES, **os.environ, **folders(), **variables},
            )
        except OSError as error:
            raise EngineError(f"The engine process could not be started: {error}.", "Run `outrider doctor`.") from error
        _widen(self._transport)
        self._process = Process(self._transport, streams, loop)
        self._tasks = [asyncio.create_task(self._read(self._process)), asyncio.create_task(self._listen(self._process))]

    async def greeted(self) -> protocol.Hello:
        """Wait for the engine's first frame. Raises EngineDied if the process ends before it."""
        waiter = asyncio.ensure_future(self._greeted.wait())
        reader = self._tasks[0]
        await asyncio.wait({waiter, reader}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self.hello is None or not self._greeted.is_set():
            raise EngineDied(self._why(), _MISMATCH if self._stranger else "Run `outrider doctor`.")
        return self.hello

    def send(self, request: protocol.Request) -> None:
        """Send without waiting for an answer. Raises EngineDied if there is no process."""
        if not self.alive or self._process is None or self._process.stdin is None:
            raise EngineDied(self._why(), "It is started again with the next message.")
        self._process.stdin.write(protocol.pack(request))

    async def stream(self, request: protocol.Request) -> AsyncGenerator[protocol.Event, None]:
        """Send and yield every event up to the last one (`Done` or `Result`).

        Raises EngineError for `Failed` and EngineDied when the process ends first. Leaving the loop early cancels the
        request: at once inside `contextlib.aclosing`, else when the generator is collected.
        """
        queue: asyncio.Queue[protocol.Event | EngineError] = asyncio.Queue()
        self._open[request.id] = queue
        finished = False
        try:
            if not self.alive and self._tasks:
                await asyncio.wait({self._tasks[0]})  # just ended: its last words say why
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
        async with contextlib.aclosing(self.stream(request)) as events:
            async for event in events:
                if isinstance(event, protocol.Done):
                    answer = event.report
                elif isinstance(event, protocol.Result):
                    answer = event.data
                elif on_event:
                    on_event(event)
        return answer

    def kill(self) -> None:
        """End a process that answers no more; it is a death like any other."""
        if self._process is not None:
            _send(self._process, signal.SIGKILL)

    async def close(self, patience: float = 2.0) -> None:
        """End the process: ask, then terminate, then kill."""
        async with self._door:  # who starts it comes first
            self._closing = True
            process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(EngineError, ConnectionError):
                self.send(protocol.Quit(id=self.number()))
            for stop in (None, signal.SIGTERM, signal.SIGKILL):
                if stop is not None:
                    _send(process, stop)
                if await _ended(process, patience):
                    break
        async with self._door:
            if process is self._process:
                await self._end_tasks()

    async def _end_tasks(self) -> None:
        untold = any(not task.done() for task in self._tasks[:1])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if untold:
            self._bury()
        if self._transport is not None:
            if self._process is not None:
                await _ended(
                    self._process, _LAST_BREATH
                )  # closing one that has not ended would take its end from the loop
            self._transport.close()  # its pipes too, should a child of the engine still hold them
            self._transport = None

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        unpacker = protocol.Unpacker(protocol.AnyEvent)
        try:
            while data := await process.stdout.read(_CHUNK):
                self.traffic.received += len(data)
                for event in unpacker.feed(data):
                    self._route(event)
        except protocol.ProtocolError as error:
            self._words.append(str(error))
            self._garbled = True
            _send(process, signal.SIGKILL)
        if not await _ended(process, _LAST_BREATH):
            _send(process, signal.SIGKILL)
            await _ended(process, _LAST_BREATH)
        await asyncio.wait({self._tasks[1]}, timeout=0.2)  # its last words may still be on their way
        self._bury()

    def _route(self, event: protocol.AnyEvent) -> None:
        self.traffic.frames[type(event).__name__] += 1
        if isinstance(event, protocol.Hello):
            self._greet(event)
        if isinstance(event, protocol.Hello) or self._stranger:
            return
        number = event.request
        if number is None:
            if self.on_notice and isinstance(event, protocol.Notice):
                self.on_notice(event)
                return
            for queue in self._open.values():
                queue.put_nowait(event)
        elif number in self._open:
            if isinstance(event, protocol.Failed):
                kind = EngineDied if self._closing else EngineError
                self._open[number].put_nowait(kind(event.message, event.hint, usage=event.usage, trace=event.trace))
            else:
                self._open[number].put_nowait(event)

    def _greet(self, hello: protocol.Hello) -> None:
        """Go on with an engine that speaks this protocol; end any other, whose frames would mean something else."""
        self.hello = hello
        if hello.version == protocol.VERSION:
            self._greeted.set()
            return
        older = "engine" if hello.version < protocol.VERSION else "app"
        self._stranger = (
            f"The engine is Outrider {hello.outrider} and this app Outrider {version('outrider')}: they speak versions "
            f"{hello.version} and {protocol.VERSION} of the protocol. The {older} is too old."
        )
        self.kill()

    def _bury(self) -> None:
        why = self._why()
        for queue in self._open.values():
            hint = _MISMATCH if self._stranger else "It is started again with the next message."
            queue.put_nowait(EngineDied(why, hint))
        self._open.clear()
        if self.on_death and not self._closing:
            self.on_death(why)

    def _why(self) -> str:
        code = self._process.returncode if self._process else None
        if self._stranger:
            return self._stranger
        if code is None:
            return "The engine is not running."
        words = [line for line in self._words if line.strip()]
        if self._garbled:
            return f"The engine process sent something that is not a frame ({words[-1].strip()})."
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"The engine process {how}." + (f" Its last words: {words[-1].strip()}" if words and code > 0 else "")

    async def _listen(self, process: Process) -> None:
        """Keep what the engine prints: the newest lines in memory, all of it in the log file.

        Read in chunks, since a line may have any length.
        """
        assert process.stderr is not None
        rest = b""
        with _open_log() as file:
            while data := await process.stderr.read(_CHUNK):
                *lines, rest = (rest[-_CHUNK:] + data).splitlines(keepends=True) or [b""]
                if rest.endswith((b"\n", b"\r")):
                    lines, rest = [*lines, rest], b""
                self._words.extend(line.decode("utf-8", "replace").rstrip() for line in lines)
                file.write(data)
                file.flush()
                if self.echo:
                    sys.stderr.write(data.decode("utf-8", "replace"))
        if rest:
            self._words.append(rest.decode("utf-8", "replace"))


def _send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process that runs.

    Not `process.send_signal()`: that asks first whether the process has ended, and so takes its exit code away from the
    thread in which the event loop waits for it.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _ended(process: Process, patience: float) -> bool:
    """Whether the process ends within `patience` seconds.

    Not `process.wait()`: that also waits for pipes which a child of the engine may hold open.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while process.returncode is None and loop.time() < deadline:
        await asyncio.sleep(_LOOK)
    return process.returncode is not None


def _widen(transport: asyncio.SubprocessTransport) -> None:
    """Let a reply go on while this program is stopped: the pipe of the frames holds thousands of passes."""
    frames = transport.get_pipe_transport(1)
    with contextlib.suppress(
        ImportError, AttributeError, OSError, ValueError
    ):  # not on every system; it may have ended
        import fcntl

        if frames is not None:
            fcntl.fcntl(frames.get_extra_info("pipe"), fcntl.F_SETPIPE_SZ, _HELD)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _open_log() -> IO[bytes]:
    """The engine's log, begun anew once it has grown long. A folder that cannot be written only costs the log."""
    log = paths.engine_log()
    try:
        for folder in (paths.data_dir(), log.parent):  # the engine would make them for all to read
            files.make_folder(folder)
        long = log.exists() and log.stat().st_size > _LOG_LIMIT
        how = os.O_TRUNC if long else os.O_APPEND
        return open(os.open(log, os.O_WRONLY | os.O_CREAT | how, files.FILE), "ab")
    except OSError:
        return open(os.devnull, "wb")
