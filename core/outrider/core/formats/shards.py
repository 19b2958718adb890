"""Which safetensors files make one model: those that its index names, and where there is no index, what the names say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

INDEX = "model.safetensors.index.json"
LARGEST_INDEX = 256 << 20  # bytes
_SHARD = re.compile(r"(.+?)-(\d{1,9})-of-(\d{1,9})\.safetensors")
_USUAL = ("model", "model.safetensors")  # what shards are called before their number; `model.fp16` is another form
_MOST = 10_000  # shards of one model
_NOT_WEIGHTS = re.compile(r"(?<![a-z0-9])(?:consolidated|adapter)(?![a-z0-9])", re.IGNORECASE)


class Incomplete(Exception):
    """Files of a model are missing. `missing`: those of `total` that the index names, or the numbers say there should be."""

    def __init__(
        self, missing: Sequence[str], total: int, named: Sequence[str] = (), source: str = f"{INDEX} names"
    ) -> None:
        super().__init__()
        self.missing: tuple[str, ...] = tuple(missing)
        self.total, self.named, self._source = total, frozenset(named), source

    def __str__(self) -> str:
        return f"some of its weight files are missing: {self.what}"

    @property
    def what(self) -> str:
        """The missing ones, by name and number."""
        first, *others = self.missing
        more = f", and {len(others)} more of its {self.total}" if others else ""
        return f"the shard {first}, which {self._source}{more}"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def indexed(data: bytes) -> tuple[str, ...]:
    """The files that an index names, in order. Raises ValueError if it names none."""
    files = tuple(sorted(set(msgspec.json.decode(data, type=_Index).weight_map.values())))
    if not files:
        raise ValueError("the index names no files")
    return files


def weights(names: Iterable[str], index: Sequence[str] | None = None) -> list[str]:
    """The weight files of one model among the names in a folder; [] if there are none. Raises Incomplete.

    `index`: what the index names. One that names nothing of what is there belongs to another form, and is left aside.
    """
    names = set(names)
    present = [name for name in index or () if name in names]
    if index and len(present) == len(index):
        return sorted(present)
    numbered = _sets(names)
    found = _by_name(names, numbered)
    if index and (present or not found):
        raise Incomplete([name for name in index if name not in names], len(index), index)
    if not found and (missing := next((_gaps(*one) for one in numbered.items() if one[0][0] in _USUAL), None)):
        raise missing
    return found


def _gaps(key: tuple[str, int], files: Mapping[int, str]) -> Incomplete | None:
    """What is missing of numbered files, of which one at least is there; None if they are too many instead."""
    (stem, total), (number, after) = key, _digits(files)
    first, last = min(1, *files), max(total, *files)
    names = [f"{stem}-{i:0{number}d}-of-{total:0{after}d}.safetensors" for i in range(first, min(last + 1, _MOST))]
    there = set(files.values())
    missing = [name for name in names if name not in there]
    return Incomplete(missing, len(names), names, "the numbers of the others imply") if missing else None


def _digits(files: Mapping[int, str]) -> tuple[int, int]:
    """How many digits the numbers and the total of shards have."""
    shard = _SHARD.fullmatch(next(iter(files.values())))
    assert shard is not None
    return len(shard[2]), len(shard[3])


def _sets(names: Collection[str]) -> dict[tuple[str, int], dict[int, str]]:
    """Numbered files by what stands before the number and by the total: number -> name."""
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for name in names:
        shard = _SHARD.fullmatch(name)
        if shard and not _NOT_WEIGHTS.search(name):
            sets.setdefault((shard[1], int(shard[3])), {})[int(shard[2])] = name
    return sets


def _by_name(names: Collection[str], numbered: dict[tuple[str, int], dict[int, str]]) -> list[str]:
    complete = {key: sorted(files.values()) for key, files in sorted(numbered.items()) if _whole(files, key[1])}
    usual = [files for (stem, _), files in complete.items() if stem in _USUAL]
    if usual and (INDEX in names or "model.safetensors" not in names):
        return usual[0]
    if "model.safetensors" in names:
        return ["model.safetensors"]
    single = [name for name in names if name.endswith(".safetensors") and not _SHARD.fullmatch(name)]
    single = [name for name in single if not _NOT_WEIGHTS.search(name)]
    others = [*complete.values(), *([name] for name in single)]
    return others[0] if len(others) == 1 else []


def _whole(files: Collection[int], total: int) -> bool:
    """Whether all numbers are there: 1 to the total, or from 0 to the total or the one before it."""
    first, last = min(files), max(files)
    ends = (total,) if first == 1 else (total - 1, total) if first == 0 else ()
    return last in ends and len(files) == last - first + 1


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
