"""A decoder that gradients pass: dense attention models, with parameters under their published names, so that `state_dict` is
the file.

Texts are one after another, without padding, as in a `Batch`; a token sees those of its own text. Logits are a step of their
own: those of a few rows cost little, those of all rows are most of the memory.

Letters: `N` rows, `R` some of them, `d` width, `V` vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.core.base.errors import ModelError
from outrider.core.drafting import registry
from outrider.core.formats.checkpoint import Checkpoint, open_checkpoint
from outrider.core.formats.config import text_config
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, LayerSpec, Names, RopeSpec, TargetSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.reader import PREFIXES, Reader

from . import export
from .parts import Mlp, Norm, Projections, Turn, attended, turns
from .recipe import Text
from .teacher import Teacher

HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
PLAIN = ("fp32", "fp16", "bf16", "F64")  # kinds of weights that nothing was rounded away from


class Along:
    """Where texts are in a pass, and what all layers share of that."""

    def __init__(self, texts: Sequence[Text], device: torch.device) -> None:
        self.rows = [slice(text.start, text.end) for text in texts]
        self._device = device
        self._positions = torch.cat([torch.arange(text.end - text.start, device=device) for text in texts])  # [N]
        self._turns: dict[RopeSpec | None, Turn] = {None: None}
        self._seen: dict[tuple[int, int], Tensor] = {}

    def turn(self, rope: RopeSpec | None, made_for: int) -> Turn:
        """Rotation of all rows."""
        if rope not in self._turns:
            self._turns[rope] = turns(rope, self._positions, made_for)
        return self._turns[rope]

    def seen(self, length: int, window: int) -> Tensor | None:
        """Which tokens of a text of `length` see which, [length, length]; None: all up to their own."""
        if not window or window >= length:
            return None
        if (length, window) not in self._seen:
            ones = torch.ones(length, length, dtype=torch.bool, device=self._device)
            self._seen[length, window] = ones.tril().triu(1 - window)
        return self._seen[length, window]


class Layer(nn.Module):
    """One block; its norms have the names of its family."""

    def __init__(self, spec: TargetSpec, index: int) -> None:
        super().__init__()
        mixer, channel = spec.layers[index].mixer, spec.layers[index].channel
        assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
        self._spec, self.names, plus = spec, spec.names, spec.norm_plus_one
        behind = spec.post_eps or spec.eps
        for name, eps in (
            (self.names.before_mixer, spec.eps),
            (self.names.after_mixer, behind),
            (self.names.before_channel, spec.eps),
            (self.names.after_channel, behind),
        ):
            if name:
                self.add_module(name, Norm(spec.width, eps, plus_one=plus))
        self.self_attn = Projections(mixer, spec.width, spec.width, spec.eps, plus_one=plus)
        self.mlp = Mlp(spec.width, channel.width, channel.activation, bias=channel.bias)

    def forward(self, x: Tensor, along: Along) -> Tensor:
        """[N, d] -> [N, d]: both mixers with their residuals."""
        scale, names = self._spec.residual_scale, self.names
        mixed = self._attention(self.normed(names.before_mixer, x), along)
        x = x + self.normed(names.after_mixer, mixed) * scale
        made = self.mlp(self.normed(names.before_channel, x))
        return x + self.normed(names.after_channel, made) * scale

    def normed(self, name: str, x: Tensor) -> Tensor:
        """[N, d] through the norm of that name; as it is without one."""
        return self.get_submodule(name)(x) if name else x

    def _attention(self, x: Tensor, along: Along) -> Tensor:
        attention = self.self_attn
        spec = attention.spec
        turn = along.turn(spec.rope, self._spec.context)
        q, k = attention.queries(x, turn), attention.spread(attention.keys(x, turn))  # [N, H, h]
        v = attention.spread(attention.values(x))
        outputs = [
            attended(q[rows], k[rows], v[rows], spec.scale, along.seen(rows.stop - rows.start, spec.window))
            for rows in along.rows
        ]
        return attention.o_proj(torch.cat(outputs).flatten(1))


class Stack(nn.Module):
    """Everything but the output layer."""

    def __init__(self, spec: TargetSpec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec, index) for index in range(len(spec.layers)))
        plus = spec.norm_plus_one if spec.final_plus_one is None else spec.final_plus_one
        self.norm = Norm(spec.width, spec.eps, plus_one=plus)


class Residuals(NamedTuple):
    """What a pass gives."""

    last: Tensor  # [N, d] before the final norm
    kept: tuple[Tensor, ...]  # [N, d] each, those that were asked for


class Decoder(nn.Module):
    """`config` is the published one that `spec` was read from. Raises ModelError for a model of another kind."""

    def __init__(self, spec: TargetSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        found = obstacle(spec)
        if found is not None:
            raise _untrainable(f"Models of the family {spec.family} have {found}; gradients do not pass that here.")
        self.spec, self.config = spec, dict(config)
        self.model = Stack(spec)
        self.lm_head = None if spec.tied else nn.Linear(spec.width, spec.vocab, bias=False)

    @property
    def table(self) -> nn.Parameter:
        """Rows of the output layer, [V, d]; those of the embedding where they are the same."""
        table = self.model.embed_tokens if self.lm_head is None else self.lm_head
        assert isinstance(table.weight, nn.Parameter)
        return table.weight

    def forward(self, ids: Tensor, texts: Sequence[Text], states: Sequence[int] = ()) -> Residuals:
        """A pass over `ids` [N]. `states`: numbers of the residuals that are wanted too, 0 the embedding … L the last."""
        along = Along(texts, ids.device)
        x = self.embed(ids)
        kept = {0: x}
        for number, layer in enumerate(self.model.layers, 1):
            x = layer(x, along)
            if number in states:
                kept[number] = x
        return Residuals(x, tuple(kept[number] for number in states))

    def embed(self, ids: Tensor) -> Tensor:
        """[N] -> [N, d] as the first layer sees them."""
        x = self.model.embed_tokens(ids)
        return x if self.spec.embed_scale == 1.0 else x * self.spec.embed_scale

    def logits(self, last: Tensor) -> Tensor:
        """Last residuals [R, d] -> [R, V]: final norm, output layer, multiplier and cap."""
        logits = F.linear(self.model.norm(last).to(self.table.dtype), self.table)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        cap = self.spec.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def save(self, folder: Path, text: Path | None, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write a checkpoint as such models are published. `text`: the model whose tokenizer it has, None for none."""
        export.write(folder, dict(self.state_dict()), self.config, dtype)
        if text is not None:
            export.copy_text(text, folder)


