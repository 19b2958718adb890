"""The plan of a run: what it learns from and in which steps. Made once, kept in the run's folder, never made again.

With a budget of time the speeds of this machine are measured first, and the most data is taken that all stages can work through
in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import ModelChoice, TrainOrder, TrainPrompt

from .answers import TURNS, Kept, Manner
from .loop import Schedule

FILE = "plan.json"
VERSION = 1
HELD = 20  # one prompt in so many is not trained on, but used to measure
EPOCHS = 3.0  # over answers that were made for this run
MOST_EPOCHS = 10.0  # over data that is there
SHORTEST = 0.1
LEAST = 2 * HELD  # prompts that are taken, however little time there is
OVERHEAD = 0.9  # of a budget that is planned with


class Plan(msgspec.Struct, kw_only=True):
    """All that a run depends on. `schedule` is settled when the data is there."""

    version: int = VERSION
    order: TrainOrder
    model: ModelChoice
    target: str  # fingerprint of its weights
    source: str  # fingerprint of prompts or text
    prompts: int  # so many of them, or pieces of the text, from the first; 0: all
    epochs: float
    manner: Manner
    threads: int | None = None  # sums depend on them
    settled: bool = True  # False: how fast this machine is was not measured yet
    settings: dict[str, object] = {}  # of the method, as they were understood
    looked: int = 12  # held-out texts of a measurement while it trains
    measured: int = 48  # and of the last one
    schedule: Schedule | None = None

    def taken(self, texts: Sequence[Kept]) -> list[Kept]:
        """Those that are learnt from."""
        return [text for text in texts if not self.prompts or text.number // TURNS < self.prompts]


class Speeds(msgspec.Struct):
    """Tokens of answers for each second, by stage."""

    answers: float
    states: float
    training: float

    def tokens(self, seconds: float, epochs: float, there: int) -> float:
        """Tokens of answers that all stages together get through, if `there` need not be made any more."""
        use = 1 / self.states + epochs / self.training
        if there * use >= seconds:
            return seconds / use
        return (seconds + there / self.answers) / (use + 1 / self.answers)


class Data(NamedTuple):
    """What there is to learn from. Items are prompts, or pieces of a text."""

    items: int  # at most
    answered: int  # of them
    tokens: int  # of those


def divide(plan: Plan, speeds: Speeds, seconds: float, data: Data) -> None:
    """Settle how many items are taken and how often they are gone through, so that all of it takes so many seconds."""
    seconds *= OVERHEAD
    each = max(1.0, data.tokens / max(1, data.answered))
    wanted = speeds.tokens(seconds, plan.order.epochs or EPOCHS, data.tokens) / each
    plan.prompts = max(min(data.items, LEAST), min(data.items, int(wanted)))
    total = plan.prompts * each
    left = seconds - max(0.0, total - data.tokens) / speeds.answers - total / speeds.states
    if plan.order.epochs is None:
        plan.epochs = min(MOST_EPOCHS, max(SHORTEST, left * speeds.training / total))


def read(folder: Path) -> Plan | None:
    """The plan of a run that was begun; None where there is none. Raises UsageError if it is none of this version."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is not a plan: {error}", "Take another folder for a new run.") from error
    if plan.version != VERSION:
        raise UsageError(f"{path} was written by another version.", "Begin a new run in another folder.")
    return plan


def write(folder: Path, plan: Plan) -> None:
    """Keep it; whole or not at all. Raises ModelError if it cannot be written."""
    path = folder / FILE
    unready = path.with_name(f"{FILE}.part")
    try:
        unready.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))
        os.replace(unready, path)
    except OSError as error:
        raise ModelError(
            f"The plan could not be written to {folder}: {error.strerror or error}.",
            "Make room, or take another --out.",
        ) from error


def of_texts(texts: Sequence[str]) -> str:
    """Fingerprint of what is learnt from."""
    return hashlib.sha256(msgspec.json.encode(list(texts))).hexdigest()[:32]


def of_prompts(prompts: Sequence[TrainPrompt]) -> str:
    """Fingerprint of what is answered."""
    return hashlib.sha256(msgspec.json.encode(list(prompts))).hexdigest()[:32]
