"""The command line against the fake engine: in this process for what it prints, as a process of its own for signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from outrider.app import cli, client

HERE = Path(__file__).parent
SCRIPT = HERE / "outrider_with_fake.py"


class Outcome:
    """What one command line did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Engine:
    """A running engine process, watched from outside."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)

    def ends(self) -> bool:
        """Whether it ends within ten seconds."""
        with contextlib.closing(os.fdopen(self._file)) as file:
            ready, _, _ = select.select([file], [], [], 10)
        return bool(ready)


class Home:
    """A folder of its own for everything that Outrider keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """What the fake engine was asked, oldest first."""
        lines = (self.path / "requests").read_text().splitlines()
        return [request for line in lines if (request := json.loads(line))["type"] == kind]

    def engine(self) -> Engine:
        """The engine process that runs now."""
        return Engine(int((self.path / "pid").read_text()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    path = tmp_path / "home"
    monkeypatch.setenv("OUTRIDER_HOME", str(path))
    for name in ("OUTRIDER_DEBUG", "NO_COLOR", "FAKE_DOCTOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Home(path)


@pytest.fixture
def outrider(home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run one command line in this process, with `stdin` piped in."""

    def call(*words: str, stdin: str | bytes = b"") -> Outcome:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with monkeypatch.context() as patch:
            patch.setattr(client, "ENGINE", (sys.executable, str(HERE / "fake_engine.py")))
            patch.setattr(sys, "excepthook", sys.excepthook)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            patch.setenv("OUTRIDER_DEBUG", "")
            code = cli.main(list(words))
        out, err = capfd.readouterr()
        return Outcome(code, str(out), str(err))

    return call


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start one command line as a process; what is left of it afterwards is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def call(
        *words: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), *words]
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)
        running.append(process)
        return process

    yield call
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


class Screen:
    """A command line in a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self.master, self.seen = process, master, b""

    def read_until(self, wanted: bytes) -> bytes:
        """Everything that was shown up to and with `wanted`."""
        while wanted not in self.seen:
            data = os.read(self.master, 1 << 16)
            assert data, f"ended before {wanted!r} came: {self.seen!r}"
            self.seen += data
        return self.seen

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def finish(self) -> tuple[int, bytes]:
        """Exit code and everything that was shown."""
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the last one closed the terminal
                break
            if not data:
                break
            self.seen += data
        return self.process.wait(), self.seen


@pytest.fixture
def screen(start: Callable[..., subprocess.Popen[bytes]]) -> Iterator[Callable[..., Screen]]:
    """Start one command line in a terminal."""
    masters: list[int] = []

    def call(*words: str, **options: Any) -> Screen:
        master, slave = os.openpty()
        masters.append(master)
        streams = {"stdin": slave, "stdout": slave, "stderr": slave} | options
        process = start(*words, **streams)
        os.close(slave)
        return Screen(process, master)

    yield call
    for master in masters:
        os.close(master)
