"""The runs of `outrider train` that are kept: their folders, and how far each is. Reads files alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from outrider.app import render
from outrider.core.base import paths
from outrider.core.base.protocol import ModelChoice, TrainOrder

LAST = "last"


class _Schedule(msgspec.Struct):
    steps: int


class _Plan(msgspec.Struct):
    order: TrainOrder
    model: ModelChoice
    schedule: _Schedule | None = None


class _Measured(msgspec.Struct):
    tokens_per_pass: float


class _Result(msgspec.Struct):
    measured: _Measured | None = None


class Run(msgspec.Struct, kw_only=True):
    """A run as its folder tells it."""

    name: str
    folder: str
    method: str
    model: str
    changed: float  # seconds since 1970
    done: bool
    state: str
    tokens_per_pass: float | None = None


def home() -> Path:
    """Where runs are kept unless `--out` says otherwise."""
    return paths.data_dir() / "training"


def fresh(method: str, model: str) -> Path:
    """A folder for a new run."""
    stem = render.printable(Path(model).stem or model).replace("/", "-").replace(" ", "-")
    number, place = 1, home() / f"{stem}-{method}"
    while place.exists():
        number += 1
        place = place.with_name(f"{stem}-{method}-{number}")
    return place


def kept() -> list[Run]:
    """All runs in the data folder, the one last worked on first."""
    return sorted(_found(), key=lambda run: run.changed, reverse=True)


def named(word: str) -> Path:
    """The folder of a run: a path, a name of `outrider train runs`, or `last`. Raises WrongUsage."""
    if word == LAST:
        runs = kept()
        if not runs:
            raise render.WrongUsage("There is no run yet.", "`outrider train METHOD` begins one.")
        return Path(runs[0].folder)
    for place in (Path(word).absolute(), home() / word):
        if (place / "plan.json").exists():
            return place
    raise render.WrongUsage(f"There is no run {word}.", "`outrider train runs` lists them; a folder will do as well.")


def stopped(method: str) -> Path:
    """The run of a method that was worked on last and is not done. Raises WrongUsage."""
    runs = [run for run in kept() if run.method == method]
    left = next((run for run in runs if not run.done), None)
    if left is None:
        why = f"All runs of {method} are done." if runs else f"There is no run of {method}."
        raise render.WrongUsage(why, "Leave --resume out to begin one; `outrider train runs` lists what is there.")
    return Path(left.folder)


def _found() -> Iterator[Run]:
    try:
        folders = [one for one in home().iterdir() if one.is_dir()]
    except OSError:
        return
    for folder in folders:
        run = _read(folder)
        if run is not None:
            yield run


def _read(folder: Path) -> Run | None:
    try:
        plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=_Plan)
        changed = max(one.stat().st_mtime for one in folder.iterdir())
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    result = _result(folder)
    return Run(
        name=folder.name,
        folder=str(folder),
        method=plan.order.method,
        model=plan.model.model,
        changed=changed,
        done=result is not None,
        state="done" if result is not None else _state(folder, plan),
        tokens_per_pass=result.measured.tokens_per_pass if result is not None and result.measured is not None else None,
    )


def _result(folder: Path) -> _Result | None:
    try:
        return msgspec.json.decode((folder / "result.json").read_bytes(), type=_Result)
    except (OSError, msgspec.DecodeError):
        return None


def _state(folder: Path, plan: _Plan) -> str:
    if plan.schedule is None:
        return "stopped while answering"
    try:
        steps = (folder / "log.jsonl").read_bytes().count(b"\n")
    except OSError:
        return "stopped before training"
    return f"stopped at step {steps:,} of {plan.schedule.steps:,}"
