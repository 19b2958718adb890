"""The files of an EAGLE draft, whoever wrote them: what is there, what it means, whether it fits a target. Loads no torch
unless the weights are pickled.

Containers: EAGLE-1 and EAGLE-3 as their authors publish them, SpecForge, speculators, ModelOpt (and DeepSpec, which only
names its states in a way of its own). What a file holds decides, not the name it gives to its architecture.

Letters: `L` layers of the target, `V` its vocabulary, `Vd` words that a reduced head knows, `d` width of the draft.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.core.drafting import ModelInfo
from outrider.core.errors import BrokenFileError, ModelError
from outrider.core.target.families import common
from outrider.core.target.spec import LayerSpec, TargetSpec
from outrider.core.text.files import TokenizerFiles, fingerprint
from outrider.core.weights.checkpoint import Checkpoint, open_checkpoint
from outrider.core.weights.safetensors import read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.core.weights.grouped import Grouped
    from outrider.core.weights.layout import Layout

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
OLDER = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
OUTSIDE = ("lm_head.weight", "d2t", "t2d")  # what `core.target.reader` does not look for below `model.`
PICKLE = "pytorch_model.bin"
# what broken pickles raise
BAD_PICKLE = (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError, AssertionError)
AGAIN = "Download the draft again, whole."
OTHER = "Take a draft that was trained for this model."

LAYER = "layers.0."
MIXER = {f"{LAYER}self_attn.{name}_proj.weight" for name in "qkvo"}
CHANNEL = {f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
ALWAYS = MIXER | CHANNEL | {f"{LAYER}post_attention_layernorm.weight"}
BIASES = {name.replace(".weight", ".bias") for name in MIXER | CHANNEL | {"fc.weight"}}
HEADS = {f"{LAYER}self_attn.{name}_norm.weight" for name in "qk"}
ENDS = {"embed_tokens.weight", *OUTSIDE}
HIDDEN_NORM, EMBED_NORM = f"{LAYER}hidden_norm.weight", f"{LAYER}input_layernorm.weight"


class Source:
    """The tensors of a draft as a `core.weights.checkpoint.Checkpoint`, under one set of names.

    Raises ModelError, BrokenFileError if the folder holds nothing that can be read.
    """

    format = "eagle"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inner: Checkpoint | None = None
        self._plain: dict[str, Tensor] = {}
        if (path / PICKLE).exists() and not any(path.glob("*.safetensors")):
            self.config = read_json(path / "config.json")
            self._plain = _unpickled(path / PICKLE)
            stored, self.nbytes = list(self._plain), (path / PICKLE).stat().st_size
            self.quantisation = "plain"
        else:
            self._inner = open_checkpoint(path)
            self.config, stored = self._inner.config, self._inner.names()
            self.nbytes, self.quantisation = self._inner.nbytes, self._inner.quantisation
        self.generation: dict[str, Any] = {}
        self._stored = {_published(name): name for name in stored if not name.endswith("rotary_emb.inv_freq")}

    def names(self) -> list[str]:
        """One name for a thing, whatever the container calls it; all but head and tables below `model.`."""
        return list(self._stored)

    def holds(self) -> set[str]:
        """The same names without `model.`."""
        return {name.removeprefix("model.") for name in self._stored}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises BrokenFileError if there is none of that name."""
        stored = self._name(name)
        return self._inner.shape(stored) if self._inner else tuple(self._plain[stored].shape)

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on the CPU. Raises BrokenFileError where whole numbers stand for weights."""
        stored = self._name(name)
        if self._inner:
            return self._inner.load(stored, dtype)
        tensor = self._plain[stored]
        if dtype is not None and dtype.is_floating_point and not tensor.is_floating_point():
            raise BrokenFileError(f"{self.path}: {stored} holds whole numbers and no scale for them.", AGAIN)
        return tensor if dtype is None else tensor.to(dtype)

    def layout(self, name: str) -> Layout | None:
        """How `grouped` would give a matrix."""
        return self._inner.layout(self._name(name)) if self._inner else None

    def grouped(self, name: str) -> Grouped | None:
        """A matrix as it is quantised."""
        return self._inner.grouped(self._name(name)) if self._inner else None

    def text(self) -> TokenizerFiles:
        """The tokenizer beside the draft; most have none."""
        return self._inner.text() if self._inner else TokenizerFiles(origin=str(self.path))

    def close(self) -> None:
        """Let go of the files."""
        self._plain.clear()
        if self._inner:
            self._inner.close()

    def _name(self, name: str) -> str:
        if name not in self._stored:
            raise BrokenFileError(f"{self.path} has no tensor {name}.", AGAIN)
        return self._stored[name]


def _published(stored: str) -> str:
    name = stored
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in OLDER.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name if name in OUTSIDE else f"model.{name}"


def _unpickled(file: Path) -> dict[str, Tensor]:
    import pickle

    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except (*BAD_PICKLE, pickle.UnpicklingError) as error:
        raise BrokenFileError(f"{file} cannot be read as weights.", AGAIN) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise BrokenFileError(f"{file} holds something else than tensors.", AGAIN)
    return found


@dataclass(frozen=True, slots=True)
class Container:
    """What the files of a draft say, before it is known which target it meets."""

    name: str
    version: int  # 1: one state behind the final norm, mixed with the embedding; 3: states of several layers
    spec: TargetSpec  # of its one layer; `vocab` is the target's
    words: int  # Vd
    fused: int  # columns of `fc` that states take; 0: the one state is taken as it is
    norm_before_residual: bool  # the residual takes the normed state
    norm_output: bool  # the normed output is fed back
    keeps_embedding: bool  # its embedding was trained with it
    told: tuple[int, ...]  # numbers of layers in the config
    telling: str  # "", "boundary", "output", "nested": how these count
    layers: int | None  # that the target must have, if the config tells
    tokenizer: str  # fingerprint, "" if there is none

    def misfit(self, model: ModelInfo) -> str | None:
        """Why it cannot draft for `model`, as the end of a sentence; None if it can."""
        spec, name = self.spec, model.name
        if spec.vocab != model.vocab:
            return f"{self.name} knows {spec.vocab} tokens and {name} has {model.vocab}"
        if self.tokenizer and model.tokenizer and self.tokenizer != model.tokenizer:
            return f"{self.name} has another tokenizer than {name}"
        wide = self.fused or spec.width
        if wide % model.width or (not self.fused and wide != model.width):
            return f"{self.name} reads states {wide} wide and those of {name} are {model.width}"
        if self.layers not in (None, model.layers):
            return f"{self.name} is made for {self.layers} layers and {name} has {model.layers}"
        count = self.count(model.width)
        if self.version == 3 and self.told and len(self.told) != count:
            return f"{self.name} names {len(self.told)} layers and reads {count} states"
        if not self.told and count not in (1, 3):
            return f"{self.name} reads {count} states and does not say which"
        if not all(0 <= state <= model.layers for state in self.states(model)):
            return f"{self.name} reads states of layers that {name} with its {model.layers} does not have"
        return None

    def count(self, width: int) -> int:
        """States that it reads of a target of this width."""
        return self.fused // width if self.fused else 1

    def states(self, model: ModelInfo) -> tuple[int, ...]:
        """Numbers of the states that it reads, as `drafting.Needs` counts them, in ascending order."""
        last = model.layers
        if self.normed(model.width):
            return (last,)
        if not self.told:
            return default_states(last)
        told = tuple(sorted(self.told))
        output = self.telling == "output" or (self.telling == "nested" and counts_outputs(told, last))
        return tuple(number + 1 for number in told) if output else told

    def normed(self, width: int) -> bool:
        """Whether it reads one state, the last, behind the target's final norm."""
        return self.version == 1 or (not self.told and self.count(width) == 1)


def default_states(layers: int) -> tuple[int, ...]:
    """The three states of an EAGLE-3 whose config names none."""
    return 2, layers // 2, layers - 3


def counts_outputs(told: Sequence[int], layers: int) -> bool:
    """Whether the numbers nested in `eagle_config` mean outputs of layers (L is state L + 1), or states as they are.

    The writers of these files do not agree, and the file does not say; the order of these rules decides.
    """
    if max(told) == layers:
        return False
    if told[0] == 1:
        return True
    return tuple(told) != default_states(layers)


def read(source: Source) -> Container:
    """What the files say. Raises ModelError where they contradict themselves, lack something, or are no EAGLE draft."""
    config, holds, name = source.config, source.holds(), source.path.name
    nested = "speculators_model_type" in config
    block = config.get("transformer_layer_config") if nested else config
    if not isinstance(block, Mapping):
        raise ModelError(f"{name}: the config does not describe a layer.", AGAIN)
    version = 3 if HIDDEN_NORM in holds else 1
    _complete(name, version, holds, config)
    spec = _spec(name, block, holds)
    fused = source.shape("model.fc.weight")[-1] if "fc.weight" in holds else 0
    words = source.shape("lm_head.weight")[0] if "lm_head.weight" in holds else spec.vocab
    _check_tables(source, holds, words, spec.vocab)
    told, telling = _told(name, config)
    layers = config.get("num_target_layers")
    return Container(
        name=name,
        version=version,
        spec=spec,
        words=words,
        fused=fused if version == 3 else 0,
        # speculators writes the key into every file, so one without it is older than the key, when the answer was yes
        norm_before_residual=bool(config.get("norm_before_residual", nested)),
        norm_output=bool(config.get("norm_output")) and (nested or "fc_norm.0.weight" in holds),
        keeps_embedding=bool(config.get("embed_requires_grad")),
        told=told,
        telling=telling,
        layers=layers if isinstance(layers, int) else None,
        tokenizer=fingerprint(source.text()),
    )


