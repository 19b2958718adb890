"""The `ride` fixture; its helpers are in `chat_support`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from chat_support import Ride


@pytest.fixture
def ride(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractAsyncContextManager[Ride]]:
    """`async with ride(answers..., size=…) as chat:` runs a chat over a scripted engine, in a true-colour terminal."""
    from chat_support import riding

    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    for name in ("NO_COLOR", "COLORFGBG", "SSH_TTY", "TMUX", "STY", "VTE_VERSION", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    return partial(riding, tmp_path)
