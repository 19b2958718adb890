"""The files of a drafter: opened under its own names, its settings, and the layers that these describe.

Importing this module loads no torch; reading a tensor does, and so does opening a pickle.

Letters: `V` words of the target, `Vd` of them that a reduced head knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.model_info import ModelInfo
from outrider.core.formats.checkpoint import Checkpoint, info, open_checkpoint
from outrider.core.formats.config import AGAIN, LAYERS, ConfigReader, text_config
from outrider.core.formats.pickled import read_pickled
from outrider.core.formats.safetensors import read_file, read_json, read_shapes
from outrider.core.formats.tensor_checkpoint import TensorCheckpoint
from outrider.core.model.families import common, read_spec
from outrider.core.model.families.spec import (
    AttentionSpec,
    DenseSpec,
    ExpertsSpec,
    LatentSpec,
    LayerSpec,
    TargetSpec,
)
from outrider.core.text.files import TokenizerFiles, fingerprint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.core.formats.layout import Layout
    from outrider.core.formats.quantized import Grouped

Shapes = dict[str, tuple[int, ...]]
_TELLING = ("q_proj.bias", "o_proj.bias", "q_norm.weight")  # tensors that show what attention has


class DraftConfig(ConfigReader):
    """The settings of a drafter. All readings raise ModelError."""

    @classmethod
    def of_model(cls, model: ModelInfo, **more: Any) -> Self:
        """The settings of a target's text model, with others in their place."""
        return cls({**text_config(model.config), **more}, f"The config of {model.name}")

    def layer_number(self, key: str, low: int = 1, default: int | None = None) -> int:
        """A number of layers, or of one of them."""
        return self.integer(key, low, LAYERS, default)

    def layer_numbers(self, key: str, low: int = -LAYERS) -> list[int]:
        """Numbers of layers; those below 0 count from the end."""
        return self.integers(key, low, LAYERS)

    def layer_kinds(self) -> list[str]:
        """`full_attention` or `sliding_attention` for each layer."""
        return self.words("layer_types", common.PLAIN)

    def optional_factor(self, key: str) -> float | None:
        """A factor, or None where there is none."""
        return common.optional_factor(self, key)

    def whole_heads(self) -> Self:
        """The same settings with a rope that turns whole heads, whatever the target's turns."""
        settings = self.given(partial_rotary_factor=None)
        if settings.has("rope_parameters"):
            turns = settings.table("rope_parameters")
            known = turns.values(*(key for key in turns.given_keys() if key != "partial_rotary_factor"))
            settings = settings.given(rope_parameters=known)
        return settings

    def layers(
        self,
        windows: Sequence[int],
        holds: Collection[str] | None = None,
        *,
        vocab: int | None = None,
        reads: int = 0,
        interleaved: bool = False,
        **more: Any,
    ) -> DraftSpec:
        """Plain attention and a gated MLP for each of `windows`; 0 sees all. `more` changes the attention.

        `holds`: names of tensors, which show where biases and norms of heads are; without them the settings give the biases.
        `interleaved`: rope pairs neighbours. `reads`: columns that the first layer reads, as `AttentionSpec` has them.
        """
        if holds is None:
            settings, mlp = common.biased(self), self.flag("mlp_bias")
        else:
            bias, output, norm = (f"layers.0.self_attn.{name}" in holds for name in _TELLING)
            settings = {"bias": bias, "output_bias": output, "qk_norm": "head" if norm else ""}
            mlp = "layers.0.mlp.up_proj.bias" in holds
        dense = common.dense(self, bias=mlp)
        settings |= {"rope": common.rope(self, common.head_dim(self), interleaved=interleaved), **more}
        mixers = [common.attention(self, window=window, **settings) for window in windows]
        mixers[0] = replace(mixers[0], reads=reads)
        given = {} if vocab is None else {"vocab": vocab}
        spec = common.target(self, "drafter", [LayerSpec(mixer, dense) for mixer in mixers], **given)
        return DraftSpec(**{each.name: getattr(spec, each.name) for each in fields(spec)})


