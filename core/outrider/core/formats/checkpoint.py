"""One face for every model on disk: a folder of safetensors or a GGUF file, whole or split.

Tensors have their published names (`model.layers.0.self_attn.q_proj.weight`) and the config is a published config dict,
whatever the file calls them. Torch is imported when the first tensor is read, not before.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.model_info import ModelInfo
from outrider.core.formats.gguf.places import Part, Place
from outrider.core.formats.gguf.reader import AGAIN, PART, GGUFFile
from outrider.core.text.files import TokenizerFiles, fingerprint

from . import shards, sidecar
from .config import LAYERS, ConfigReader, text_config
from .gguf import names
from .layout import Layout, of_blocks
from .recommended import of_gguf
from .safetensors import SafetensorsCheckpoint, read_json

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model."

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .quantized import Grouped


class Checkpoint(Protocol):
    """A model on disk, opened and checked, with no weight read yet."""

    path: Path
    format: str  # gguf, safetensors
    config: dict[str, Any]
    generation: dict[str, Any]  # generation_config.json or {}
    nbytes: int  # of all weight files
    quantisation: str  # Q4_1, bf16, …: the kind most weights have

    def names(self) -> list[str]:
        """Published names of all tensors; a tied head is not among them."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises BrokenFileError if there is none of that name."""
        ...

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on the CPU in `dtype` (None: as stored, float32 for quantised blocks)."""
        ...

    def layout(self, name: str) -> Layout | None:
        """How `grouped` would give a matrix; None where it is stored plain, or more was done to it than codes can follow."""
        ...

    def grouped(self, name: str) -> Grouped | None:
        """A matrix as codes in groups, [o, i], experts one below the other; None where `layout` is, and where the parts say so.

        The same weights as `load`, but of `gate_up_proj` and `down_proj` in MXFP4, which `load` gives as [E, i, o].
        """
        ...

    def text(self) -> TokenizerFiles:
        """Raw material of the tokenizer and the chat template."""
        ...

    def close(self) -> None:
        """Let go of the files; tensors already loaded stay valid."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`: a folder of safetensors, a GGUF file or any part of one, or a folder with one GGUF.

    Raises ModelError, BrokenFileError.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelError(
            f"There is no file or folder {path}.", "Check the path given with --model or --drafter-weights."
        )
    if path.is_file():
        if path.name.startswith(ADAPTER):
            raise _adapter(path)
        if path.suffix.lower() in (".bin", ".pt", ".pth", ".safetensors"):
            raise ModelError(f"{path} is not a model by itself.", "Give its folder, the one with config.json.")
        return GGUFCheckpoint(path)
    weights = [file.suffix for file in path.glob("*.safetensors*") if not file.name.startswith(ADAPTER)]
    packed = ".safetensors" not in weights and any(path.glob("*.gguf"))  # an index alone does not hide a GGUF
    if (path / "config.json").exists() and weights and not packed:
        return SafetensorsCheckpoint(path)
    if (path / ADAPTER_CONFIG).exists():
        raise _adapter(path)
    return GGUFCheckpoint(_only_gguf(path))


def _adapter(path: Path) -> ModelError:
    """What to do with an adapter, which its config says the model of."""
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / ADAPTER_CONFIG) if (folder / ADAPTER_CONFIG).exists() else {}
    base = config.get("base_model_name_or_path")
    of = f" for {base}" if isinstance(base, str) and base else ""
    return ModelError(f"{path} is {sidecar.TITLES['adapter']}{of}, not a model.", sidecar.HINTS["adapter"])


def describe(path: Path) -> ModelInfo:
    """What is known of a model without reading a weight or importing torch. Raises as `open_checkpoint`."""
    checkpoint = open_checkpoint(path)
    try:
        return info(checkpoint)
    finally:
        checkpoint.close()


def info(checkpoint: Checkpoint) -> ModelInfo:
    """The summary of an open checkpoint that drafting methods see."""
    config = checkpoint.config
    read = ConfigReader({**config, **text_config(config)}, f"{checkpoint.path}: the config", AGAIN, BrokenFileError)
    return ModelInfo(
        name=_title(checkpoint.path) if checkpoint.format == "gguf" else checkpoint.path.name,
        architecture=str(config.get("model_type", "")),
        vocab=read.integer("vocab_size"),
        width=read.integer("hidden_size"),
        layers=_layers(read),
        tokenizer=fingerprint(checkpoint.text()),
        config=config,
        path=str(checkpoint.path),
        tensors=frozenset(checkpoint.names()),
    )


def _layers(read: ConfigReader) -> int:
    """How many there are; where the config names the kind of each, it need not count them."""
    kinds = read.first("layers_block_type", "hybrid_override_pattern")
    if read.has("num_hidden_layers") or not read.has(kinds):
        return read.integer("num_hidden_layers", 1, LAYERS)
    return read.length(kinds)


def _title(path: Path) -> str:
    """The name of a GGUF file, without the number of a part."""
    part = PART.fullmatch(path.name)
    return part[1] if part else path.stem


