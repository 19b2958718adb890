"""The process in which chat templates run, seen from outside."""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import subprocess
import sys
import threading
from typing import Any

from outrider.core.base.errors import ModelError

RAW = "Use `outrider run --raw`, which needs no template."
_PATIENCE = 1.0  # seconds that the process gets to end by itself


class Sandbox:
    """A process for templates: started when it is first asked, again when a template ended it.

    `seconds`: processor time that one request may take.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """The answer to a request, both as `jinja` describes them. Raises ModelError if the template ended the process."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            answer, ended = b"", None
            try:
                answer = self._exchange(line)
            finally:
                if not answer.endswith(b"\n"):
                    ended = self._end()
        if ended is None:
            return json.loads(answer)
        overran = sys.platform != "win32" and ended == -signal.SIGPROF
        why = f"it does not end within {self._seconds:g} seconds" if overran else f"it ended its process with {ended}"
        raise ModelError(f"The chat template of this model fails: {why}.", RAW)

    def close(self) -> None:
        """Let the process go; the next request starts another."""
        with self._lock:
            self._end()

    def _exchange(self, line: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = [sys.executable, "-P", "-m", "outrider.core.text.jinja", str(self._seconds)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the terminal is not meant for it
            )
        except OSError as error:
            raise ModelError(f"No process for chat templates can be started: {error.strerror}.", RAW) from error
        return self._process

    def _end(self) -> int:
        """Exit code of the process, which is gone then."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # of a request that it never read
            process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


SANDBOX = Sandbox()
