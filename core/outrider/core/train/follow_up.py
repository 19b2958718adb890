"""Training on from a drafter, or from the answers of another run: they are copied, so that nothing depends on their source."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from outrider.core.base.errors import UsageError
from outrider.core.base.protocol import TrainOrder, TrainPrompt

from . import plan as plans
from .plan import Plan
from .recipe import Continuing, Trainee

FOLDER = "begun"  # of a run: the drafter that it goes on from
PROMPTS, DATA = "prompts.json", "answers.jsonl"  # of any run


def keep(order: TrainOrder, run: Path) -> None:
    """Copy the drafter that `order` goes on from, if it names one. Raises UsageError if there is none."""
    if order.continue_from is None:
        return
    source = Path(order.continue_from)
    if not source.is_dir():
        raise UsageError(f"{source} is no folder of a drafter.", "Name the folder that holds its config and weights.")
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    shutil.copytree(source, run / FOLDER)


def begin(trainee: Trainee, order: TrainOrder, run: Path) -> Trainee:
    """The trainee, with the weights of the drafter that it goes on from. Raises UsageError, ModelError, BrokenFileError."""
    if order.continue_from is None:
        return trainee
    if not isinstance(trainee, Continuing):
        raise UsageError(
            f"With these options {order.method} cannot go on from a drafter.", "Leave --continue-from out."
        )
    trainee.load(run / FOLDER)
    return trainee


def prompts(order: TrainOrder) -> list[TrainPrompt]:
    """What the run was asked whose answers `order` takes. Raises UsageError if there are none."""
    other = _other(order)
    if other.order.text is not None:
        raise UsageError(f"The run in {order.answers_of} learns from a text.", f"Give --text {other.order.text}.")
    return msgspec.json.decode((Path(order.answers_of or "") / PROMPTS).read_bytes(), type=list[TrainPrompt])


def take(plan: Plan, run: Path) -> None:
    """Take the answers of another run, if the order names one; what it lacks is answered in its manner.

    Raises UsageError if another model gave them.
    """
    if plan.order.answers_of is None:
        return
    other, source = _other(plan.order), Path(plan.order.answers_of)
    if other.target != plan.target:
        raise UsageError(
            f"The answers in {source} are another model's.", "Name a run of this model, or leave --answers-of out."
        )
    plan.manner = other.manner
    if plan.order.answers is None:
        plan.prompts = min(plan.prompts, other.prompts)
    if (source / DATA).exists():
        shutil.copyfile(source / DATA, run / DATA)


def _other(order: TrainOrder) -> Plan:
    plan = plans.read(Path(order.answers_of or ""))
    if plan is None:
        raise UsageError(f"There is no run in {order.answers_of}.", "`outrider train runs` lists them.")
    return plan
