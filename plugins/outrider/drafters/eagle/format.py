"""The files of an EAGLE draft, whoever wrote them: what is there, what it means, whether it fits a target. Loads no torch
unless the weights are pickled.

Containers: EAGLE-1 and EAGLE-3 as their authors publish them, SpecForge, speculators, ModelOpt (and DeepSpec, which only
names its states in a way of its own). A P-EAGLE is an EAGLE-3, mostly of several layers, with a state for masked rows. What a
file holds decides, not the name it gives to its architecture.

Letters: `L` layers of the target, `V` its vocabulary, `Vd` words that a reduced head knows, `d` width of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from outrider.core.base.errors import ModelError
from outrider.core.drafting import ModelInfo
from outrider.core.drafting.files import DraftConfig, DraftFiles, DraftSpec, open_draft

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
OLDER = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
OUTSIDE = ("lm_head.weight", "d2t", "t2d")  # what is no part of the layers
PICKLE = "pytorch_model.bin"
AGAIN = "Download the draft again, whole."
OTHER = "Take a draft that was trained for this model."

# of every layer, and what a layer may have more
MATRICES = {f"self_attn.{name}_proj.weight" for name in "qkvo"} | {
    f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")
}
BIASES = {name.replace(".weight", ".bias") for name in MATRICES}
HEADS = {f"self_attn.{name}_norm.weight" for name in "qk"}
LAYER = "layers.0."
ENDS = {"embed_tokens.weight", "fc.bias", *OUTSIDE}
HIDDEN_NORM, EMBED_NORM = f"{LAYER}hidden_norm.weight", f"{LAYER}input_layernorm.weight"
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # where configs name the token of masked rows


def open_files(path: Path) -> DraftFiles:
    """A draft under one set of names, whatever its container calls them. Raises ModelError, BrokenFileError."""
    return open_draft(path, PICKLE, names=_published, again=AGAIN)


def _published(name: str) -> str | None:
    if name.endswith("rotary_emb.inv_freq"):
        return None
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in OLDER.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


@dataclass(frozen=True, slots=True)
class Container:
    """What the files of a draft say, before it is known which target it meets."""

    name: str
    version: int  # 1: one state behind the final norm, mixed with the embedding; 3: states of several layers
    spec: DraftSpec  # of its layers; `vocab` is the target's
    words: int  # Vd
    fused: int  # columns of `fc` that states take; 0: the one state is taken as it is
    norm_before_residual: bool  # the residual takes the normed state
    norm_output: bool  # the normed output is fed back
    keeps_embedding: bool  # its embedding was trained with it
    mask: (
        int | None
    )  # token of the rows that stand for tokens not known yet (P-EAGLE); None: drafts one token after another
    told: tuple[int, ...]  # numbers of layers in the config
    telling: str  # "", "boundary", "output", "nested": how these count
    tied: bool  # its output rows are the target's, and left out
    layers: int | None  # that the target must have, if the config tells
    tokenizer: str  # fingerprint, "" if there is none

    @property
    def kind(self) -> str:
        """What it is, for a person."""
        return f"an EAGLE-{self.version} draft" if self.mask is None else "a P-EAGLE draft"

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


def read(files: DraftFiles) -> Container:
    """What the files say. Raises ModelError where they contradict themselves, lack something, or are no EAGLE draft."""
    holds, name, config = files.holds, files.name, files.settings
    nested = config.has("speculators_model_type")
    if nested and not config.has("transformer_layer_config"):
        config.fail("does not describe a layer")
    block = config.table("transformer_layer_config") if nested else config
    version = 3 if HIDDEN_NORM in holds else 1
    count = _layers(holds) if version == 3 else 1
    _complete(name, version, count, holds, config)
    spec = _spec(name, block, count, holds, version)
    fused = files.shape("fc.weight")[-1] if "fc.weight" in holds else 0
    mask = _mask(files, fused or spec.width, spec.vocab) if "mask_hidden" in holds else None
    words = spec.vocab
    tied = config.flag("tied_to_target") and "lm_head.weight" not in holds
    if "lm_head.weight" in holds or (tied and "d2t" in holds):
        words = files.shape("d2t" if tied else "lm_head.weight")[0]
    _check_tables(files, words, spec.vocab)
    told, telling = _told(config)
    return Container(
        name=name,
        version=version,
        spec=spec,
        words=words,
        fused=fused if version == 3 else 0,
        # speculators writes the key into every file, so one without it is older than the key, when the answer was yes; no
        # P-EAGLE is that old, and there the answer is no
        norm_before_residual=config.flag("norm_before_residual", nested and mask is None),
        norm_output=config.flag("norm_output") and (nested or "fc_norm.0.weight" in holds),
        keeps_embedding=config.flag("embed_requires_grad") or mask is not None,
        mask=mask,
        told=told,
        telling=telling,
        tied=tied,
        layers=config.integer("num_target_layers") if config.has("num_target_layers") else None,
        tokenizer=files.tokenizer(spec.vocab),
    )


def _layers(holds: frozenset[str]) -> int:
    return len({part.split(".")[1] for part in holds if part.startswith("layers.")})


def _first_norm(index: int, holds: frozenset[str]) -> str:
    """Name of the norm before the attention of a later layer.

    vLLM, speculators and SpecForge call it `input_layernorm` (a `hidden_norm` beside it does nothing); SGLang has `hidden_norm`
    only. Unverified: no public file with the latter is known.
    """
    plain, other = f"layers.{index}.input_layernorm", f"layers.{index}.hidden_norm"
    return other if f"{other}.weight" in holds and f"{plain}.weight" not in holds else plain


def _complete(name: str, version: int, count: int, holds: frozenset[str], config: DraftConfig) -> None:
    """Refuse what lacks a tensor or has one that is not known here; `count` layers."""
    needed, allowed = _ends(version, holds, config)
    alike = {part for part in (BIASES | HEADS if version == 3 else BIASES) if LAYER + part in holds}
    for index in range(count):  # what the first layer has, all have
        at = f"layers.{index}."
        needed |= {at + part for part in {"post_attention_layernorm.weight"} | MATRICES | alike}
        if index:
            needed.add(f"{_first_norm(index, holds)}.weight")
            allowed.add(f"{at}hidden_norm.weight")
    if version == 1 and "fc.weight" not in holds:
        raise ModelError(f"{name} is no EAGLE draft: it has no tensor fc.weight and no {HIDDEN_NORM}.", OTHER)
    strange = sorted(holds - needed - allowed - ENDS)
    if strange:
        raise ModelError(f"{name} holds {strange[0]}, which no EAGLE-{version} draft has.", OTHER)
    missing = sorted(needed - holds)
    if missing:
        raise ModelError(f"{name} has no tensor {missing[0]}.", AGAIN)


def _ends(version: int, holds: frozenset[str], config: DraftConfig) -> tuple[set[str], set[str]]:
    """What must stand before and behind the layers, and what may."""
    if version == 1:
        return {"fc.weight"}, {"lm_head.weight"}
    needed, allowed = {HIDDEN_NORM, EMBED_NORM, "norm.weight", "fc.weight"}, {"input_norm.weight", "mask_hidden"}
    allowed |= {part for part in holds if part.startswith("fc_norm.")}
    settings = config.table("eagle_config")
    for key, part in (
        ("use_last_layernorm", "norm.weight"),
        ("use_input_layernorm_in_first_layer", EMBED_NORM),
        ("use_aux_hidden_state", "fc.weight"),
    ):
        if not settings.flag(key, True):
            needed.discard(part)
            allowed.add(part)
    if config.is_word("speculators_model_type", "peagle") or any(map(config.has, MASKS)):
        needed.add("mask_hidden")
    return needed, allowed


def _mask(files: DraftFiles, wide: int, vocab: int) -> int:
    """The token of masked rows, beside which `mask_hidden` stands for as many numbers as states have."""
    name, shape = files.name, files.shape("mask_hidden")
    if prod(shape) != wide:
        raise ModelError(f"{name}: mask_hidden has shape {shape} where {wide} numbers belong.", AGAIN)
    token = next((files.config[key] for key in MASKS if files.config.get(key) is not None), None)
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
        raise ModelError(f"{name}: the mask token in the config is {token!r}; there are {vocab} tokens.", AGAIN)
    return token


def _spec(name: str, block: DraftConfig, count: int, holds: frozenset[str], version: int) -> DraftSpec:
    told = block.integer("num_hidden_layers", default=count)
    if told != count:
        raise ModelError(f"{name} holds {count} layers and the config says {told}.", AGAIN)
    if block.has("layer_types") and "sliding_attention" in block.layer_kinds():
        raise ModelError(f"{name} has a sliding window, which no EAGLE draft that is run here has.", OTHER)
    reads = block.integer("hidden_size") * (2 if version == 3 else 1)  # in version 3 the state beside the embedding
    spec = block.layers([0] * count, holds, reads=reads)
    if spec.mixer.rope is not None and spec.mixer.rope.width != spec.mixer.head_dim:
        raise ModelError(f"{name} turns a part of each head only, which no EAGLE draft that is run here does.", OTHER)
    if count > 1 and _first_norm(1, holds).endswith("hidden_norm"):
        spec = replace(spec, names=replace(spec.names, before_mixer="hidden_norm"))
    return spec


def _check_tables(files: DraftFiles, words: int, vocab: int) -> None:
    """A reduced head needs the table that names its words, of the right length."""
    name, holds = files.name, files.holds
    if words != vocab and "d2t" not in holds:
        raise ModelError(f"{name} has a head of {words} words and no table d2t that names them.", AGAIN)
    for table, rows in (("d2t", words), ("t2d", vocab)):
        if table in holds and files.shape(table) != (rows,):
            raise ModelError(f"{name}: {table} has shape {files.shape(table)} where {rows} entries belong.", AGAIN)


def _told(config: DraftConfig) -> tuple[tuple[int, ...], str]:
    """The layers that a config names, and how it counts them; an empty list is none."""
    nested = config.table("eagle_config")
    used = nested.flag("use_aux_hidden_state", True)
    for place, key, telling in (
        (config, "eagle_aux_hidden_state_layer_ids", "boundary"),
        (config, "aux_hidden_state_layer_ids", "boundary"),
        (config, "target_layer_ids", "output"),
        (nested, "eagle_aux_hidden_state_layer_ids", "nested"),
    ):
        layers = place.layer_numbers(key) if place.has(key) else []
        if layers and used:
            return tuple(layers), telling
    return (), ""
