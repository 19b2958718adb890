"""GGUF files, whole or split: header, metadata and tensor table over memory maps. Loads no torch.

Every count, length and offset is checked against the size of the file before it is used, so a truncated or corrupt file
ends in a `BrokenFileError` and in nothing else.
"""

from __future__ import annotations

import itertools
import math
import mmap
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.file_kind import disguise

MAGIC = b"GGUF"
AGAIN = "Get the file again: `outrider models pull NAME`, or copy it anew."
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")  # one of several files that are one model

# type id: (name, weights in a block, bytes of a block); only what `quants` expands
BLOCKS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
_UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")
_NO_RESERVE = 0x4000  # mmap.MAP_NORESERVE from Python 3.13 on


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor is. `shape` has the slowest axis first, as torch writes it."""

    name: str
    shape: tuple[int, ...]
    kind: str  # a name of BLOCKS
    offset: int  # bytes from the start of its file
    nbytes: int
    part: int = 0  # which of the files of a split model

    @property
    def rows(self) -> int:
        """Rows of the matrix that a tensor is along its last axis; a vector is a column."""
        return math.prod(self.shape[: max(1, len(self.shape) - 1)])


class GGUFFile:
    """An open GGUF file: `metadata`, `tensors` by name, and `raw` bytes. Raises ModelError and BrokenFileError.

    Any part of a split model opens the whole of it; `path` is then the first part.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._maps: list[mmap.mmap] = []
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self.metadata = self._read(path)
            count = self.metadata.get("split.count", 1)
            if isinstance(count, int) and count > 1:
                self._read_parts(path, count)
        except ModelError:
            self.close()
            raise
        self.nbytes = sum(map(len, self._maps))

    @contextmanager
    def raw(self, tensor: TensorInfo, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """The stored bytes of rows `first` to `last`, writable in private memory only; afterwards they leave memory."""
        each = tensor.nbytes // tensor.rows
        start = tensor.offset + first * each
        stop = tensor.offset + (tensor.nbytes if last is None else last * each)
        data = self._maps[tensor.part]
        with memoryview(data)[start:stop] as view:
            yield view
        if hasattr(mmap, "MADV_DONTNEED"):
            whole = start // mmap.PAGESIZE * mmap.PAGESIZE
            data.madvise(mmap.MADV_DONTNEED, whole, stop - whole)

    def close(self) -> None:
        """Unmap the files."""
        for data in self._maps:
            data.close()

    def _read(self, path: Path) -> dict[str, Any]:
        """Map one file, add its tensors and return its metadata."""
        self._maps.append(_map(path))
        cursor = _Cursor(self._maps[-1], path)
        tensors, pairs = cursor.counts()
        metadata = dict(cursor.pairs(pairs))
        for tensor in cursor.tensors(tensors, metadata.get("general.alignment", 32)):
            if tensor.name in self.tensors:
                raise BrokenFileError(f"{path}: tensor {tensor.name!r} lies in another part too.", AGAIN)
            self.tensors[tensor.name] = replace(tensor, part=len(self._maps) - 1)
        return metadata

    def _read_parts(self, opened: Path, count: int) -> None:
        """Start anew with the first part, then the others."""
        match = PART.fullmatch(opened.name)
        if match is None or int(match[3]) != count:
            raise ModelError(
                f"{opened} is one of {count} parts of a split GGUF, and its name does not say so.",
                f"Name the parts NAME-00001-of-{count:05d}.gguf and so on, as they were published.",
            )
        paths = [opened.with_name(f"{match[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise ModelError(f"{opened} is one of {count} parts, and {missing.name} is missing.", "Get that part too.")
        self.close()
        self._maps, self.tensors, self.path = [], {}, paths[0]
        for index, path in enumerate(paths):
            told = self._read(path)
            if index == 0:
                self.metadata = told
            keys = ("split.no", "split.count", "split.tensors.count")
            if [told.get(key) for key in keys] != [index, count, self.metadata.get(keys[2])]:
                raise BrokenFileError(f"{path} is not part {index + 1} of {count} of the model beside it.", AGAIN)
        if len(self.tensors) != self.metadata.get("split.tensors.count"):
            raise BrokenFileError(
                f"{paths[0]} and its other parts hold {len(self.tensors)} tensors, not as many as they promise.", AGAIN
            )


def general(path: Path) -> dict[str, Any]:
    """The `general.*` values at the beginning of a file; of the rest nothing is read. Raises ModelError, BrokenFileError."""
    data = _map(path)
    try:
        cursor = _Cursor(data, path)
        _, pairs = cursor.counts()
        return dict(itertools.takewhile(lambda pair: pair[0].startswith("general."), cursor.pairs(pairs)))
    finally:
        data.close()


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if not head.startswith(MAGIC):
                shown = disguise(head) or "not a GGUF file (it does not begin with GGUF)"
                what = "is empty" if not head else f"is {shown}"
                raise BrokenFileError(f"{path} {what}.", AGAIN)
            # A private, writable map: torch warns about read-only buffers, and nothing is ever written to it. Linux must be
            # told so, or it refuses files that are larger than the memory.
            if sys.platform == "linux":
                access = mmap.PROT_READ | mmap.PROT_WRITE
                return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=access)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


class _Cursor:
    """A position in the header; every step is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = len(MAGIC)

    def fail(self, what: str) -> NoReturn:
        raise BrokenFileError(f"{self.path} is broken: {what} at byte {self.at} of {len(self.data)}.", AGAIN)

    def need(self, size: int, what: str) -> None:
        if size > len(self.data) - self.at:
            self.fail(f"{what} reach past the end of the file")

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        self.need(layout.size, "values")
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        data, at, end = self.data, self.at, len(self.data)
        self.need(count * _U64.size, "strings")
        found = []
        try:
            for _ in range(count):
                (size,) = _U64.unpack_from(data, at)
                at += 8
                if size > end - at:
                    self.at = at
                    self.fail("a string reaches past the end of the file")
                found.append(str(data[at : at + size], "utf-8"))
                at += size
        except UnicodeDecodeError:
            self.at = at
            self.fail("a string is not UTF-8")
        except struct.error:
            self.at = at
            self.fail("a string length is cut off")
        self.at = at
        return found

    def counts(self) -> tuple[int, int]:
        """Numbers of tensors and of metadata pairs."""
        version = self.scalar("I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "is big-endian" if swapped in (2, 3) else f"has GGUF version {version}"
            raise ModelError(
                f"{self.path} {why}; versions 2 and 3, little-endian, are read.", "Get a newer file of the model."
            )
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        self.need(tensors * 32 + pairs * 13, f"{tensors} tensors and {pairs} metadata pairs")
        return tensors, pairs

    def pairs(self, count: int) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for _ in range(count):
            key = self.text()
            if key in seen:
                self.fail(f"metadata key {key!r} comes twice")
            seen.add(key)
            yield key, self.value(self.scalar("I"))

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 3:
            self.fail(f"unknown metadata type {kind}")
        element, count = self.scalar("I"), self.scalar("Q")
        if element == _STRING:
            return self.texts(count)
        if element in _SCALARS:
            code = _SCALARS[element]
            size = count * struct.calcsize("<" + code)
            self.need(size, f"{count} values")
            found = list(struct.unpack(f"<{count}{code}", self.data[self.at : self.at + size]))
            self.at += size
            return found
        self.need(count * 12, f"{count} arrays")
        return [self.value(element, depth + 1) for _ in range(count)]

    def tensors(self, count: int, alignment: Any) -> list[TensorInfo]:
        """The tensor table, with offsets made absolute and every extent inside the file."""
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            self.fail(f"alignment {alignment!r} is not a power of two")
        rows = [self._row(alignment) for _ in range(count)]
        start = -(-self.at // alignment) * alignment
        found: dict[str, TensorInfo] = {}
        for name, shape, kind, offset, size in rows:
            if name in found:
                self.fail(f"tensor {name!r} comes twice")
            if start + offset + size > len(self.data):
                self.fail(f"tensor {name!r} reaches past the end of the file")
            found[name] = TensorInfo(name, shape, kind, start + offset, size)
        self._no_overlap(sorted(found.values(), key=lambda tensor: tensor.offset))
        return list(found.values())

    def _row(self, alignment: int) -> tuple[str, tuple[int, ...], str, int, int]:
        name, axes = self.text(), self.scalar("I")
        if not 1 <= axes <= 4:
            self.fail(f"tensor {name!r} has {axes} axes")
        dims = [self.scalar("Q") for _ in range(axes)]  # fastest first
        kind, offset = self.scalar("I"), self.scalar("Q")
        if kind not in BLOCKS:
            self._unknown_kind(name, kind)
        label, weights, size = BLOCKS[kind]
        if min(dims) < 1 or dims[0] % weights:
            self.fail(f"tensor {name!r} of shape {dims} does not hold whole {label} blocks")
        if offset % alignment:
            self.fail(f"tensor {name!r} is not aligned")
        elements = 1
        for dim in dims:
            elements *= dim
        return name, tuple(reversed(dims)), label, offset, elements // weights * size

    def _unknown_kind(self, name: str, kind: int) -> NoReturn:
        if kind not in _UNREAD and kind > 0xFFFF:
            self.fail(f"tensor {name!r} has no valid type")
        what = f"quantisation {_UNREAD[kind]}" if kind in _UNREAD else f"quantisation type {kind}"
        known = ", ".join(label for label, _, _ in BLOCKS.values())
        raise ModelError(f"{self.path}: tensor {name} has {what}, which is not read.", f"Take a file with {known}.")

    def _no_overlap(self, tensors: list[TensorInfo]) -> None:
        for one, two in itertools.pairwise(tensors):
            if one.offset + one.nbytes > two.offset:
                self.fail(f"tensors {one.name!r} and {two.name!r} overlap")
