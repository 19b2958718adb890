"""What only a process of its own shows: imports, the way in and the way out."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

from chat_support import answer, loading

CHAT = """
import sys
from outrider.app.chat import ChatOptions, run_chat
command = (sys.executable, "-m", "outrider.app.scripted", sys.argv[1])
code = run_chat(ChatOptions(command=command))
assert "torch" not in sys.modules
print("code", code, "left cleanly")
"""


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter without a terminal."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def trace(folder: Path) -> Path:
    """A trace with one short answer."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, [*loading(), *answer("Hello there.\n")])) + "\n")
    return path


def test_package_loads_no_screen_library() -> None:
    program = "import sys, outrider.app.chat as c; c.ChatOptions(); print(sorted({'textual', 'torch', 'rich'} & {*sys.modules}))"
    assert python(program).stdout.strip() == "[]"


def test_whole_chat_loads_no_torch() -> None:
    program = (
        "import sys, outrider.app.chat.app, outrider.app.chat.reply, outrider.app.chat.help\n"
        "print(sorted({'torch', 'numpy', 'tokenizers', 'safetensors', 'jinja2', 'huggingface_hub'} & {*sys.modules}))"
    )
    assert python(program).stdout.strip() == "[]"


def test_first_paint_does_not_wait_for_markdown() -> None:
    program = "import sys, outrider.app.chat.app; print(sorted({'markdown_it', 'pygments'} & {*sys.modules}))"
    assert python(program).stdout.strip() == "[]"


def test_needs_a_terminal() -> None:
    program = "import sys; from outrider.app.chat import *; sys.exit(run_chat(ChatOptions()))"
    done = python(program)
    assert done.returncode == 2 and done.stdout == ""
    assert "outrider run" in done.stderr and done.stderr.count("\n") == 1


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, folder: Path, program: str = CHAT) -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, str(trace(folder))],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color", "OUTRIDER_HOME": str(folder / "home")},
        )
        os.close(inner)
        self.seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)

    def until(self, words: bytes, patience: float = 15.0) -> None:
        """Read until these bytes have come."""
        deadline = time.monotonic() + patience
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen[-3000:]
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 1 << 16)
                except OSError:
                    assert words in self.seen, self.seen[-3000:]

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.fd, keys)

    def press(self, keys: bytes, words: bytes) -> None:
        """Press until these bytes have come: readline hears a signal between its painting and its waiting with the next one."""
        for _ in range(14):
            self.type(keys)
            with suppress(AssertionError):
                return self.until(words, 1.0)
        self.until(words)

    def engine(self) -> int:
        """Process id of the engine, a child of the chat."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        deadline = time.monotonic() + 10
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return int(found[0])


def gone(pid: int, patience: float = 10.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_quit_leaves_the_terminal_clean_and_no_engine(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.until(b"ready")
        engine = terminal.engine()
        terminal.type(b"hi\r")
        terminal.until(b"prompt_lookup")
        terminal.type(b"\x11")
        terminal.until(b"code 0 left cleanly")
        assert terminal.process.wait(10) == 0
        assert b"\x1b[?25h" in terminal.seen  # the cursor
        assert terminal.seen.rindex(b"\x1b[?1049l") > terminal.seen.rindex(b"\x1b[?1049h")  # the main screen
        assert gone(engine)


def test_being_told_to_end_leaves_the_terminal_clean_too(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.until(b"ready")
        engine = terminal.engine()
        terminal.process.terminate()
        terminal.until(b"left cleanly")
        assert terminal.process.wait(10) == 0
        assert b"\x1b[?1049l" in terminal.seen and gone(engine)


def test_engine_does_not_outlive_a_killed_chat(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.until(b"ready")
        engine = terminal.engine()
        terminal.process.kill()
        assert gone(engine)


def test_prompt_is_there_soon(tmp_path: Path) -> None:
    measure = (
        "import resource\n"
        "from outrider.app.chat.screen import ChatScreen\n"
        "def painted(screen):\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    screen.app.exit()\n"
        "    screen.cost = used.ru_utime + used.ru_stime\n"
        "    print('cost', screen.cost, file=sys.__stdout__)\n"
        "ChatScreen._set_off = painted\n"
    )
    with Terminal(tmp_path, CHAT.replace("code = ", measure + "code = ")) as terminal:
        terminal.until(b"left cleanly")
    (cost,) = re.findall(rb"cost ([0-9.]+)", terminal.seen)
    assert float(cost) < 0.7