def _only_gguf(folder: Path) -> Path:
    """The one model of a folder, of a split one the first part; files that go beside a model are left aside."""
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())
    kinds = {file: sidecar.of_file(file) for file in found}
    models = [file for file in found if not kinds[file]] or [file for file in found if kinds[file] == "drafter"]
    sets = {part.group(1, 3) if (part := PART.fullmatch(file.name)) else (file.name,) for file in models}
    if len(sets) == 1:
        return models[0]
    if models:
        listed = shards.few([file.name for file in models], 4)
        raise ModelError(f"{folder} holds {len(models)} GGUF files ({listed}).", "Name one of them with --model.")
    if found:
        kind = kinds[found[0]]
        raise ModelError(f"{folder} holds no model: {found[0].name} is {sidecar.TITLES[kind]}.", sidecar.HINTS[kind])
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} holds pickled weights only, and those can run code when opened.",
            "Take the safetensors or GGUF form of this model.",
        )
    has = "config.json but no weights" if (folder / "config.json").exists() else "no model"
    raise ModelError(f"{folder} holds {has}.", "A model folder has config.json and *.safetensors, or one .gguf file.")


class GGUFCheckpoint:
    """A GGUF file, or all parts of a split one, as a checkpoint."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.path = self._file.path
        try:
            _refuse_beside(self._file)
            kind = names.architecture(self._file)
            self.config = names.config(self._file, kind)
            self._places = names.published(self._file, kind, self.config)
        except ModelError:
            self._file.close()
            raise
        self.generation = of_gguf(self._file.metadata)
        self.nbytes = self._file.nbytes
        self.quantisation = _common_kind(self._file)

    def names(self) -> list[str]:
        """Published names in file order."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape with the slowest axis first."""
        return self._place(name).shape

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of its own memory, expanded, with all that the converter did to it undone."""
        import torch

        place = self._place(name)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        parts = [self._rows(part, wide if place.value else dtype) for part in place.parts]
        if place.merge:
            return place.merge(place.shape, *parts)
        weights = torch.cat(parts) if len(parts) > 1 else parts[0]
        if place.order:
            weights = weights[place.order(len(weights))]
        if place.columns:
            weights = weights[:, place.columns(weights.shape[1])]
        if place.turned:
            weights = weights.view(place.shape[0], -1, weights.shape[1]).transpose(1, 2)
        if place.value:
            weights = place.value(weights).to(dtype or wide)
            if not weights.isfinite().all():
                raise BrokenFileError(f"{self.path}: {name} holds numbers that cannot be.", AGAIN)
        return weights.reshape(place.shape)

    def layout(self, name: str) -> Layout | None:
        """The common layout of all parts."""
        place = self._place(name)
        tensors = [self._file.tensors[part.stored] for part in place.parts]
        if place.value or place.merge or len({(tensor.kind, tensor.shape[-1]) for tensor in tensors}) > 1:
            return None
        rows = sum((part.last or tensor.rows) - part.first for part, tensor in zip(place.parts, tensors, strict=True))
        return of_blocks(tensors[0].kind, rows, tensors[0].shape[-1])

    def grouped(self, name: str) -> Grouped | None:
        """The codes of a quantised matrix, its rows and whole groups of its columns moved where they belong."""
        import torch

        from .quantized import concat

        if self.layout(name) is None:
            return None
        place = self._place(name)
        parts = [made for part in place.parts if (made := self._codes(part)) is not None]
        whole = concat(parts) if len(parts) == len(place.parts) else None
        if whole is not None and place.order:
            whole = whole[torch.tensor(place.order(whole.shape[0]))]
        if whole is not None and place.columns:
            whole = whole.moved(torch.tensor(place.columns(whole.shape[1])))
        return whole

    def _codes(self, part: Part) -> Grouped | None:
        """Rows of a stored tensor as they are."""
        from . import quants

        tensor = self._file.tensors[part.stored]
        with self._file.raw(tensor, part.first, part.last) as raw:
            return quants.grouped(raw, tensor.kind, tensor.shape[-1])

    def _rows(self, part: Part, dtype: torch.dtype | None) -> Tensor:
        """Rows of a stored tensor, expanded, [rows, columns]."""
        from .quants import expand

        tensor = self._file.tensors[part.stored]
        with self._file.raw(tensor, part.first, part.last) as raw:
            weights = expand(raw, tensor.kind, dtype)
        return weights.view(-1, tensor.shape[-1] if len(tensor.shape) > 1 else 1)

    def text(self) -> TokenizerFiles:
        """The `tokenizer.*` keys of the file."""
        metadata = {key: value for key, value in self._file.metadata.items() if key.startswith("tokenizer.")}
        template = metadata.get("tokenizer.chat_template")
        whole = metadata.get("tokenizer.huggingface.json")
        return TokenizerFiles(
            origin=str(self.path),
            tokenizer=whole.encode() if isinstance(whole, str) and whole else None,
            template=template if isinstance(template, str) else None,
            metadata=metadata,
            config=self.config,
        )

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise BrokenFileError(f"{self.path} has no tensor for {name}.", AGAIN)
        return self._places[name]


def _refuse_beside(file: GGUFFile) -> None:
    """Raises ModelError for a file that its header tells to go beside a model."""
    kind = sidecar.by_header(file.metadata)
    if kind:
        raise ModelError(f"{file.path} is {sidecar.TITLES[kind]}, not a model.", sidecar.HINTS[kind])


def _common_kind(file: GGUFFile) -> str:
    weights: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            weights[tensor.kind] += tensor.nbytes
    kind = weights.most_common(1)[0][0] if weights else "F32"
    return {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}.get(kind, kind)
