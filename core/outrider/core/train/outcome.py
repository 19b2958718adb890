"""What becomes of a trained drafter: its card, its place where the model finds it, the whole container for others."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from outrider.core.base.model_info import ModelInfo
from outrider.core.library import discovery, drafter_card
from outrider.core.library.drafter_card import Card, Measured

from .plan import Plan

RIVALS = ("trained", "beside", "shipped")  # places from where a drafter is used by itself


class Trained(msgspec.Struct, kw_only=True):
    """What a run came to."""

    method: str
    folder: str
    drafter: str  # its files
    texts: int
    tokens: int  # of answers
    steps: int
    loss: float | None
    parameters: int
    measured: Measured | None  # None: this method's drafts need more of the target than its states
    place: str  # where the model finds it; "": it was not put there
    rival: str  # the drafter that it was compared with, "" if there was none
    rival_measured: Measured | None  # on the same texts
    before: Measured | None = None  # the drafter that it went on from, on the same texts
    model: bool = False  # the target learnt as well: what came out is a model of its own
    seconds: dict[str, float]  # by stage, of all sittings


def card(plan: Plan, info: ModelInfo, facts: tuple[int, int, int], hours: float, measured: Measured | None) -> Card:
    """The card of what a run gave. `facts`: texts, tokens that were learnt from, weights."""
    texts, tokens, parameters = facts
    assert plan.schedule is not None
    return Card(
        method=plan.order.method,
        model=drafter_card.title(Path(info.path)),
        target=plan.target,
        data=_data(plan),
        texts=texts,
        tokens=tokens,
        steps=plan.schedule.steps,
        parameters=parameters,
        seed=plan.schedule.seed,
        hours=round(hours, 2),
        command=command(plan),
        outrider=version("outrider"),
        day=time.strftime("%Y-%m-%d"),
        settings=plan.settings,
        measured=measured,
    )


def command(plan: Plan) -> str:
    """What a person would type to have it again, without places of this machine."""
    order, manner = plan.order, plan.manner
    model = plan.model.model
    words = ["outrider", "train", order.method, "--model", Path(model).name if os.sep in model else model]
    if order.text is not None:
        words += ["--text", Path(order.text).name]
    else:
        words += ["--answers", str(plan.prompts), "--answer-tokens", str(manner.most)]
        words += ["--answer-temperature", f"{manner.temperature:g}"]
    words += ["--epochs", f"{plan.epochs:.3g}", "--seed", str(order.seed)]
    words += ["--rate", f"{order.rate:g}"] if order.rate is not None else []
    words += ["--continue-from", Path(order.continue_from).name] if order.continue_from is not None else []
    words += ["--answers-of", Path(order.answers_of).name] if order.answers_of is not None else []
    for name, value in order.options.items():
        words += ["--option", f"{name}={value}"]
    return shlex.join(words)


def settle(
    folder: Path, info: ModelInfo, card: Card, measure: Callable[[Path], Measured | None]
) -> tuple[Path | None, str, Measured | None]:
    """Put the drafter in `folder` where the model finds it, unless one that is found already is better on the same texts.

    `measure` measures a drafter. Returns its place, None if it was not put there; the place of the one that it was compared with,
    and how good that is.
    """
    path = Path(info.path)
    rows = discovery.near(info)
    rival = next((row for row in rows if row.name == card.method and row.where in RIVALS and row.weights), None)
    theirs = measure(Path(rival.weights)) if rival is not None and rival.weights else None
    known = (rival.weights or "") if rival is not None else ""
    if theirs is not None and (card.measured is None or theirs.tokens_per_pass > card.measured.tokens_per_pass):
        return None, known, theirs
    place = drafter_card.place(path, card.method, card.target)
    put(folder, place)
    return place, known, theirs


def put(folder: Path, place: Path) -> None:
    """Copy a drafter; the place holds the old one or the new one, whole. Raises OSError."""
    fresh, old = place.with_name(f".{place.name}.part"), place.with_name(f".{place.name}.old")
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, fresh)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _data(plan: Plan) -> str:
    if plan.order.text is not None:
        return f"{Path(plan.order.text).name} (texts {plan.source})"
    manner = plan.manner
    return (
        f"the model's own answers to {plan.prompts:,} prompts ({plan.source}), temperature {manner.temperature:g}, "
        f"{manner.greedy:.0%} of them greedy"
    )
