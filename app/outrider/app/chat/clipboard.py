"""Text for the clipboard: through the terminal, else a program of the system, else a file. Knows no widgets.

The terminal's way (OSC 52) also works over SSH, where no program reaches the user's clipboard, but no terminal says
whether it took the text. So it is taken where the terminal is not known to ignore it and the text is not too long for it.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.app import files
from outrider.core.base import paths

_MOST = 100_000  # characters of base64 that terminals take
_CHUNK = 512  # characters of one passed-through sequence that GNU screen takes
_PATIENCE = 3.0  # seconds
_DEAF = ("Apple_Terminal",)  # of TERM_PROGRAM
_TOOLS = (  # what has to be set, and the program with its arguments
    ("TMUX", ("tmux", "load-buffer", "-w", "-")),  # as it comes, tmux takes no OSC 52 from programs
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
    ("", ("clip.exe",)),
)


@dataclass(frozen=True, slots=True)
class Copied:
    """How much went which way. `where`: `terminal`, the name of a program, or a file."""

    characters: int
    where: str
    problem: str = ""

    def told(self, what: str = "") -> str:
        """`Copied 312 characters (terminal)`, with what was copied before the amount."""
        if self.problem:
            return f"Not copied: {self.problem}"
        amount = f"{self.characters:,} character{'' if self.characters == 1 else 's'}"
        return f"Copied {what + ', ' if what else ''}{amount} ({self.where})"


def sequences(text: str, env: Mapping[str, str]) -> list[str]:
    """What to write to the terminal, wrapped where a multiplexer would keep it to itself; empty where it would be ignored."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if len(encoded) > _MOST or program in _DEAF or term in ("dumb", "linux", ""):
        return []
    plain = f"\x1b]52;c;{encoded}\x07"
    if "TMUX" in env or term.startswith("tmux"):
        return [plain, "\x1bPtmux;" + plain.replace("\x1b", "\x1b\x1b") + "\x1b\\"]
    if "STY" in env or term.startswith("screen"):
        parts = [plain[at : at + _CHUNK] for at in range(0, len(plain), _CHUNK)]
        return ["".join(f"\x1bP{part}\x1b\\" for part in parts)]
    return [plain]


def doubtful(env: Mapping[str, str]) -> bool:
    """Whether the terminal may ignore what `sequences` gives, so that a program is better."""
    return bool(env.get("VTE_VERSION") or env.get("TMUX"))


def tool(env: Mapping[str, str], find: Callable[[str], str | None] = shutil.which) -> tuple[str, ...] | None:
    """The program that takes text for the clipboard here, None if there is none."""
    for variable, command in _TOOLS:
        if (not variable or env.get(variable)) and find(command[0]):
            return command
    return None


def copy(
    text: str,
    write: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    find: Callable[[str], str | None] = shutil.which,
) -> Copied:
    """Copy `text`; `write` sends characters to the terminal. Takes the first way that there is; may take seconds."""
    env = os.environ if env is None else env
    made = sequences(text, env)
    if made and "TMUX" in env:  # the terminal around it may take it too
        write("".join(made))
    if not made or doubtful(env):
        command = tool(env, find)
        if command is not None and _run(command, text):
            return Copied(len(text), command[0])
    for sequence in made:
        write(sequence)
    if made:
        return Copied(len(text), "terminal")
    path = paths.state_dir() / "clipboard.txt"
    try:
        files.make_folder(path.parent)
        files.write(path, text.encode("utf-8", "replace"))
    except OSError as error:
        return Copied(0, "", f"{files.reason(error)} ({path})")
    return Copied(len(text), _short(path))


def _run(command: tuple[str, ...], text: str) -> bool:
    encoding = "utf-16le" if command[0] == "clip.exe" else "utf-8"
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=text.encode(encoding, "replace"), stdout=quiet, stderr=quiet, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _short(path: Path) -> str:
    home = str(Path.home())
    return str(path).replace(home, "~", 1) if sys.platform != "win32" else str(path)
