"""One face for every model on disk: a folder of safetensors or a GGUF file.

Tensors have their published names (`model.layers.0.self_attn.q_proj.weight`) and the config is a published config dict,
whatever the file calls them. Torch is imported when the first tensor is read, not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outrider.core.drafting import ModelInfo
from outrider.core.errors import BrokenFileError, ModelError
from outrider.core.text.files import TokenizerFiles, fingerprint
from outrider.core.weights import names
from outrider.core.weights.gguf import AGAIN, GGUFFile

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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

    def text(self) -> TokenizerFiles:
        """Raw material of the tokenizer and the chat template."""
        ...

    def close(self) -> None:
        """Let go of the files; tensors already loaded stay valid."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`: a folder of safetensors, a GGUF file, or a folder with one GGUF.

    Raises ModelError, BrokenFileError.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelError(f"There is no file or folder {path}.", "Check the path given with --model.")
    if path.is_file():
        if path.suffix.lower() in (".bin", ".pt", ".pth", ".safetensors"):
            raise ModelError(f"{path} is not a model by itself.", "Give its folder, the one with config.json.")
        return GGUFCheckpoint(path)
    if (path / "config.json").exists() and any(path.glob("*.safetensors*")):
        from outrider.core.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    return GGUFCheckpoint(_only_gguf(path))


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
    inner = config.get("text_config")
    settings: Mapping[str, Any] = {**config, **inner} if isinstance(inner, dict) else config
    kinds = settings.get("layers_block_type") or settings.get("hybrid_override_pattern") or ()  # one for each layer
    sizes = {}
    for key in ("vocab_size", "hidden_size", "num_hidden_layers"):
        value = settings.get(key, len(kinds) if key == "num_hidden_layers" else None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BrokenFileError(f"{checkpoint.path}: the config gives no usable {key} ({value!r}).", AGAIN)
        sizes[key] = value
    return ModelInfo(
        name=checkpoint.path.stem if checkpoint.format == "gguf" else checkpoint.path.name,
        architecture=str(config.get("model_type", "")),
        vocab=sizes["vocab_size"],
        width=sizes["hidden_size"],
        layers=sizes["num_hidden_layers"],
        tokenizer=fingerprint(checkpoint.text()),
        config=config,
    )


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(file.name for file in found[:4])
        raise ModelError(f"{folder} holds {len(found)} GGUF files ({listed}).", "Name one of them with --model.")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} holds pickled weights only, and those can run code when opened.",
            "Take the safetensors or GGUF form of this model.",
        )
    has = "config.json but no weights" if (folder / "config.json").exists() else "no model"
    raise ModelError(f"{folder} holds {has}.", "A model folder has config.json and *.safetensors, or one .gguf file.")


class GGUFCheckpoint:
    """A GGUF file as a checkpoint."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        try:
            self._kind = names.architecture(self._file)
            self._names = names.published_names(self._file, self._kind)
            self.config = names.config(self._file, self._kind)
        except ModelError:
            self._file.close()
            raise
        self.generation: dict[str, Any] = {}
        self.nbytes = self._file.nbytes
        self.quantisation = _common_kind(self._file)

    def names(self) -> list[str]:
        """Published names in file order."""
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape with the slowest axis first."""
        return self._file.tensors[self._stored(name)].shape

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of its own memory, expanded, q and k rows in halves."""
        from outrider.core.weights.quants import expand

        tensor = self._file.tensors[self._stored(name)]
        with self._file.raw(tensor) as raw:
            weights = expand(raw, tensor.kind, dtype).view(tensor.shape)
        return self._in_halves(name, weights)

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

    def _stored(self, name: str) -> str:
        if name not in self._names:
            raise BrokenFileError(f"{self.path} has no tensor for {name}.", AGAIN)
        return self._names[name]

    def _in_halves(self, name: str, weights: Tensor) -> Tensor:
        """Rows of each head from pairs (0, h, 1, h + 1, …) back to halves (0, 1, …, h, h + 1, …)."""
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if not self._kind.interleaved or heads is None:
            return weights
        count = self.config[heads]
        if weights.shape[0] % (2 * count):
            raise BrokenFileError(f"{self.path}: {weights.shape[0]} rows of {name} are not {count} heads.", AGAIN)
        pairs = weights.view(count, weights.shape[0] // count // 2, 2, *weights.shape[1:])
        return pairs.transpose(1, 2).reshape(weights.shape)


def _common_kind(file: GGUFFile) -> str:
    weights: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            weights[tensor.kind] += tensor.nbytes
    kind = weights.most_common(1)[0][0] if weights else "F32"
    return {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}.get(kind, kind)
