"""How the screen is painted: here, over SSH, and as the settings ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.app.chat.terminal import profile, shows_no_screen
from outrider.app.config.schema import Look


@pytest.mark.parametrize(
    ("environ", "look", "fps", "tick", "still"),
    [
        ({}, Look(), 30, 1 / 30, False),
        ({"SSH_TTY": "/dev/pts/1"}, Look(), 15, 0.1, True),
        ({"SSH_CONNECTION": "a 1 b 22"}, Look(), 15, 0.1, True),
        ({"SSH_TTY": "x"}, Look(fps=5), 5, 0.2, True),
        ({"SSH_TTY": "x"}, Look(fps=60), 60, 0.1, True),
        ({}, Look(fps=60, reduced_motion=True), 60, 1 / 60, True),
    ],
)
def test_profiles(environ: dict[str, str], look: Look, fps: int, tick: float, still: bool) -> None:
    found = profile(look, environ)
    assert (found.fps, found.tick, found.still) == (fps, pytest.approx(tick), still)
    assert found.sparkline is not still and str(fps) in found.words
    assert ("over SSH" in found.words) is bool(environ)


def test_the_screen_library_is_told_what_it_does_not_know_already() -> None:
    environ = {"SSH_TTY": "x", "TEXTUAL_FPS": "3"}
    profile(Look(), environ).prepare(environ)
    assert environ == {"SSH_TTY": "x", "TEXTUAL_FPS": "3", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
    environ = {}
    profile(Look(), environ).prepare(environ)
    assert environ == {}
    profile(Look(fps=40), environ).prepare(environ, pinned=True)
    assert environ == {"TEXTUAL_FPS": "40"}


def test_a_dumb_terminal_shows_no_screen() -> None:
    assert shows_no_screen({"TERM": "dumb"}) and not shows_no_screen({"TERM": "xterm"})


def test_the_profile_is_set_before_the_screen_library_is_there(tmp_path: Path) -> None:
    program = (
        "import sys; from outrider.app.chat import ChatOptions, _prepare; assert 'textual' not in sys.modules\n"
        "_prepare(ChatOptions()); assert 'textual' not in sys.modules\n"
        "from textual import constants as c; print(c.MAX_FPS, c.SMOOTH_SCROLL, c.TEXTUAL_ANIMATIONS)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TEXTUAL_", "OUTRIDER_"))}
    environ |= {"SSH_TTY": "/dev/pts/9", "OUTRIDER_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)
    assert done.stdout == "15 False none\n", done.stderr
