"""What the engine of a chat is doing."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What the engine is doing, in the words of the status line."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    THINKING = "thinking…"
    WRITING = "writing"
    STOPPING = "stopping…"
    DIED = "engine died"
    FAILED = "no model"


BUSY = (State.THINKING, State.WRITING, State.STOPPING)
