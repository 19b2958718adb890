"""The golden files of `tests/data/golden`: whole checkpoints in a small form, unpacked once and kept beside pytest's cache.

- Weights that the reference drew at random are drawn again from its seed; weights that stand elsewhere are copied.
- The other weights (trained ones) are stored as they are. Bytes of one significance stand together, which packs well.
- Outputs of the reference are stored as sketches: each row times `SKETCH` fixed vectors of random signs. A comparison
  of sketches sees every row and every number of it, in a fraction of the bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import lzma
import math
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "golden"
DAY = 86400  # seconds; another run may still read what was unpacked in the last one
SKETCH = 8  # numbers that stand for a row

Drawn = list[list[Tensor]]
Tensors = dict[str, Tensor]
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.uint8, torch.int32, torch.int64, torch.bool)}


@functools.cache
def _signs(columns: int) -> Tensor:
    """[columns, SKETCH], divided so that a sketch is as large as the numbers of the row."""
    signs = np.random.RandomState(columns).randint(0, 2, (columns, SKETCH)) * 2 - 1
    return torch.from_numpy(signs).double() / math.sqrt(columns)


def sketch(rows: Tensor) -> Tensor:
    """[..., columns] to [..., SKETCH]."""
    return (rows.double() @ _signs(rows.shape[-1])).to(rows.dtype)


def assert_close(rows: Tensor, want: Tensor, *, atol: float) -> None:
    """`rows` against the sketches of the reference's rows.

    A number that is wrong alone moves a sketch by a part of its error, so the tolerance is half of the one for
    numbers: an error in all of a row is seen earlier than by a comparison of the numbers.
    """
    assert want.shape[-1] == SKETCH, "the reference is no sketch"
    got = sketch(rows)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want.to(got.dtype), atol=atol / 2, rtol=0)


def draw(recipe: Mapping[str, Any]) -> list[Tensor]:
    """The random tensors of one seed, in the order in which the reference's script drew them."""
    generator = torch.Generator().manual_seed(recipe["seed"])
    drawn = []
    for shape, kind, first, second in recipe["draws"]:
        if kind == "normal":  # mean and deviation
            drawn.append(first + second * torch.randn(shape, generator=generator))
        else:  # between two numbers
            some = first + (second - first) * torch.rand(shape, generator=generator)
            drawn.append(some.log() if kind == "log" else some)
    return drawn


def digest(drawn: list[list[Tensor]]) -> int:
    """Of all random numbers of a folder: another version of torch, or another processor, may draw others."""
    total = 0
    for some in drawn:
        for tensor in some:
            total = zlib.crc32(tensor.numpy().tobytes(), total)
    return total


def drawn_anew() -> dict[str, bool]:
    """By folder: whether the random weights are those that the reference was computed with."""
    heads = {name: Packed(DATA / name).head for name in json.loads((DATA / "order.json").read_text())}
    return {name: digest([draw(some) for some in head["random"]]) == head["digest"] for name, head in heads.items()}


def planes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, those of one significance together."""
    size = tensor.element_size()
    return tensor.contiguous().flatten().view(torch.uint8).numpy().reshape(-1, size).T.tobytes()


def _tensor(data: bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    raw = np.frombuffer(data, np.uint8).reshape(size, -1).T.copy()
    return torch.from_numpy(raw).view(dtype).reshape(shape)


class Packed:
    """One packed folder: a head in JSON, then the stored tensors."""

    def __init__(self, path: Path) -> None:
        data = lzma.decompress(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        self.head: dict[str, Any] = json.loads(data[8:start])
        self._data, self._at = data, start

    def write(self, folder: Path, top: Path) -> None:
        """The files as they were; `top` holds the folders that were written before."""
        drawn = [draw(recipe) for recipe in self.head["random"]]
        folder.mkdir(parents=True)
        for name, text in self.head["texts"].items():
            (folder / name).write_text(text, "utf-8")
        for name, sources in self.head["tensors"].items():
            tensors = {key: self._source(source, drawn, top) for key, source in sources.items()}
            save_file(tensors, folder / name, metadata={"format": "pt"})
        for name, same in self.head["pickles"].items():
            torch.save(load_file(folder / same), folder / name)

    def _source(self, source: dict[str, Any], drawn: Drawn, top: Path) -> Tensor:
        shape = source.get("shape", [])
        if "draw" in source:
            seed, number, start = source["draw"]
            return drawn[seed][number].flatten()[start : start + math.prod(shape)].reshape(shape).clone()
        if "same" in source:
            return _open(top / source["same"][0])[source["same"][1]].clone()
        dtype = DTYPES[source["dtype"]]
        size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
        data, self._at = self._data[self._at : self._at + size], self._at + size
        return _tensor(data, dtype, shape)


@functools.lru_cache(4)
def _open(path: Path) -> Tensors:
    return load_file(path)


@functools.cache
def unpacked() -> Path:
    """The folder with everything in its whole form; written when the packed files are new."""
    files = [DATA / name for name in json.loads((DATA / "order.json").read_text())]
    told = hashlib.sha256(Path(__file__).read_bytes())
    for path in files:
        told.update(path.read_bytes())
    folder = ROOT / ".pytest_cache" / "golden" / told.hexdigest()[:16]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    others = [path for path in folder.parent.iterdir() if not path.name.startswith("new-")]
    older = [path for path in others if path.stat().st_mtime < time.time() - DAY]
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        for path in files:
            Packed(path).write(new / path.relative_to(DATA).with_suffix(""), new)
        with contextlib.suppress(OSError):  # another process was faster
            new.rename(folder)
            for path in older:
                shutil.rmtree(path, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder
