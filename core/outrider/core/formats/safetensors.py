"""Folders of safetensors, single or sharded.

Tensors are read, not mapped: a file that is cut or replaced while its map is in use kills the process.

Headers are checked here, so that no torch is needed to describe a model.
"""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.file_kind import disguise
from outrider.core.formats.gguf.reader import AGAIN
from outrider.core.text.files import TokenizerFiles

from . import packed, shards

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .layout import Layout
    from .quantized import Grouped

_MAX_HEADER = 100 << 20  # bytes; the format's own limit
_MAX_JSON = 256 << 20
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_BYTES |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
_NAMES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_NAMES |= {"I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32"}
_NAMES |= {"F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64"}  # as torch calls them
_PLAIN = ("F64", "F32", "F16", "BF16")  # what weights are without a scale
UNREADABLE = "Check that it is a file, and that you may read it."
_LABELS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int  # in the file
    nbytes: int


class SafetensorsCheckpoint:
    """A folder with config.json and safetensors as a checkpoint. Raises ModelError, BrokenFileError."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        quantised = self.config.get("quantization_config") or {}
        how = quantised.get("quant_method", "an unknown method") if isinstance(quantised, dict) else quantised
        if quantised and how not in packed.METHODS:
            raise ModelError(
                f"{path} is quantised by {how}, which is not read.",
                f"Take the bf16 form, a GGUF, or one of: {', '.join(packed.METHODS)}.",
            )
        self.generation = self._table("generation_config.json")
        files = _weight_files(path)
        self._entries: dict[str, _Entry] = {}
        for file in files:
            for name, entry in _read_header(file).items():
                if name in self._entries:
                    raise BrokenFileError(f"{path}: tensor {name} lies in two files.", AGAIN)
                self._entries[name] = entry
        _check_index(path, self._entries)
        self.nbytes = sum(file.stat().st_size for file in files)
        self._kinds = {name: (entry.kind, entry.shape) for name, entry in self._entries.items()}
        self._recipes, self._parts = packed.recipes(self._kinds, quantised if isinstance(quantised, dict) else {})
        self.quantisation = str(how) if quantised else _common_kind(self._entries)

    def names(self) -> list[str]:
        """Names of the plain weights; parts of packed ones are not among them."""
        return [
            *(name for name in self._entries if name not in self._parts and name not in self._recipes),
            *self._recipes,
        ]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a plain weight."""
        return self._recipes[name].shape if name in self._recipes else self._entry(name).shape

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of its own memory, expanded where it was packed."""
        if name in self._recipes:
            from . import unpack

            weight = unpack.expand(self._recipes[name], self._stored)
            return weight if dtype is None else weight.to(dtype)
        kind = self._entry(name).kind
        if dtype is not None and dtype.is_floating_point and kind not in _PLAIN:
            what = "8-bit floats" if kind.startswith("F8") else "whole numbers"
            raise BrokenFileError(f"{self.path}: {name} holds {what} ({kind}) and no scale for them.", AGAIN)
        return self._stored(name) if dtype is None else self._stored(name).to(dtype)

    def layout(self, name: str) -> Layout | None:
        """How the parts of a weight are stored."""
        return packed.layout(self._recipes[name], self._kinds) if name in self._recipes else None

    def grouped(self, name: str) -> Grouped | None:
        """The codes of a quantised weight."""
        if self.layout(name) is None:
            return None
        from . import unpack
        from .quantized import Grouped

        made = unpack.read(self._recipes[name], self._stored)
        return made if isinstance(made, Grouped) else None

    def _stored(self, name: str) -> Tensor:
        return _tensor(self._entry(name))

    def text(self) -> TokenizerFiles:
        """The files of the tokenizer and the chat template, as far as they are there; none besides a tokenizer.json."""
        whole = self._bytes("tokenizer.json")

        def older(name: str) -> bytes | None:
            return self._bytes(name) if whole is None else None

        return TokenizerFiles(
            origin=str(self.path),
            tokenizer=whole,
            tekken=older("tekken.json"),
            sentencepiece=older("tokenizer.model"),
            vocab=older("vocab.json"),
            merges=older("merges.txt"),
            settings={**self._table("special_tokens_map.json"), **self._table("tokenizer_config.json")},
            added=self._table("added_tokens.json"),
            template=self._template(),
            config=self.config,
            generation=self.generation,
        )

    def _bytes(self, name: str) -> bytes | None:
        file = self.path / name
        return _read(file, _MAX_JSON) if file.exists() else None

    def _table(self, name: str) -> dict[str, Any]:
        file = self.path / name
        return read_json(file) if file.exists() else {}

    def close(self) -> None:
        """Nothing is held open."""

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise BrokenFileError(f"{self.path} has no tensor {name}.", AGAIN)
        return self._entries[name]

    def _template(self) -> str | None:
        source = self.path / "chat_template.jinja"
        if source.exists():
            return _read(source, _MAX_JSON).decode("utf-8", "replace")
        older = self.path / "chat_template.json"
        if older.exists():
            found = read_json(older).get("chat_template")
            return found if isinstance(found, str) else None
        return None


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of one file, by its header. Raises as `read_file`."""
    return {name: entry.shape for name, entry in _read_header(file).items()}


def read_file(file: Path) -> dict[str, Tensor]:
    """All tensors of one file. Raises ModelError, BrokenFileError."""
    return {name: _tensor(entry) for name, entry in _read_header(file).items()}


