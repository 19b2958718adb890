"""The chat in the terminal. Importing this loads no screen library; `run_chat` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.app.config import Asked
from outrider.core.base.protocol import DrafterChoice, ModelChoice, Rule, Sampling


def _engine() -> Sequence[str]:
    from outrider.app.client import ENGINE

    return ENGINE


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What the chat begins with; `command` starts the engine process."""

    model: ModelChoice = field(default_factory=ModelChoice)
    drafter: DrafterChoice = field(default_factory=DrafterChoice)
    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    rule: Rule | str = "match"
    think: bool | None = None  # None = the model's own way
    resume: str = ""  # a chat from the store that goes on
    notice: str = ""  # what is to be said of that choice
    private: bool = False  # nothing is saved
    welcome: bool = False  # the very first start: what is here, and models to begin with
    profile_ui: str = ""  # a file for what each paint cost
    asked: Asked = field(default_factory=Asked)
    """What was typed on the command line, to find what holds when the settings change."""
    command: Sequence[str] = field(default_factory=_engine)


def run_chat(options: ChatOptions) -> int:
    """Chat until the user quits; returns the exit code. Needs a terminal on both ends."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("The chat needs a terminal; for pipes and scripts there is `outrider run`.\n")
        return 2
    _prepare(options)
    from outrider.app.chat.app import ChatApp

    return ChatApp(options).ride()


def _prepare(options: ChatOptions) -> None:
    """Set what the screen library reads while it is imported."""
    from outrider.app.chat.terminal import profile

    look = replace(options.asked, persona=None, sections=("look",)).settle()
    profile(look.config.look, os.environ).prepare(os.environ, pinned=look.get("look.fps") is not None)
