"""The engine process from outside: a client that blocks, and plugins that only that process can import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from outrider.core.base import protocol
from outrider.core.base.protocol import Done, Failed, Result


class Client:
    """A blocking client for tests."""

    def __init__(self, home: Path, **environment: str) -> None:
        path = os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "OUTRIDER_HOME": str(home), "PYTHONPATH": path, **environment}
        self.log = home / "stderr"
        command = [sys.executable, "-m", "outrider.core.service"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env)
        self.unpacker = protocol.Unpacker(protocol.AnyEvent)
        self.waiting: list[protocol.Event] = []
        self.hello = self.next()

    def send(self, request: protocol.Request) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(protocol.pack(request))
        self.process.stdin.flush()

    def next(self) -> protocol.Event:
        assert self.process.stdout is not None
        while not self.waiting:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the engine closed its pipe"
            self.waiting += self.unpacker.feed(data)
        return self.waiting.pop(0)

    def until_end(self, number: int) -> list[protocol.Event]:
        events = []
        while True:
            event = self.next()
            events.append(event)
            if isinstance(event, Done | Result | Failed) and event.request == number:
                return events

    def ask(self, request: protocol.Request) -> protocol.Event:
        self.send(request)
        return self.until_end(request.id)[-1]

    def close(self) -> tuple[int, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code, self.words

    @property
    def words(self) -> str:
        """All that it has written to stderr."""
        return self.log.read_text("utf-8")


def plugin(home: Path, body: str, name: str = "probe") -> None:
    """A distribution with one drafter, importable by the engine process only."""
    (home / f"{name}_plugin.py").write_text(textwrap.dedent(body))
    info = home / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[outrider.drafters]\n{name} = {name}_plugin:Probe\n")