def obstacle(spec: TargetSpec) -> str | None:
    """What of a decoder gradients are not led through, in words; None if they pass everywhere."""
    found = next((what for layer in spec.layers if (what := _obstacle(layer))), None)
    if found is None and (
        spec.parallel or spec.centred or spec.embed_norm or spec.layer_scalar or spec.per_layer_width
    ):
        return "blocks of a kind of its own"
    usual = replace(Names(), **{name: getattr(spec.names, name) for name in _NORMS})
    return "tensors with names of its own" if found is None and spec.names != usual else found


_NORMS = ("before_mixer", "after_mixer", "before_channel", "after_channel")


def _obstacle(layer: LayerSpec) -> str | None:
    mixer, channel = layer.mixer, layer.channel
    if not isinstance(mixer, AttentionSpec):
        return "layers without plain attention"
    if not isinstance(channel, DenseSpec) or channel.activation not in ("silu", "gelu_tanh"):
        return "no plain MLP in every layer"
    plain = AttentionSpec(mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rope, mixer.scale, mixer.window)
    norm = "" if mixer.qk_norm == "whole" else mixer.qk_norm
    if mixer != replace(plain, bias=mixer.bias, output_bias=mixer.output_bias, qk_norm=norm):
        return "attention of a kind of its own"
    rope = mixer.rope
    if rope is not None and (rope.interleaved or rope.width != mixer.head_dim):
        return "heads of which a part is rotated, or in pairs of neighbours"
    return None


