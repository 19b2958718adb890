"""Checked access to the metadata of a GGUF file, and what most architectures share of it."""

from __future__ import annotations

import re
import struct
from typing import Any, NoReturn

from outrider.core.base.errors import BrokenFileError, ModelError

from .reader import AGAIN, GGUFFile

BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")


class Metadata:
    """The keys under the architecture's name, and the counts that tensors and keys must agree on.

    Raises BrokenFileError wherever a value is missing, makes no sense or contradicts the tensors.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.prefix = file.metadata["general.architecture"]
        self.width = self.count("embedding_length")
        self.heads = self.count("attention.head_count")
        self.vocab = self._vocab()
        self.nextn = self.whole("nextn_predict_layers", 0)  # blocks behind the model's own, for drafting
        self.layers = self._layers()

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it is."""
        return self.file.metadata.get(f"{self.prefix}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 on; an array must repeat one."""
        value = self.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fail(key, value)
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number; an array must repeat one."""
        value = self.whole(key, default)
        return value if value else self.fail(key, value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; a 32-bit one is read as the shortest decimal that it can stand for."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e38:
            self.fail(key, value)
        short = float(f"{value:.7g}")
        return short if struct.pack("<f", short) == struct.pack("<f", value) else float(value)

    def maybe(self, key: str) -> float | None:
        """A number, or None where the key is absent."""
        return None if self.get(key) is None else self.number(key)

    def each(self, key: str, default: int | None = None) -> list[int]:
        """A whole number or truth for every layer, from an array or from one value for all."""
        value = self.get(key, default)
        values = value if isinstance(value, list) else [value] * self.layers
        if len(values) < self.layers or not all(isinstance(item, int) and item >= 0 for item in values):
            self.fail(key, value)
        return [int(item) for item in values[: self.layers]]

    def kinds(self, every: int) -> list[str]:
        """Which layers slide, from the pattern in the file, else all but every `every`-th."""
        key = "attention.sliding_window_pattern"
        told = self.get(key, every)
        if not isinstance(told, list):
            period = self.whole(key, every)
            told = [period == 0 or (i + 1) % period != 0 for i in range(self.layers)]
        elif len(told) < self.layers:
            self.fail(key, told)
        return ["sliding_attention" if slides else "full_attention" for slides in told[: self.layers]]

    def has(self, name: str, layer: int = 0) -> bool:
        """Whether a block has a tensor."""
        return f"blk.{layer}.{name}" in self.file.tensors

    def having(self, name: str) -> list[bool]:
        """The same for every layer."""
        return [self.has(name, layer) for layer in range(self.layers)]

    def row(self, name: str) -> list[float] | None:
        """A vector of 32-bit numbers, or None where the file has none of that name."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            return None
        if tensor.kind != "F32" or len(tensor.shape) != 1 or tensor.rows > 1 << 16:
            raise BrokenFileError(f"{self.file.path}: {name} is not a short row of 32-bit numbers.", AGAIN)
        with self.file.raw(tensor) as raw:
            return list(struct.unpack(f"<{tensor.shape[0]}f", raw))

    def fail(self, key: str, value: Any) -> NoReturn:
        """Raise for a key that is missing or has a useless value."""
        what = "lacks" if value is None else f"has {str(value)[:40]!r} as"
        raise BrokenFileError(f"{self.file.path} {what} {self.prefix}.{key}.", AGAIN)

    def refuse(self, what: str) -> NoReturn:
        """Raise for a file that is whole but needs something that the engine has not."""
        raise ModelError(f"{self.file.path} {what}, which is not read.", "Take another file of this model.")

    def _vocab(self) -> int:
        table = self.file.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2 or table.shape[1] != self.width:
            raise BrokenFileError(f"{self.file.path} has no embedding table of width {self.width}.", AGAIN)
        return table.shape[0]

    def _layers(self) -> int:
        told = self.count("block_count") - self.nextn
        there = {int(match[1]) for match in map(BLOCK.match, self.file.tensors) if match}
        own = sum(block < told for block in there)
        if told > 0 and not own and self.nextn:
            self.refuse("holds only the layers that draft for a model")
        ahead = len(there) - own
        if own != told or ahead > self.nextn or (ahead and not self.has("nextn.eh_proj.weight", told)):
            raise BrokenFileError(f"{self.file.path} promises {told} layers and holds {len(there)}.", AGAIN)
        return told