def _complete(name: str, version: int, holds: set[str], config: Mapping[str, Any]) -> None:
    """Refuse what lacks a tensor or has one that is not known here."""
    if "mask_hidden" in holds:
        raise ModelError(f"{name} is a parallel EAGLE draft, which is not run here.", "Take an EAGLE-3 draft.")
    settings = _nested(config)
    if version == 1:
        needed, allowed = {"fc.weight"}, {"lm_head.weight"}
    else:
        needed, allowed = {HIDDEN_NORM, EMBED_NORM, "norm.weight", "fc.weight"}, {"input_norm.weight", *HEADS}
        allowed |= {part for part in holds if part.startswith("fc_norm.")}
        for key, part in (
            ("use_last_layernorm", "norm.weight"),
            ("use_input_layernorm_in_first_layer", EMBED_NORM),
            ("use_aux_hidden_state", "fc.weight"),
        ):
            if settings.get(key) is False:
                needed.discard(part)
                allowed.add(part)
    missing = sorted((ALWAYS | needed) - holds)
    extra = sorted(holds - ALWAYS - needed - allowed - BIASES - ENDS)
    strange = [part for part in extra if not part.startswith("layers.1.")]
    if strange:
        raise ModelError(f"{name} holds {strange[0]}, which no EAGLE-{version} draft has.", OTHER)
    if extra:
        raise ModelError(f"{name} has more than one layer, which no EAGLE draft that is run here has.", OTHER)
    if missing:
        raise ModelError(f"{name} has no tensor {missing[0]}.", AGAIN)


def _spec(name: str, block: Mapping[str, Any], holds: set[str]) -> TargetSpec:
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        value = block.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: the config gives no usable {key} ({value!r}).", AGAIN)
    if "sliding_attention" in (block.get("layer_types") or ()):
        raise ModelError(f"{name} has a sliding window, which no EAGLE draft that is run here has.", OTHER)
    at = f"{LAYER}self_attn."
    normed = f"{at}q_norm.weight" in holds
    try:
        mixer = common.attention(
            block,
            bias=f"{at}q_proj.bias" in holds,
            output_bias=f"{at}o_proj.bias" in holds,
            qk_norm="head" if normed else "",
        )
        if mixer.rope is not None and mixer.rope.width != mixer.head_dim:
            raise ModelError(
                f"{name} turns a part of each head only, which no EAGLE draft that is run here does.", OTHER
            )
        channel = common.dense(block, bias=f"{LAYER}mlp.up_proj.bias" in holds)
        return common.target(block, "eagle", [LayerSpec(mixer, channel)])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{name}: the config cannot be used ({error}).", AGAIN) from error


def _check_tables(source: Source, holds: set[str], words: int, vocab: int) -> None:
    """A reduced head needs the table that names its words, of the right length."""
    name = source.path.name
    if words != vocab and "d2t" not in holds:
        raise ModelError(f"{name} has a head of {words} words and no table d2t that names them.", AGAIN)
    for table, rows in (("d2t", words), ("t2d", vocab)):
        if table in holds and source.shape(table) != (rows,):
            raise ModelError(f"{name}: {table} has shape {source.shape(table)} where {rows} entries belong.", AGAIN)


def _told(name: str, config: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    """The layers that a config names, and how it counts them; an empty list is none."""
    found: object = None
    telling = ""
    for key in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"):
        found, telling = found or config.get(key), "boundary"
    if not found:
        found, telling = config.get("target_layer_ids"), "output"
    if not found:
        found, telling = _nested(config).get("eagle_aux_hidden_state_layer_ids"), "nested"
    if not found or _nested(config).get("use_aux_hidden_state") is False:
        return (), ""
    if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
        raise ModelError(f"{name}: the config names layers in a way that makes no sense ({found!r}).", AGAIN)
    return tuple(found), telling


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("eagle_config")
    return found if isinstance(found, Mapping) else {}