def _tensor(entry: _Entry) -> Tensor:
    import torch

    data = torch.empty(entry.nbytes, dtype=torch.uint8)
    if entry.nbytes:
        _fill((ctypes.c_ubyte * entry.nbytes).from_address(data.data_ptr()), entry)
    return data.view(getattr(torch, _NAMES[entry.kind])).view(entry.shape)


def _fill(buffer: ctypes.Array[ctypes.c_ubyte], entry: _Entry) -> None:
    view = memoryview(buffer).cast("B")
    try:
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.start)
            while view:
                count = stream.readinto(view)
                if not count:
                    raise BrokenFileError(f"{entry.file} has become shorter while it was read.", AGAIN)
                view = view[count:]
    except OSError as error:
        raise BrokenFileError(f"{entry.file} cannot be read: {error.strerror or error}.", AGAIN) from error


def _weight_files(folder: Path) -> list[Path]:
    found = sorted(file.name for file in folder.glob("*.safetensors"))
    names = _indexed(folder) if (folder / shards.INDEX).exists() else None
    try:
        taken = shards.weights(found, names)
    except shards.Incomplete as error:
        raise _incomplete(folder, error, found) from error
    if names is not None and set(taken) != set(names):
        raise _incomplete(folder, shards.Incomplete(names, len(names)), found)
    if taken:
        return [folder / name for name in taken]
    if not found:
        raise ModelError(f"{folder} holds no safetensors file.", AGAIN)
    listed = ", ".join(found[:4])
    raise ModelError(
        f"{folder} holds several safetensors files ({listed}) and no index.",
        f"Keep only the model's own, or add the {shards.INDEX} that it was published with.",
    )


def _indexed(folder: Path) -> list[str]:
    """The files that the index of a folder names, each inside it. Raises BrokenFileError."""
    index = folder / shards.INDEX
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise BrokenFileError(f"{index} names no files.", AGAIN)
    outside = next((name for name in listed.values() if Path(name).name != name), None)
    if outside is not None:
        raise BrokenFileError(f"{index} names a file outside its folder: {outside}.", AGAIN)
    return sorted(set(listed.values()))


def _incomplete(folder: Path, error: shards.Incomplete, found: Sequence[str]) -> BrokenFileError:
    """What is missing, and which files are there instead."""
    others = [name for name in found if name not in error.named]
    there = f" There are {len(others)} others: {shards.few(others)}." if others else ""
    hint = AGAIN
    if others and len(error.missing) == error.total:
        hint += f" If the files there are the whole model, delete its {shards.INDEX}."
    return BrokenFileError(f"{folder} lacks {error.what}.{there}", hint)


def _check_index(folder: Path, entries: dict[str, _Entry]) -> None:
    index = folder / shards.INDEX
    if not index.exists():
        return
    for name, file in read_json(index)["weight_map"].items():
        if name not in entries or entries[name].file.name != file:
            raise BrokenFileError(f"{folder / file} lacks the tensor {name}, which {index.name} promises.", AGAIN)


def _read_header(file: Path) -> dict[str, _Entry]:
    """Every tensor of one file, each extent inside it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(64)
            shown = disguise(head)
            if shown:
                raise BrokenFileError(f"{file} is {shown}.", AGAIN)
            stream.seek(8)
            length = int.from_bytes(head[:8], "little")
            if size < 10 or not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise BrokenFileError(f"{file} is broken: its header does not fit into {size} bytes.", AGAIN)
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.", UNREADABLE) from error
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{file} is broken: its header is not JSON.", AGAIN) from error
    if not isinstance(header, dict):
        raise BrokenFileError(f"{file} is broken: its header is not a table.", AGAIN)
    data = 8 + length
    entries = {name: _entry(file, name, row, data) for name, row in header.items() if name != "__metadata__"}
    promised = data + sum(entry.nbytes for entry in entries.values())
    if promised != size:
        raise BrokenFileError(f"{file} is broken: {size} bytes where its header promises {promised}.", AGAIN)
    end = data
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.nbytes)):
        if entry.start != end:
            raise BrokenFileError(f"{file} is broken: its tensors overlap.", AGAIN)
        end += entry.nbytes
    return entries


def _entry(file: Path, name: str, row: Any, data: int) -> _Entry:
    """What the header says of one tensor; `data` is where tensors begin."""
    match row:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            elements = 1
            for axis in shape:
                if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
                    break
                elements *= axis
            else:
                if kind not in _BYTES:
                    raise ModelError(
                        f"{file}: tensor {name} has type {kind}, which is not read.", "Take the bf16 form."
                    )
                if start >= 0 and end - start == elements * _BYTES[kind]:
                    return _Entry(file, kind, tuple(shape), data + start, end - start)
    raise BrokenFileError(f"{file} is broken: the entry of tensor {name} makes no sense.", AGAIN)


def _common_kind(entries: dict[str, _Entry]) -> str:
    weights: Counter[str] = Counter()
    for entry in entries.values():
        weights[entry.kind] += entry.nbytes
    kind = weights.most_common(1)[0][0] if weights else "F32"
    return _LABELS.get(kind, kind)


def _read(file: Path, limit: int) -> bytes:
    try:
        if file.stat().st_size > limit:
            raise BrokenFileError(f"{file} is too large for what it is.", AGAIN)
        return file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.", UNREADABLE) from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object on disk. Raises ModelError if it cannot be read, BrokenFileError if it is none."""
    try:
        found = json.loads(_read(file, _MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{file} is broken: it is not JSON.", AGAIN) from error
    if not isinstance(found, dict):
        raise BrokenFileError(f"{file} is broken: it holds no table.", AGAIN)
    return found
