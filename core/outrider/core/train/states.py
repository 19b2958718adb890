"""What the target computed on the texts of a run: read once and kept on disk, or read anew whenever a batch is made.

The file is rows of all texts one after another, each the states that were asked for, in 16 bits (32 where the target computes
in that). It can be made again, so that a broken one is thrown away.

Letters: `N` rows, `P` states, `d` width.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from outrider.core.errors import Cancelled, ModelError

from .answers import Kept
from .recipe import Batch, Text
from .teacher import Teacher

SPARE = 512 << 20  # bytes of a disk that are left free


class _Head(msgspec.Struct):
    """What a file holds, so that one of another run is not taken for this one's."""

    of: str
    states: list[int]
    rows: int
    dtype: str


def nbytes(teacher: Teacher, texts: Sequence[Kept], states: Sequence[int]) -> int:
    """Bytes that the file would take."""
    return sum(len(text.ids) for text in texts) * len(states) * teacher.info.width * _stored(teacher).itemsize


class States:
    """Batches of texts with the target's states. `file`: where they are kept, None: nowhere."""

    def __init__(self, teacher: Teacher, texts: Sequence[Kept], states: Sequence[int], file: Path | None) -> None:
        self.texts, self.states = list(texts), tuple(states)
        self._teacher, self._file = teacher, file
        self._starts = [0, *accumulate(len(text.ids) for text in self.texts)]
        self._rows: Tensor | None = None  # [N, P, d]

    def prepare(self, of: str, tell: Callable[[int, int], None], cancelled: Callable[[], bool]) -> None:
        """Read all texts, unless that is done; `of` names the data. Raises Cancelled, ModelError if the disk is full."""
        if self._file is None:
            return
        total, dtype = self._starts[-1], _stored(self._teacher)
        head = _Head(of, list(self.states), total, str(dtype))
        told = self._file.with_suffix(".json")
        shape = (total, len(self.states), self._teacher.info.width)
        if not (told.exists() and told.read_bytes() == msgspec.json.encode(head) and self._file.exists()):
            told.unlink(missing_ok=True)
            self._room(shape, dtype)
            rows = torch.from_file(str(self._file), shared=True, size=_size(shape), dtype=dtype).view(shape)
            for number, text in enumerate(self.texts):
                if cancelled():
                    raise Cancelled
                rows[self._starts[number] : self._starts[number + 1]] = self._read(text).cpu()
                tell(self._starts[number + 1], total)
            del rows
            told.write_bytes(msgspec.json.encode(head))
        self._rows = torch.from_file(str(self._file), shared=True, size=_size(shape), dtype=dtype).view(shape)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Texts by their places in the list."""
        texts: list[Text] = []
        at = 0
        for number in numbers:
            text = self.texts[number]
            texts.append(Text(at, at + text.first, at + len(text.ids)))
            at += len(text.ids)
        ids = torch.tensor([token for number in numbers for token in self.texts[number].ids])
        states = torch.cat([self.of(number) for number in numbers])
        return Batch(ids.to(self._teacher.device), states.to(self._teacher.device), tuple(texts))

    def of(self, number: int) -> Tensor:
        """States [S, P, d] of one text."""
        if self._rows is None:
            return self._read(self.texts[number])
        return self._rows[self._starts[number] : self._starts[number + 1]].clone()

    def _read(self, text: Kept) -> Tensor:
        return self._teacher.read(text.ids, self.states).to(_stored(self._teacher))

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        assert self._file is not None
        self._file.unlink(missing_ok=True)
        needed, free = _size(shape) * dtype.itemsize, shutil.disk_usage(self._file.parent).free
        if needed + SPARE > free:
            raise ModelError(
                f"The target's states on this data take {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free.",
                "Make room, train on fewer tokens, or leave --cache out; then they are computed anew each time.",
            )
        with self._file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, needed) if hasattr(os, "posix_fallocate") else file.truncate(needed)


def _stored(teacher: Teacher) -> torch.dtype:
    """In 16 bits, unless the target computes in more: what is learnt should not hang on how it was kept."""
    return teacher.dtype if teacher.dtype.itemsize <= 4 else torch.float32


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for part in shape:
        size *= part
    return size
