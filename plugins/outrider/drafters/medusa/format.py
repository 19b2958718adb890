"""The files of heads: alone in a folder (safetensors, or the published pickle), or beside the target's own weights.

The count of heads is that of the tensors: published configs say 2 where there are 5.

Medusa: head k is `{k}.{i}.linear` [d, d] for each layer i, and the output matrix `{k}.{layers}.weight` [V, d].

Hydra: head k is `hydra_mlp.{k}.0.linear` and `.res_connection` [d, (k + 2) d], `hydra_mlp.{k}.{i}.linear` [d, d] for more
layers, and the output matrix `hydra_lm_head.{k}` [V, d]. All have biases, but for Medusa's output matrix.

Letters: `V` vocabulary, `d` width of the target.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from outrider.core.errors import BrokenFileError, ModelError
from outrider.core.weights.checkpoint import open_checkpoint
from outrider.core.weights.safetensors import read_json

from . import OWN
from .tree import Choice, checked

AGAIN = "Fetch the heads again."
_MEDUSA = re.compile(r"(\d+)\.(\d+)\.(?:linear\.weight|linear\.bias|weight)")
_HYDRA = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(?:linear|res_connection)\.(?:weight|bias)")
_HYDRA_OUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:weight|bias)")
Shapes = dict[str, tuple[int, ...]]


class Source(Protocol):
    """Where tensors come from."""

    config: dict[str, Any]

    def names(self) -> list[str]:
        """Names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        ...

    def load(self, name: str) -> Tensor:
        """A tensor on the CPU, as stored."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class Single:
    """One file of tensors, mapped: safetensors, or what `torch.save` wrote, read as data only. Raises BrokenFileError."""

    def __init__(self, file: Path) -> None:
        beside = file.with_name("config.json")
        self.config = read_json(beside) if beside.exists() else {}
        held = _held(file)
        if not isinstance(held, Mapping) or not all(isinstance(part, Tensor) for part in held.values()):
            raise BrokenFileError(f"{file} holds something else than a table of tensors.", AGAIN)
        self._held = dict(held)

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._held)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._held[name].shape)

    def load(self, name: str) -> Tensor:
        """A tensor on the CPU, as stored."""
        return self._held[name].detach()

    def close(self) -> None:
        """Let go of the file."""
        self._held.clear()


class HeadFiles(ABC):
    """The heads of one source, every tensor accounted for: by the kind of head it has the names and shapes of all.

    Raises ModelError where there are no such heads, BrokenFileError where a tensor is missing, misshapen or too many.
    """

    kind = ""
    out = ""  # name of the first output matrix

    def __init__(self, source: Source, where: Path, prefix: str = "") -> None:
        self.config = source.config
        self._source, self._where, self._prefix = source, where, prefix
        names = [name[len(prefix) :] for name in source.names() if name.startswith(prefix)]
        self.heads, self.layers = self._count(names)
        out = self.out.format(layers=self.layers)
        size = source.shape(prefix + out) if out in names else ()
        if len(size) != 2:
            what = f"{out} has {len(size)} axes, not 2" if out in names else f"the tensor {out} is missing"
            raise BrokenFileError(f"{where}: {what}.", AGAIN)
        self.vocab, self.width = size
        wanted = self._shapes()
        for name in sorted(wanted.keys() ^ set(names)):
            what = "lacks" if name in wanted else "holds beside its heads"
            raise BrokenFileError(f"{where} {what} the tensor {name}.", AGAIN)
        for name, shape in wanted.items():
            found = source.shape(prefix + name)
            if found != shape:
                raise BrokenFileError(f"{where}: {name} has the shape {list(found)}, not {list(shape)}.", AGAIN)

    def misfit(self, width: int, vocab: int) -> str | None:
        """Why these heads do not fit a target of that size; None if they do."""
        if self.width != width:
            return f"its heads are made for width {self.width}, not {width}"
        if self.vocab != vocab:
            return f"its heads know {self.vocab} tokens, not {vocab}"
        return None

    def choices(self) -> list[Choice] | None:
        """The tree that the config fixes, as far as the heads reach. Raises ModelError if it is none."""
        key = f"{self.kind.lower()}_choices"
        return None if self.config.get(key) is None else checked(self.config[key], key, self.heads, self.vocab)

    def numel(self) -> int:
        """Weights of all heads."""
        return sum(prod(shape) for shape in self._shapes().values())

    def load(self, name: str) -> Tensor:
        """One tensor, as stored. Raises BrokenFileError if it holds no finite floats."""
        tensor = self._source.load(self._prefix + name)
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise BrokenFileError(f"{self._where}: {name} holds something else than finite numbers.", AGAIN)
        return tensor

    def close(self) -> None:
        """Let go of the files."""
        self._source.close()

    @abstractmethod
    def _count(self, names: Iterable[str]) -> tuple[int, int]: ...

    @abstractmethod
    def _shapes(self) -> Shapes: ...

    def _strange(self, names: Sequence[str]) -> ModelError:
        what = f"a tensor {min(names)}, which no {self.kind} head has" if names else f"no {self.kind} heads"
        return ModelError(f"{self._where} holds {what}.", f"Give a folder with {self.kind.lower()}_lm_head.pt.")


class MedusaFiles(HeadFiles):
    """Heads that do not see each other's guesses."""

    kind = "Medusa"
    out = "0.{layers}.weight"

    def _count(self, names: Iterable[str]) -> tuple[int, int]:
        found = {name: _MEDUSA.fullmatch(name) for name in names}
        strange = [name for name, match in found.items() if match is None]
        if strange or not found:
            raise self._strange(strange)
        places = [(int(match[1]), int(match[2])) for match in found.values() if match]
        return 1 + max(head for head, _ in places), max(layer for _, layer in places)

    def _shapes(self) -> Shapes:
        shapes: Shapes = {}
        for head in range(self.heads):
            for layer in range(self.layers):
                shapes[f"{head}.{layer}.linear.weight"] = (self.width, self.width)
                shapes[f"{head}.{layer}.linear.bias"] = (self.width,)
            shapes[f"{head}.{self.layers}.weight"] = (self.vocab, self.width)
        return shapes


