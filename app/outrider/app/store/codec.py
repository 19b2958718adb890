"""Run lengths and packed lists: how kinds, token ids and passes lie in a row."""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Iterable
from itertools import groupby
from typing import Any, cast

import msgspec

from outrider.app.chat.marks import Runs
from outrider.core.base.protocol import Kind

_RUN = re.compile(r"([ACBP])([1-9]\d{0,8})")
_RUNS = re.compile(r"(?:[ACBP][1-9]\d{0,8})*")


def squeeze(kinds: str) -> str:
    """`AAC` as `A2C1`."""
    return "".join(f"{kind}{sum(1 for _ in run)}" for kind, run in groupby(kinds))


def _read(text: str) -> Iterable[tuple[Kind, int]]:
    if not _RUNS.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no list of run lengths such as P3A12")
    return ((cast(Kind, kind), int(length)) for kind, length in _RUN.findall(text))


def expand(text: str) -> str:
    """`A2C1` as `AAC`. Raises ValueError for anything else."""
    return "".join(kind * length for kind, length in _read(text))


def count(text: str) -> int:
    """How many there are in `A2C1`: 3. Raises ValueError for anything else."""
    return sum(length for _, length in _read(text))


def runs_of(text: str, length: int) -> Runs:
    """Runs that cover exactly `length` characters; what `text` leaves out is plain. Raises ValueError for no run lengths."""
    runs = Runs()
    for kind, count in _read(text):
        runs.add(kind, count)
    runs.cut(length)
    runs.add("P", length - len(runs))
    return runs


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids, 4 bytes each, compressed."""
    values = array("I", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return zlib.compress(values.tobytes())


def unpack_ids(data: bytes) -> list[int]:
    """What `pack_ids` packed. Raises ValueError if it is damaged."""
    values = array("I")
    values.frombytes(_inflate(data))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def pack(rows: Any) -> bytes:
    """Plain values, compressed."""
    return zlib.compress(msgspec.msgpack.encode(rows))


def unpack(data: bytes, kind: Any) -> Any:
    """What `pack` packed, as `kind`. Raises ValueError if it is damaged."""
    return msgspec.msgpack.decode(_inflate(data), type=kind)


def _inflate(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from error
