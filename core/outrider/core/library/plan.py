"""What a model would take in memory, before any weight is read, whether that is free, and what would fit if it is not.

| part | what it is |
|---|---|
| weights | all that the decoder keeps of the checkpoint |
| states | keys, values, latents and recurrent states of one conversation at the full context |
| drafter | the same two of a draft model, if one is asked for |
| overhead | rope tables, states kept for rewinds, and working memory, which is measured, not computed |

Torch is imported where a device or a dtype has to be chosen, never with this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import MemoryPlan, ModelChoice
from outrider.core.base.values import LEAST_CONTEXT
from outrider.core.formats.checkpoint import Checkpoint
from outrider.core.formats.layout import Layout
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, ConvSpec, DeltaSpec, LatentSpec, MambaSpec, TargetSpec

from . import catalogue, memory
from .catalogue import Entry

if TYPE_CHECKING:
    from outrider.core.model.kernels.forms import WeightFormat

CONTEXT = 8192  # tokens, where the user does not say: K/V of a small model stay below 200 MB
LEAST = 2048  # tokens; a context below that is not offered
ITEM = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}  # bytes
BITS = {"int8": 8.0, "int4": 5.0}  # of a weight in a matrix, with its share of scales
# Working memory: on the CPU 89 and 111 MB beyond the parts above were measured after a prefill of 6000 tokens, 200 MB at the
# peak of loading; it stays the same however many lengths of prompts follow. On CUDA it is an estimate: workspaces and what the
# allocator cannot use.
WORKING = {"cpu": 256 << 20, "cuda": 512 << 20}  # bytes
_LAYER = re.compile(r"layers\.(\d+)\.")
_TABLES = ("embed_tokens.weight", "embeddings.weight", "embed_tokens_per_layer.weight")


Keep = Literal["fast", "all", "none"]
Free = Callable[[str], int | None]  # bytes free on a device, as `memory.free`


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model would be loaded: all that decides what it takes."""

    device: str  # cpu, cuda:0, …
    dtype: str  # a key of ITEM
    context: int  # tokens
    quantize: str = "auto"  # a key of BITS, or another word for: as it is
    keep: Keep = "fast"  # which quantised matrices stay so, see `WeightFormat`


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that can be planned for: bytes of its parts in any how. `states` gives None where nothing is known of them."""

    name: str
    family: str
    parameters: int
    made_for: int  # tokens
    weights: Callable[[Settings], int]
    states: Callable[[Settings], int | None]
    beside: Callable[[Settings], int]  # overhead without working memory
    about: bool = False  # figures are estimates


# ------------------------------------------------------------------ parts


def resident(checkpoint: Checkpoint, form: WeightFormat) -> int:
    """Bytes of the weights in memory, a head that shares the token table apart. Tensors with one axis count as fp32."""
    return int(sum(_tensor(checkpoint, name, form) for name in used(checkpoint)))


def _tensor(checkpoint: Checkpoint, name: str, form: WeightFormat) -> float:
    shape, item = checkpoint.shape(name), form.dtype.itemsize
    size, layout = math.prod(shape), checkpoint.layout(name)
    if len(shape) < 2:
        return size * max(item, 4)
    if name.endswith(_TABLES):
        return size * item if layout is None or form.keep == "none" or item == 8 else layout.nbytes
    return _matrix(
        layout, size // shape[-1], shape[-1], (form, 8 if form.quantize and "lm_head" in name else form.quantize)
    )


def _matrix(layout: Layout | None, rows: int, columns: int, how: tuple[WeightFormat, int | None]) -> float:
    """Bytes of a matrix that is multiplied by, rounded to so many bits or as it is."""
    form, bits = how
    if layout is not None and form.keeps(layout) and layout.bits <= (bits or 8):
        return form.nbytes(layout)
    if bits is None or columns % 32:
        return rows * columns * form.dtype.itemsize
    return form.nbytes(
        Layout(rows, columns, 8, columns, "scaled", 4) if bits == 8 else Layout(rows, columns, 4, 32, "affine", 8)
    )


def used(checkpoint: Checkpoint) -> list[str]:
    """Names of the tensors that a decoder reads: no towers, no layers beyond its last one (multi-token prediction)."""
    names = checkpoint.names()
    tables = [name for name in names if name.endswith(_TABLES[:2]) and not name.startswith("mtp")]
    stem = min(tables, key=len, default="").removesuffix(_TABLES[0]).removesuffix(_TABLES[1])
    layers = len(read_spec(checkpoint.config).layers)

    def read(name: str) -> bool:
        layer = _LAYER.match(name, len(stem))
        beyond = layer is not None and int(layer[1]) >= layers
        return not beyond and (name.startswith(stem) or name.endswith("lm_head.weight"))

    return [name for name in names if read(name)]


def rows_kept(window: int, context: int) -> int:
    """Rows of keys and values that a layer of this window keeps (0: it sees all) where `context` tokens have to fit."""
    from outrider.core.model.cache.layout import padded
    from outrider.core.model.cache.states import MAX_DRAFT_ROWS, RINGS

    ring = padded(window - 1 + MAX_DRAFT_ROWS)
    capacity = context + MAX_DRAFT_ROWS
    return ring if window and capacity > RINGS * ring else padded(capacity)


def states(spec: TargetSpec, context: int, dtype_name: str) -> int:
    """Bytes of all layers' states of one conversation of `context` tokens."""
    item = ITEM[dtype_name]
    total = sum(recurrent(spec, dtype_name))
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec) and mixer.source is None:
            total += rows_kept(mixer.window, context) * 2 * mixer.kv_heads * mixer.head_dim * item
        elif isinstance(mixer, LatentSpec):
            total += rows_kept(0, context) * (mixer.kv_rank + mixer.rope_dim) * item
    return total