class HydraFiles(HeadFiles):
    """Heads of plain layers that see the guesses before theirs."""

    kind = "Hydra"
    out = "hydra_lm_head.0.weight"

    @property
    def offset(self) -> int:
        """How many layers before the last one the state is taken from. Raises ModelError if it is no such number."""
        offset = self.config.get("hidden_state_offset", 0)
        if type(offset) is not int or offset < 0:
            raise ModelError(f"The config's hidden_state_offset {offset!r} is no count of layers.", "Correct it.")
        return offset

    def _count(self, names: Iterable[str]) -> tuple[int, int]:
        kind = self.config.get("hydra_head_arch") or "mlp"
        if kind != "mlp" or self.config.get("grounded_heads") is False:
            what = kind if kind != "mlp" else "mlp without grounded_heads"
            raise ModelError(
                f"{self._where} holds Hydra heads of the kind {what}, which is not read.", "Take mlp heads."
            )
        blocks = {name: _HYDRA.fullmatch(name) for name in names if _HYDRA_OUT.fullmatch(name) is None}
        strange = [name for name, match in blocks.items() if match is None]
        if strange or not blocks:
            raise self._strange(strange)
        places = [(int(match[1]), int(match[2])) for match in blocks.values() if match]
        return 1 + max(head for head, _ in places), 1 + max(layer for _, layer in places)

    def _shapes(self) -> Shapes:
        shapes: Shapes = {}
        for head in range(self.heads):
            for part in ("linear", "res_connection"):
                shapes[f"hydra_mlp.{head}.0.{part}.weight"] = (self.width, (head + 2) * self.width)
                shapes[f"hydra_mlp.{head}.0.{part}.bias"] = (self.width,)
            for layer in range(1, self.layers):
                shapes[f"hydra_mlp.{head}.{layer}.linear.weight"] = (self.width, self.width)
                shapes[f"hydra_mlp.{head}.{layer}.linear.bias"] = (self.width,)
            shapes[f"hydra_lm_head.{head}.weight"] = (self.vocab, self.width)
            shapes[f"hydra_lm_head.{head}.bias"] = (self.vocab,)
        return shapes


def open_heads(path: Path) -> HeadFiles:
    """The heads in a folder, Medusa's or Hydra's by the names of their tensors. Raises as `HeadFiles`."""
    source = _source(path)
    names = source.names()
    try:
        if any(name.startswith("hydra_") for name in names):
            return HydraFiles(source, path)
        return MedusaFiles(source, path, OWN if any(name.startswith(OWN) for name in names) else "")
    except ModelError:
        source.close()
        raise


def _source(path: Path) -> Source:
    """The file of a published name, safetensors before pickle, else the folder as a checkpoint."""
    ending = "safetensors" if any(path.glob("*.safetensors*")) else "pt"
    for name in (f"medusa_lm_head.{ending}", f"hydra_lm_head.{ending}"):
        if (path / name).is_file():
            return Single(path / name)
    return open_checkpoint(path)


def _held(file: Path) -> Any:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, ValueError, UnpicklingError, SafetensorError) as error:
        raise BrokenFileError(f"{file} cannot be read as a table of tensors.", AGAIN) from error
