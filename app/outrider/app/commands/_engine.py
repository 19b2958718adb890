"""One engine process for one command: started, watched for signals, and always taken down again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from outrider.app import client, render
from outrider.app.progress import ProgressLine
from outrider.core.base import paths, protocol

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 2.0  # seconds that a cancelled answer, or the engine process, has to come to its end
_HURRY = 0.3  # the same for the engine process when there is nothing left to wait for


class Session:
    """What a command has of the engine while it runs."""

    def __init__(self) -> None:
        self.client = client.EngineClient(client.ENGINE)
        self.progress = ProgressLine()
        self.stopped = 0
        """The signal that came, 0 if none."""
        self.patience = _PATIENCE
        """Seconds that a cancelled request has to come to its end."""
        self._answering: int | None = None

    def cancel_first(self, request: int, patience: float = _PATIENCE) -> None:
        """From now on a first Ctrl-C cancels this request, so that its last event still comes."""
        self._answering, self.patience = request, patience

    def wind_up(self) -> bool:
        """Cancel the request that was named by `cancel_first`; whether there was one."""
        if self._answering is None:
            return False
        with contextlib.suppress(client.EngineError):
            self.client.send(protocol.Cancel(id=self.client.number(), request=self._answering))
        return True

    async def ask(self, request: protocol.Request) -> Any:
        """Send a request, show its progress and notices, return what it results in."""
        answer = await self.client.ask(request, self.show)
        self.progress.clear()
        return answer

    def starting(self) -> None:
        """Say that the engine starts, where that takes long enough to be wondered at."""
        self.progress.update(protocol.Progress(request=0, phase="engine"))

    def show(self, event: protocol.Event) -> None:
        """Progress and notices of a request, for the person who waits."""
        if isinstance(event, protocol.Progress):
            self.progress.update(event)
        elif isinstance(event, protocol.Notice):
            self.progress.clear()
            render.say(f"{'Warning' if event.level == 'warning' else 'Note'}: {event.text}")


def with_engine(work: Callable[[Session], Awaitable[T]]) -> T:
    """Run `work` against a fresh engine process. Failures of the engine become `render.Failure`, signals exit codes."""
    session = Session()
    try:
        return asyncio.run(_run(session, work))
    except client.EngineDied as error:
        hint = f"Run it again; if it happens again, `outrider doctor` and {paths.engine_log()} may say why."
        raise render.Failure(error.message, hint) from error
    except client.EngineError as error:
        if error.trace and os.environ.get("OUTRIDER_DEBUG"):
            render.say(error.trace)
        raise render.Failure(error.message, error.hint, 2 if error.usage else 1) from error


async def _run(session: Session, work: Callable[[Session], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def stop(number: int) -> None:
        if session.stopped:  # asked twice: at once
            if session.client.pid and session.client.alive:
                os.kill(session.client.pid, signal.SIGKILL)
            os._exit(128 + number)
        session.stopped = number
        if number == signal.SIGINT and session.wind_up():
            loop.call_later(session.patience, task.cancel)
        else:
            task.cancel()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs stay as they are
            loop.add_signal_handler(number, stop, number)
    patience = _HURRY
    try:
        await session.client.start()
        result: Any = await work(session)
        patience = _PATIENCE
    except (asyncio.CancelledError, client.EngineError, BrokenPipeError):
        # a Ctrl-C also ends whoever reads our output, and a request that was stopped may say that it failed
        if not session.stopped:
            raise
        result = None
    finally:
        session.progress.clear()
        await session.client.close(patience)
    if session.stopped:
        raise click.exceptions.Exit(128 + session.stopped)
    return result