def read(path: Path, layers: Sequence[int] | None = None) -> Decoder:
    """The model at `path` in fp32, quantised weights expanded. `layers`: those that are kept, in their order; None: all.

    Raises ModelError, BrokenFileError.
    """
    checkpoint = open_checkpoint(path)
    try:
        return _read(checkpoint, layers)
    finally:
        checkpoint.close()


def of_target(teacher: Teacher) -> Decoder:
    """The target itself, to be trained. Raises ModelError where that cannot be, as for one that is quantised only."""
    checkpoint = open_checkpoint(Path(teacher.info.path))
    try:
        if checkpoint.quantisation not in PLAIN:
            raise _untrainable(
                f"{teacher.info.name} is there in {checkpoint.quantisation} only: weights that are rounded cannot be trained."
            )
        return _read(checkpoint).to(teacher.device)
    finally:
        checkpoint.close()


def without_gradients() -> list[str]:
    """Names of the methods that are trained with no gradient through the target."""
    found = ((entry.name, getattr(registry.method(entry), "recipe", None)) for entry in registry.entries())
    return [name for name, recipe in found if recipe is not None and not recipe.gradients]


def _untrainable(what: str) -> ModelError:
    return ModelError(what, f"Methods that need no gradients through the model: {', '.join(without_gradients())}.")


def _read(checkpoint: Checkpoint, layers: Sequence[int] | None = None) -> Decoder:
    config, names = text_config(checkpoint.config), frozenset(checkpoint.names())
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in names)), "model.")
    if any(name.endswith("qkv_proj.weight") for name in names):
        raise _untrainable(f"{checkpoint.path.name} keeps projections in one piece, and those are not trained here.")
    spec = read_spec(config)
    reader = Reader(checkpoint, spec, WeightFormat(torch.float32, torch.device("cpu")))
    head = next((name for name in HEADS if name in names), None)
    own = None if head is None else checkpoint.load(head, torch.float32)
    tied = spec.tied
    if own is not None and tied:  # some files hold the same rows twice, and some others than their config says
        tied = torch.equal(own, checkpoint.load(f"{prefix}embed_tokens.weight", torch.float32))
    kept = list(range(len(spec.layers)) if layers is None else layers)
    config = _thinned(config, spec, kept) | {"tie_word_embeddings": tied}
    decoder = Decoder(read_spec(config), config)
    with torch.no_grad():
        for name, part in decoder.named_parameters():
            if name != "lm_head.weight":
                stored = _LAYER.sub(lambda found: f"layers.{kept[int(found[1])]}.", name.removeprefix("model."))
                part.copy_(reader.tensor(stored, *part.shape, exact=True))
        if decoder.lm_head is not None:
            if own is None or own.shape != decoder.table.shape:
                raise ModelError(
                    f"{checkpoint.path.name} has no lm_head.weight of its width and vocabulary.",
                    "Download the model again, whole.",
                )
            decoder.table.copy_(own)
    return decoder


_LAYER = re.compile(r"^layers\.(\d+)\.")


def _thinned(config: Mapping[str, Any], spec: TargetSpec, kept: Sequence[int]) -> dict[str, Any]:
    """The config with those layers alone. Raises ModelError where it cannot say what each of them is."""
    settings = {**config, "num_hidden_layers": len(kept)}
    every = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    if len(every) == len(spec.layers):
        if config.get("layer_types") or len({mixer.window for mixer in every}) > 1:
            settings["layer_types"] = ["sliding_attention" if every[at].window else "full_attention" for at in kept]
        if config.get("no_rope_layers") or len({mixer.rope is None for mixer in every}) > 1:
            settings["no_rope_layers"] = [int(every[at].rope is not None) for at in kept]
    if len(kept) < len(spec.layers) and read_spec(settings).layers != tuple(spec.layers[at] for at in kept):
        raise ModelError(
            f"Some layers of a {spec.family} model alone are no model of that family.", "Keep all of its layers."
        )
    return settings