def recurrent(spec: TargetSpec, dtype_name: str) -> Iterator[int]:
    """Bytes of each state that does not grow with the context: newest convolution inputs, and memories in fp32."""
    item = ITEM[dtype_name]
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, ConvSpec):
            channels, memories = spec.width, 0
        elif isinstance(mixer, DeltaSpec):
            channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            memories = mixer.value_heads * mixer.key_dim * mixer.value_dim
        elif isinstance(mixer, MambaSpec):
            channels = mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state
            memories = mixer.heads * mixer.head_dim * mixer.state
        else:
            continue
        yield (mixer.kernel - 1) * channels * item + memories * max(item, 4)


def extra_state_bytes(spec: TargetSpec, context: int, dtype_name: str) -> int:
    """Bytes of rope tables and of the recurrent states that are kept beside the newest: snapshots, and that before a pass."""
    from outrider.core.model.cache.states import MAX_DRAFT_ROWS, SNAPSHOTS

    mixers = [layer.mixer for layer in spec.layers]
    ropes = {(mixer.rope, mixer.head_dim) for mixer in mixers if isinstance(mixer, AttentionSpec) and mixer.rope}
    ropes |= {(mixer.rope, mixer.rope_dim) for mixer in mixers if isinstance(mixer, LatentSpec)}
    tables = sum(2 * (context + MAX_DRAFT_ROWS) * size * ITEM[dtype_name] for _, size in ropes)
    return tables + (SNAPSHOTS + 1) * sum(recurrent(spec, dtype_name))


# ------------------------------------------------------------------ subjects


def of_checkpoint(checkpoint: Checkpoint, name: str = "") -> Subject:
    """A model on disk. Raises ModelError for an architecture that Outrider cannot run."""
    spec = read_spec(checkpoint.config)
    shared = spec.tied and not any(tensor.endswith("lm_head.weight") for tensor in checkpoint.names())

    def weights(how: Settings) -> int:
        import torch

        from outrider.core.model.kernels.forms import WeightFormat, packs
        from outrider.core.model.load import DTYPES

        device, dtype = torch.device(how.device), DTYPES[how.dtype]
        form = WeightFormat(dtype, device, {"int8": 8, "int4": 4}.get(how.quantize), how.keep)
        total = resident(checkpoint, form)
        if shared:  # the head's own copy of a token table that it cannot multiply by as it is
            table = next(name for name in used(checkpoint) if name.endswith(_TABLES[:2]))
            layout = checkpoint.layout(table)
            if (layout is not None and form.keep != "none") or form.quantize or packs(dtype, device):
                total += int(_matrix(layout, spec.vocab, spec.width, (form, form.quantize and 8)))
        return total

    return Subject(
        name=name or checkpoint.path.name,
        family=spec.family,
        parameters=sum(math.prod(checkpoint.shape(tensor)) for tensor in used(checkpoint)),
        made_for=spec.context,
        weights=weights,
        states=lambda how: states(spec, how.context, how.dtype),
        beside=lambda how: extra_state_bytes(spec, how.context, how.dtype),
    )


def of_entry(entry: Entry) -> Subject:
    """A model of the catalogue that is not here: as much as its parameters and its numbers for each token tell."""

    def weights(how: Settings) -> int:
        if how.quantize == "auto" and entry.form not in ITEM and (how.keep == "all" or how.device != "cpu"):
            return entry.nbytes
        return int(entry.parameters * BITS.get(how.quantize, 8 * ITEM[how.dtype]) / 8)

    return Subject(
        name=entry.name,
        family=entry.family,
        parameters=entry.parameters,
        made_for=entry.context or CONTEXT,
        weights=weights,
        states=lambda how: entry.kv * rows_kept(0, how.context) * ITEM[how.dtype] if entry.kv else None,
        beside=lambda how: 0,
        about=True,
    )


# ------------------------------------------------------------------ plans


def settle(subject: Subject, choice: ModelChoice) -> Settings:
    """The form that a choice comes to on this machine. Raises UsageError. Loads torch."""
    from outrider.core.model.load import DTYPES, choose_device, choose_dtype

    device = choose_device(choice.device)
    dtype = choose_dtype(choice.dtype, device)
    name = next(name for name, known in DTYPES.items() if known == dtype)
    return Settings(str(device), name, context(choice.context, subject.made_for), choice.quantize)


