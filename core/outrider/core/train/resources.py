"""Whether memory and disk will do, said with numbers before anything is begun."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from outrider.core.base.errors import ModelError
from outrider.core.library import memory

from .recipe import Labeller, Trainee
from .states import SPARE
from .teacher import Teacher

MOMENTS = 3 * 4  # bytes of a weight besides itself: its gradient and what AdamW knows of it, in fp32
SAVED = 3 * 4  # bytes of a weight in a checkpoint
FULL = (errno.ENOSPC, errno.EDQUOT)
DRAFTER = 2  # bytes of a weight in the file that comes out


class Size(NamedTuple):
    """Of a trainee."""

    weights: int  # that are trained
    states: int  # of the target, of each token
    labels: int  # that it wants kept of each token


def size(trainee: Trainee) -> Size:
    """How large a trainee is."""
    weights = sum(part.numel() for group in trainee.groups() for part in group.parts)
    return Size(weights, len(trainee.states), trainee.top if isinstance(trainee, Labeller) else 0)


def check(teacher: Teacher, size: Size, step_tokens: int) -> int:
    """Bytes of memory that training takes beside the model, at least. Raises ModelError if fewer are free."""
    rows = step_tokens + teacher.longest  # of a batch, with a prompt
    states = rows * size.states * teacher.info.width * teacher.dtype.itemsize
    saving = SAVED if teacher.device.type == "cpu" else 0
    needed = size.weights * (MOMENTS + saving) + 2 * states
    free = memory.free(str(teacher.device))
    if free is not None and needed > free:
        raise ModelError(
            f"Training {size.weights:,} weights takes {_gb(needed)} GB of memory beside the model, "
            f"and {_gb(free)} GB are free.",
            "Train less at once (--option), take a smaller model, or end other programs.",
        )
    return needed


def check_disk(folder: Path, tokens: int, teacher: Teacher, size: Size, *, cache: bool) -> int:
    """Bytes of disk that a run over texts of so many tokens takes, at most. Raises ModelError if fewer are free."""
    kept = tokens * (size.states * teacher.info.width * min(4, teacher.dtype.itemsize) + 8 * size.labels)
    cached = kept if cache else 0
    needed = cached + 8 * tokens + size.weights * (2 * SAVED + 2 * DRAFTER)
    free = shutil.disk_usage(folder).free - SPARE
    if needed > free:
        without = f", {_gb(cached)} GB of them with what the target computes" if cached else ""
        hint = "add --no-cache (slower), " if cached and needed - cached <= free else ""
        raise ModelError(
            f"This run may take {_gb(needed)} GB of disk{without}, and {_gb(max(0, free))} GB may be used in {folder}.",
            f"Make room, {hint}take fewer prompts (--answers N), or another folder (--out).",
        )
    return needed


def needs_text(memory_bytes: int, disk_bytes: int) -> str:
    """What a run takes, in a sentence."""
    return f"It takes {_gb(memory_bytes)} GB of memory beside the model, and at most {_gb(disk_bytes)} GB of disk while it runs."


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A disk that is full, or refuses, becomes an error that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        raise ModelError(
            f"{error.filename or folder} could not be written: {error.strerror or error}.",
            f"{'Make room' if full else 'Mend that'} and go on with --resume; what was done is kept.",
        ) from error


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f}" if nbytes >= 1e8 else f"{nbytes / 1e9:.3f}"


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many CPU threads meanwhile; None: as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
