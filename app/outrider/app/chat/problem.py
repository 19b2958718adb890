"""An error as it is shown: what happened, why, what to do next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from outrider.app.client import EngineDied, EngineError

_REASONS = re.compile(
    r"(?<=[.;:]) (?=[\w ()./-]+: )|(?<=;) "
)  # between the sources or drafters that an error goes through


class Offer(NamedTuple):
    """A letter on a card, the action that it runs, and its words."""

    letter: str
    action: str
    words: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An error for the transcript: what happened, what to do. With `offers` it is no error, and they are what can be done."""

    title: str
    text: str
    hint: str = ""
    details: str = ""  # for whoever copies it: a trace
    restart: bool = False  # whether a new engine would help
    reasons: tuple[str, ...] = ()
    """One below the other, where it has several."""
    offers: tuple[Offer, ...] = ()

    @classmethod
    def of(cls, title: str, error: EngineError, hint: str = "") -> Problem:
        """What the engine said, its reasons one by one; `hint` comes behind its own."""
        cause, *reasons = (part.rstrip(";") for part in _REASONS.split(error.message))
        hint = " ".join(filter(None, (error.hint, hint)))
        return cls(title, cause, hint, error.trace, isinstance(error, EngineDied), tuple(reasons))