def context(asked: int | None, made_for: int) -> int:
    """Tokens of context: those asked for, or a sensible number. Raises UsageError for more than the model was made for."""
    if asked is None:
        return min(made_for, CONTEXT)
    if not LEAST_CONTEXT <= asked <= made_for:
        raise UsageError(
            f"--context must be from {LEAST_CONTEXT} to {made_for} for this model, not {asked}.",
            "Leave it out for a sensible size.",
        )
    return asked


def plan(subject: Subject, how: Settings, drafter: Subject | None = None, free: Free | None = None) -> MemoryPlan:
    """What the model takes in this how, what is free, and the nearest choice that fits where it does not.

    `free` takes the place of `memory.free`: who makes many plans asks it once.
    """
    made = _measure(subject, replace(how, keep=keep(subject, how, free)), drafter, free)
    if made.verdict != "no":
        return made
    how = replace(how, keep="all")
    others = [(words, _measure(other, other_how, drafter, free)) for words, other, other_how in _others(subject, how)]
    for wanted in ("fits", "tight"):
        for words, found in others:
            if found.verdict == wanted:
                made.instead = f"{words} (about {gigabytes(found.total)})"
                return made
    return made


def check(subject: Subject, how: Settings) -> Settings:
    """The same settings. Raises ModelError with the figures and the nearest choice if the model cannot fit."""
    made = plan(subject, how)
    if made.verdict != "no" or made.free is None:
        return how
    raise ModelError(
        f"{subject.name} does not fit into the memory of {how.device}: it takes about {gigabytes(made.total)} in {how.dtype} "
        f"(weights {gigabytes(made.weights)}, states {gigabytes(made.states or 0)} at a context of {how.context} tokens), "
        f"and {gigabytes(made.free)} are free.",
        f"Try {made.instead}." if made.instead else "Take a smaller model, or free some memory.",
    )


def keep(subject: Subject, how: Settings, free: Free | None = None) -> Keep:
    """Which quantised matrices stay so: none as asked, all where more would not fit, else those that are fast so."""
    if how.quantize == "none":
        return "none"
    return "fast" if _measure(subject, replace(how, keep="fast"), None, free).verdict == "fits" else "all"


def gigabytes(nbytes: int) -> str:
    """A size in GB, small ones in MB."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def _measure(subject: Subject, how: Settings, drafter: Subject | None, free: Free | None) -> MemoryPlan:
    weights, kept = subject.weights(how), subject.states(how)
    guest = 0 if drafter is None else drafter.weights(how) + (drafter.states(how) or 0)
    overhead = subject.beside(how) + WORKING[how.device.partition(":")[0]]
    total = weights + (kept or 0) + guest + overhead
    there = (free or memory.free)(how.device)
    made = MemoryPlan(
        device=how.device,
        dtype=how.dtype,
        quantize=how.quantize,
        context=how.context,
        weights=weights,
        states=kept,
        drafter=guest,
        overhead=overhead,
        total=total,
        free=there,
        about=subject.about,
    )
    if there is not None:
        # A CPU can still give up other pages: only what cannot be there at all is refused.
        least = total - (overhead if how.device == "cpu" else 0)
        made.verdict = "fits" if total <= there else "tight" if least <= there else "no"
    return made


def _others(subject: Subject, how: Settings) -> Iterator[tuple[str, Subject, Settings]]:
    """Other choices, nearest first: how to ask for it, what it is, in which how."""
    for tokens in _shorter(how.context):
        yield f"--context {tokens}", subject, replace(how, context=tokens)
    half, also = how, ""
    if ITEM[how.dtype] > 2:
        half, also = replace(how, dtype="bf16"), "--dtype bf16 "
        yield also.strip(), subject, half
    kinds = [kind for kind in ("int8", "int4") if BITS[kind] < BITS.get(how.quantize, 16)]
    for tokens in (how.context, *_shorter(how.context)):
        for kind in kinds:
            words = f"{also}--quantize {kind}" + (f" --context {tokens}" if tokens < how.context else "")
            yield words, subject, replace(half, quantize=kind, context=tokens)
    if how.device != "cpu":
        yield "--device cpu", subject, replace(how, device="cpu")
    for entry in _smaller(subject):
        other = of_entry(entry)
        yield f"--model {entry.name}", other, replace(how, context=min(how.context, other.made_for))


def _shorter(tokens: int) -> Iterator[int]:
    """Halves of a context down to the least that is offered."""
    while tokens // 2 >= LEAST:
        tokens //= 2
        yield tokens


def _smaller(subject: Subject) -> list[Entry]:
    """Smaller models of the same family in the catalogue, the largest first."""
    family = [entry for entry in catalogue.entries() if entry.family == subject.family]
    fitting = [entry for entry in family if entry.parameters < subject.parameters]
    return sorted(fitting, key=lambda entry: -entry.parameters)
