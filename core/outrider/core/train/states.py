"""What the target computed on the texts of a run: read once and kept on disk, or read anew whenever a batch is made.

The file is rows of all texts one after another, each the states that were asked for, in 16 bits (32 where the target computes
in that). It can be made again, so that a broken one is thrown away. So with labels, of the rows behind which an answer goes on.

Letters: `N` rows, `R` those that are asked, `P` states, `k` labels, `d` width.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from outrider.core.base.errors import Cancelled, ModelError

from .answers import Kept
from .recipe import Batch, Labeller, Labels, Text
from .teacher import Teacher

SPARE = 512 << 20  # bytes of a disk that are left free


class _Head(msgspec.Struct):
    """What a file holds, so that one of another run is not taken for this one's."""

    of: str
    what: list[int]
    rows: int
    dtype: str


def nbytes(teacher: Teacher, texts: Sequence[Kept], states: Sequence[int], top: int = 0) -> int:
    """Bytes that the files would take: of states, and of `top` labels."""
    rows = sum(len(text.ids) for text in texts) * len(states) * teacher.info.width * _stored(teacher).itemsize
    return rows + sum(_asked(text) for text in texts) * 2 * top * torch.int32.itemsize


class _Shelf:
    """Rows on disk, computed once; whole as soon as the file that names them is there."""

    def __init__(self, file: Path, shape: tuple[int, ...], dtype: torch.dtype, head: _Head) -> None:
        self._file, self._told = file, file.with_suffix(".json")
        self._shape, self._dtype, self._head = shape, dtype, msgspec.json.encode(head)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be computed."""
        return self._told.exists() and self._told.read_bytes() == self._head and self._file.exists()

    def rows(self) -> Tensor:
        """All rows, as they are on disk."""
        return torch.from_file(str(self._file), shared=True, size=_size(self._shape), dtype=self._dtype).view(
            self._shape
        )

    def fill(self, parts: Iterator[Tensor], starts: Sequence[int], report: Callable[[int], None]) -> None:
        """Compute them, part after part. Raises ModelError if there is no room."""
        self._told.unlink(missing_ok=True)
        self._room()
        rows = self.rows()
        for number, part in enumerate(parts):
            rows[starts[number] : starts[number + 1]] = part.cpu()
            report(number)
        del rows
        self._told.write_bytes(self._head)

    def _room(self) -> None:
        self._file.unlink(missing_ok=True)
        needed, free = _size(self._shape) * self._dtype.itemsize, shutil.disk_usage(self._file.parent).free
        if needed + SPARE > free:
            raise ModelError(
                f"What the target says on this data takes {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free.",
                "Make room and go on with --resume, or add --no-cache; then it is computed anew each time.",
            )
        with self._file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, needed) if hasattr(os, "posix_fallocate") else file.truncate(needed)


class States:
    """Batches of texts with the target's states. `file`: where they are kept, None: nowhere.

    `labeller`: what else is wanted of each text; that is beside the states, in `labels.bin`.
    """

    def __init__(
        self,
        teacher: Teacher,
        texts: Sequence[Kept],
        states: Sequence[int],
        file: Path | None,
        labeller: Labeller | None = None,
    ) -> None:
        self.texts, self.states = list(texts), tuple(states)
        self._teacher, self._file = teacher, file
        self._labeller = labeller if labeller is not None and labeller.top else None
        self._starts = [0, *accumulate(len(text.ids) for text in self.texts)]
        self._asked = [0, *accumulate(_asked(text) for text in self.texts)]
        self._rows: Tensor | None = None  # [N, P, d]
        self._labels: Tensor | None = None  # [R, 2 k] int32, the second half the bits of fp32

    def prepare(self, of: str, report: Callable[[int, int], None], cancelled: Callable[[], bool]) -> None:
        """Read all texts, unless that is done; `of` names the data. Raises Cancelled, ModelError if the disk is full."""
        if self._file is None:
            return
        total, dtype = self._starts[-1], _stored(self._teacher)

        def done(number: int) -> None:
            report(self._starts[number + 1], total)

        if self.states:
            shape = (total, len(self.states), self._teacher.info.width)
            shelf = _Shelf(self._file, shape, dtype, _Head(of, list(self.states), total, str(dtype)))
            if not shelf.whole:
                shelf.fill(self._each(self._read, cancelled), self._starts, done)
            self._rows = shelf.rows()
        if self._labeller is not None:
            count, top = self._asked[-1], self._labeller.top
            head = _Head(of, [top], count, "labels")
            shelf = _Shelf(self._file.with_name("labels.bin"), (count, 2 * top), torch.int32, head)
            if not shelf.whole:
                shelf.fill(self._each(self._packed, cancelled), self._asked, done)
            self._labels = shelf.rows()

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
        device = self._teacher.device
        labels = None if self._labeller is None else self._labels_of(numbers, device)
        return Batch(ids.to(device), states.to(device), tuple(texts), labels)

    def of(self, number: int) -> Tensor:
        """States [S, P, d] of one text."""
        if self._rows is None:
            return self._read(self.texts[number])
        return self._rows[self._starts[number] : self._starts[number + 1]].clone()

    def _labels_of(self, numbers: Sequence[int], device: torch.device) -> Labels:
        if self._labels is None:
            packed = torch.cat([self._packed(self.texts[number]) for number in numbers])
        else:
            packed = torch.cat([self._labels[self._asked[number] : self._asked[number + 1]] for number in numbers])
        ids, logs = packed.to(device).chunk(2, -1)
        return Labels(ids.long(), logs.contiguous().view(torch.float32))

    def _each(self, made: Callable[[Kept], Tensor], cancelled: Callable[[], bool]) -> Iterator[Tensor]:
        for text in self.texts:
            if cancelled():
                raise Cancelled
            yield made(text)

    def _read(self, text: Kept) -> Tensor:
        return self._teacher.read(text.ids, self.states).to(_stored(self._teacher))

    def _packed(self, text: Kept) -> Tensor:
        assert self._labeller is not None
        labels = self._labeller.label(text)
        return torch.cat((labels.ids.int(), labels.logs.float().contiguous().view(torch.int32)), -1)


def _asked(text: Kept) -> int:
    """Rows of a text from which a token of the answer is the next one: as `Batch.rows`."""
    return max(0, len(text.ids) - 1 - max(0, text.first - 1))


def _stored(teacher: Teacher) -> torch.dtype:
    """In 16 bits, unless the target computes in more: what is learnt should not depend on how it was kept."""
    return teacher.dtype if teacher.dtype.itemsize <= 4 else torch.float32


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for part in shape:
        size *= part
    return size
