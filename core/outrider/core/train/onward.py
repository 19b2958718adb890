"""Going on from a drafter that is there: it is copied into the run, so that nothing hangs on where it came from."""

from __future__ import annotations

import shutil
from pathlib import Path

from outrider.core.errors import UsageError
from outrider.core.protocol import TrainOrder

from .recipe import Continuing, Trainee

FOLDER = "begun"  # of a run: the drafter that it goes on from


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