@dataclass(frozen=True, slots=True)
class DraftSpec(TargetSpec):
    """Layers of plain attention and gated MLPs, under the usual names."""

    @property
    def mixer(self) -> AttentionSpec:
        """The attention of the first layer."""
        mixer = self.layers[0].mixer
        assert isinstance(mixer, AttentionSpec)
        return mixer

    def shapes(self) -> Shapes:
        """Every tensor of the layers, by its name below `layers.`."""
        return {
            f"layers.{index}.{name}": size
            for index, layer in enumerate(self.layers)
            for name, size in self._shapes(layer).items()
        }

    def _shapes(self, layer: LayerSpec) -> Shapes:
        mixer, channel, d = layer.mixer, layer.channel, self.width
        assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
        q, kv, reads, wide = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim, mixer.reads, channel.width
        rows = {"q": q, "k": kv, "v": kv}
        shapes: Shapes = {"self_attn.o_proj.weight": (d, q), "mlp.down_proj.weight": (d, wide)}
        shapes |= {f"self_attn.{name}_proj.weight": (size, reads or d) for name, size in rows.items()}
        shapes |= {f"mlp.{name}_proj.weight": (wide, d) for name in ("gate", "up")}
        shapes |= {f"{self.names.before_channel}.weight": (d,)}
        shapes |= {} if reads else {f"{self.names.before_mixer}.weight": (d,)}
        shapes |= {f"self_attn.{name}_norm.weight": (mixer.head_dim,) for name in "qk" if mixer.qk_norm}
        biases = (rows if mixer.bias else {}) | ({"o": d} if mixer.output_bias else {})
        return shapes | {f"self_attn.{name}_proj.bias": (size,) for name, size in biases.items()}


def read_settings(file: Path, again: str = AGAIN) -> DraftConfig:
    """The settings in a JSON file. Raises ModelError; its readings raise BrokenFileError."""
    return DraftConfig(read_json(file), str(file), again, BrokenFileError)


def further_layers(model: TargetSpec | Mapping[str, Any], first: int, count: int) -> TargetSpec:
    """A model's spec, or that of its config, with `count` layers from `first` on that are like its last one of attention.

    Raises ModelError.
    """
    spec = model if isinstance(model, TargetSpec) else read_spec(model)
    like = [layer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec | LatentSpec)]
    if not like:
        raise ModelError("This model has no attention layer to shape its prediction layer by.", "Take another drafter.")
    return replace(spec, layers=(*spec.layers[:first], *like[-1:] * count))


def layer_size(spec: TargetSpec, index: int) -> int:
    """How many numbers the matrices of a layer hold."""
    width, count = spec.width, 0
    mixer, channel = spec.layers[index].mixer, spec.layers[index].channel
    if isinstance(mixer, AttentionSpec):
        count += width * mixer.head_dim * ((3 if mixer.gate else 2) * mixer.heads + 2 * mixer.kv_heads)
    elif isinstance(mixer, LatentSpec):
        count += width * (mixer.kv_rank + mixer.rope_dim + (mixer.q_rank or 0) + mixer.heads * mixer.value_dim)
        count += (mixer.q_rank or width) * mixer.heads * (mixer.nope_dim + mixer.rope_dim)
        count += mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim)
    if isinstance(channel, DenseSpec):
        count += 3 * width * channel.width
    elif isinstance(channel, ExpertsSpec):
        count += width * (3 * channel.experts * channel.width + 3 * channel.shared + channel.experts)
        count += width if channel.shared_gate else 0
    return count


# ------------------------------------------------------------------------------------------------ files


