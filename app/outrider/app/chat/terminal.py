"""What the terminal is like: at what pace it is painted, and which keys it keeps for itself. Loads no screen library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.app.config.schema import DEFAULT, Look

FPS, REMOTE_FPS = 30, 15
REMOTE_TICK = 0.1  # seconds between paints of a reply where every paint travels over a network
_TELL_ENTER = ("kitty", "ghostty", "foot", "alacritty", "iterm", "wezterm", "rio")


@dataclass(frozen=True, slots=True)
class Profile:
    """How the screen is painted. `tick`: seconds between paints of a reply at best; `still`: nothing moves by itself."""

    remote: bool
    fps: int
    tick: float
    still: bool

    @property
    def sparkline(self) -> bool:
        """Whether figures may come as a picture that changes all the time."""
        return not self.still

    @property
    def words(self) -> str:
        """The same for people."""
        where = "over SSH" if self.remote else "local"
        motion = "nothing moves by itself" if self.still else "smooth scrolling"
        return f"{where}: at most {self.fps} paints a second, replies every {1000 * self.tick:.0f} ms, {motion}"

    def prepare(self, environ: MutableMapping[str, str], *, pinned: bool = False) -> None:
        """Tell the screen library, which reads this while it is imported. `pinned`: the pace was asked for."""
        if self.remote or pinned:
            environ.setdefault("TEXTUAL_FPS", str(self.fps))
        if self.still:
            environ.setdefault("TEXTUAL_ANIMATIONS", "none")
            environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")


def is_remote(environ: Mapping[str, str]) -> bool:
    """Whether what is painted travels over SSH."""
    return bool(environ.get("SSH_TTY") or environ.get("SSH_CONNECTION"))


def profile(look: Look, environ: Mapping[str, str]) -> Profile:
    """How the settings and the way to the terminal ask for the screen to be painted."""
    remote = is_remote(environ)
    fps = (REMOTE_FPS if remote else FPS) if look.fps == DEFAULT else int(look.fps)
    tick = max(1 / fps, REMOTE_TICK) if remote else 1 / fps
    return Profile(remote, fps, tick, still=remote or look.reduced_motion)


def shows_no_screen(environ: Mapping[str, str]) -> bool:
    """Whether the terminal can only print lines."""
    return environ.get("TERM") == "dumb"


def has_job_control() -> bool:
    """Whether a shell would notice that this program stops, and could let it go on: one above it, in the same session."""
    try:
        group, session = os.getpgrp(), os.getsid(0)
        process = os.getppid()
        while process > 1 and os.getsid(process) == session:
            if os.getpgid(process) != group:
                return True
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, AttributeError):  # not on every system
        return False
    return False


# ------------------------------------------------------------------------------------------------ keys


@dataclass(frozen=True, slots=True)
class Keeper:
    """A program between the keyboard and the chat, and the keys that it may keep, each with what for."""

    name: str
    keys: Mapping[str, str]
    alt: str = ""
    """Why keys with alt may not come, empty if they do."""

    def why(self, key: str) -> str:
        """Why this key may not arrive, empty if it does."""
        return self.keys.get(key) or (self.alt if key.startswith("alt+") else "")


_OPTION = "the option key types letters unless the terminal's settings make it Meta"
_VS_CODE = {
    "f1": "its commands",
    "f5": "starting to debug",
    "f6": "its next part",
    "f10": "a step while debugging",
    "f11": "full screen or a step",
    "ctrl+p": "opening files",
    "ctrl+f": "finding in the terminal",
}


def _keeper_names(environ: Mapping[str, str]) -> Iterable[Keeper]:
    program, term = environ.get("TERM_PROGRAM", ""), environ.get("TERM", "")
    if environ.get("TMUX"):
        yield Keeper("tmux", {"ctrl+b": "its prefix", "shift+enter": "it makes it enter"})
    if environ.get("STY"):
        yield Keeper("screen", {"ctrl+a": "its prefix", "shift+enter": "it makes it enter"})
    if program == "vscode":
        yield Keeper("VS Code", _VS_CODE)
    elif environ.get("TERMINAL_EMULATOR", "").startswith("JetBrains"):
        yield Keeper("JetBrains' terminal", {f"f{number}": "the editor's own use" for number in range(1, 13)})
    elif program in ("Apple_Terminal", "iTerm.app"):
        yield Keeper({"Apple_Terminal": "Terminal"}.get(program, "iTerm"), {}, _OPTION)
    elif environ.get("WT_SESSION"):
        panes = "moving between panes"
        yield Keeper(
            "Windows Terminal", {"alt+enter": "full screen", "alt+up": panes, "alt+down": panes, "f11": "full screen"}
        )
    elif environ.get("VTE_VERSION"):
        yield Keeper("a GNOME terminal", {"f1": "its help", "f10": "its menu", "f11": "full screen"})
    elif term == "linux":
        yield Keeper("the Linux console", {"shift+enter": "it is the same as enter"})


def keepers(environ: Mapping[str, str]) -> list[Keeper]:
    """The programs on the way that are known to keep keys, the innermost first."""
    return list(_keeper_names(environ))


def kept(keys: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the keys that may not arrive here, each with who keeps it and for what."""
    found: dict[str, str] = {}
    for keeper in keepers(environ):
        for key in keys:
            if why := keeper.why(key):
                found.setdefault(key, f"{keeper.name}: {why}")
    return found


def tells_shift_enter(environ: Mapping[str, Any]) -> bool:
    """Whether shift+enter is known to arrive as something else than enter."""
    if environ.get("TMUX") or environ.get("STY"):
        return False
    name = f"{environ.get('TERM', '')} {environ.get('TERM_PROGRAM', '')}".lower()
    return any(word in name for word in _TELL_ENTER)


def prompt_words(environ: Mapping[str, str]) -> str:
    """What an empty prompt says: how to make a new line is said only where shift+enter may not do it."""
    return "Write a message" if tells_shift_enter(environ) else "Write a message · ctrl+j makes a new line"
