"""A scripted engine inside the program under test: what a process of its own costs is most of a small test."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.app.client import EngineClient, EngineDied
from outrider.app.scripted import ScriptedEngine, read_trace
from outrider.core.base import protocol


class InsideClient(EngineClient):
    """Frames go through the same packing and the same routing as with a process, but no pipe."""

    def __init__(self, trace: Path, speed: float, command: Any, **told: Any) -> None:
        super().__init__(command, **told)
        self._script, self._speed = trace, speed
        self._engine: ScriptedEngine | None = None
        self._ended_by = ""
        self._holds: Callable[[protocol.Event], bool] | None = None
        self._held: list[protocol.AnyEvent] = []

    @classmethod
    def over(
        cls, trace: Path, speed: float, holds: Callable[[protocol.Event], bool] | None
    ) -> Callable[..., InsideClient]:
        """What takes the place of `EngineClient` in the session; holds back from the first event that `holds`."""

        def make(command: Any, **told: Any) -> InsideClient:
            client = cls(trace, speed, command, **told)
            client._holds = holds
            return client

        return make

    def release(self) -> None:
        """Let come what was held back, and all that follows."""
        held, self._held, self._holds = self._held, [], None
        for event in held:
            self._route(event)

    def _arrive(self, event: protocol.AnyEvent) -> None:
        if self._holds is not None and (self._held or self._holds(event)):
            self._held.append(event)
        else:
            self._route(event)

    @property
    def alive(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    async def start(self) -> None:
        """Begin with the first answer."""
        if self._engine is None:
            events = protocol.Unpacker(protocol.AnyEvent)

            def arrive(event: protocol.Event) -> None:
                for each in events.feed(protocol.pack(event)):
                    self._arrive(each)

            self._engine = ScriptedEngine(read_trace(self._script), self._speed, arrive)
            self._engine.greet()

    def send(self, request: protocol.Request) -> None:
        """Hand it over as it would come out of a pipe."""
        if self._engine is None:
            raise EngineDied(self._ended_by or "The engine is not running.", "It is started again.")
        for each in protocol.Unpacker(protocol.AnyRequest).feed(protocol.pack(request)):
            self._engine.take(each)

    def kill(self) -> None:
        """Die as a process does."""
        if self._engine is not None:
            self._engine.end()
            self._engine = None
            self._ended_by = f"The engine process was killed by {signal.SIGKILL.name}."
            self._bury()

    def _why(self) -> str:
        return self._ended_by

    async def close(self, patience: float = 2.0) -> None:
        """End without a word."""
        self._closing = True
        if self._engine is not None:
            self._engine.end()
            self._engine = None