class DraftFiles:
    """A `Checkpoint` under a drafter's own names, whatever container it is in. A context manager: leaving it closes the files."""

    def __init__(
        self, inner: Checkpoint, names: Mapping[str, str], again: str = AGAIN, *, finite: bool = False
    ) -> None:
        """`names`: those that readers ask for, and the stored ones; others are left out. `again`: what to do about a file that is
        broken, for messages. `finite`: every weight is looked at when it is loaded."""
        self._inner, self._names, self._again, self._finite = inner, names, again, finite
        self.path, self.format, self.config, self.generation = inner.path, inner.format, inner.config, inner.generation
        self.nbytes, self.quantisation, self.name = inner.nbytes, inner.quantisation, inner.path.name
        self.holds = frozenset(names)
        self.settings = DraftConfig(inner.config, f"{self.name}: the config", again)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        self._inner.close()

    def names(self) -> list[str]:
        """The names that readers ask for."""
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises BrokenFileError if there is none of that name."""
        return self._inner.shape(self._stored(name))

    def size(self, name: str) -> tuple[int, ...]:
        """The same, () if there is none of that name."""
        return self.shape(name) if name in self.holds else ()

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """As `Checkpoint`. Raises BrokenFileError for numbers that are none, where weights have to be finite."""
        if not self._finite:
            return self._inner.load(self._stored(name), dtype)
        from outrider.core.formats.stored import as_weights

        tensor, origin = self._inner.load(self._stored(name)), f"{self.path}: {name}"
        if tensor.is_floating_point() and not bool(as_weights(tensor, None, origin).isfinite().all()):
            raise BrokenFileError(f"{origin} holds something else than finite numbers.", self._again)
        return tensor if dtype is None else as_weights(tensor, dtype, origin)

    def layout(self, name: str) -> Layout | None:
        """As `Checkpoint`."""
        return self._inner.layout(self._stored(name))

    def grouped(self, name: str) -> Grouped | None:
        """As `Checkpoint`."""
        return self._inner.grouped(self._stored(name))

    def text(self) -> TokenizerFiles:
        """As `Checkpoint`; a tokenizer beside a single file counts too."""
        text, beside = self._inner.text(), self.path / "tokenizer.json"
        alone = text.tokenizer is None and beside.is_file()
        return replace(text, tokenizer=beside.read_bytes()) if alone else text

    def _stored(self, name: str) -> str:
        if name not in self._names:
            raise BrokenFileError(f"{self.path} has no tensor {name}.", AGAIN)
        return self._names[name]

    def words(self, vocab: int, prefix: str = "") -> Tensor:
        """The target's id [Vd] of every word of a reduced head, by `d2t`; `vocab`: V. Raises BrokenFileError for a bad table."""
        from outrider.core.formats.stored import words

        marks = self.load(f"{prefix}t2d") if f"{prefix}t2d" in self.holds else None
        return words(self.load(f"{prefix}d2t"), marks, vocab, self.name)

    def below(self, prefix: str) -> DraftFiles:
        """What begins with a prefix, under the names after it."""
        names = {name.removeprefix(prefix): name for name in self.holds if name.startswith(prefix)}
        return DraftFiles(self, names, self._again)

    def model(self) -> ModelInfo:
        """What they are if they are a whole model. Raises BrokenFileError."""
        return info(self)

    def stranger(self, model: ModelInfo) -> str | None:
        """Whether a tokenizer came along that is another than a target's, as the end of a sentence."""
        ours = model.tokenizer
        other = ours and self.tokenizer(model.vocab) not in ("", ours)
        return f"{self.name} has another tokenizer than {model.name}" if other else None

    def tokenizer(self, vocab: int) -> str:
        """Fingerprint of the tokenizer that came along, "" if none did; `vocab`: V, where the config does not say."""
        text = self.text()
        return fingerprint(replace(text, config={"vocab_size": vocab, **text.config}))


def open_draft(
    path: Path,
    *published: str,
    names: Callable[[str], str | None] | None = None,
    again: str = AGAIN,
    finite: bool = False,
) -> DraftFiles:
    """The drafter at `path`: a folder of safetensors, a GGUF file, or one of the `published` files, a pickle only where there are
    no safetensors. Raises ModelError, BrokenFileError.

    `names`: what the drafter calls a stored tensor, None for one that is not read. `again`, `finite`: as `DraftFiles`.
    """
    plain = any(path.glob("*.safetensors"))
    candidates = (path / name for name in published if name.endswith(".safetensors") or not plain)
    file = next((file for file in candidates if file.is_file()), None)
    inner = open_checkpoint(path) if file is None else _of_file(path, file)
    called = {(name if names is None else names(name)): name for name in inner.names()}
    return DraftFiles(
        inner, {ours: theirs for ours, theirs in called.items() if ours is not None}, again, finite=finite
    )


def _of_file(path: Path, file: Path) -> TensorCheckpoint:
    config = read_json(path / "config.json") if (path / "config.json").exists() else {}
    if file.suffix == ".safetensors":
        return TensorCheckpoint(path, partial(read_file, file), config, read_shapes(file))
    return TensorCheckpoint(path, read_pickled(file), config)
