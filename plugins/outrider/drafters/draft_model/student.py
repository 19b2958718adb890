"""A smaller model made of a larger one: some of its layers, heads and neurons, a narrower stream between them; or a fresh one.

Narrower: the stream is projected on the directions in which embedding and output rows are. What reads from it is multiplied by
these, what writes to it by their transpose; norms are multiplied into what reads after them.

Letters: `V` vocabulary, `d` width of the larger model, `n` of the smaller one, `o` outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.formats.config import text_config
from outrider.core.formats.safetensors import read_json
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, LayerSpec, TargetSpec
from outrider.core.train.decoder import Decoder, Layer, read
from outrider.core.train.parts import Norm, start
from outrider.core.train.teacher import Teacher

EVERY = 3  # layers of which one is kept, where nothing is said
_SPREAD = 0.02  # of fresh embeddings


@dataclass(frozen=True, slots=True)
class Size:
    """Of a student; 0: as the teacher's, of layers a third."""

    layers: int = 0
    heads: int = 0  # of keys and values; as many query heads to each as before
    width: int = 0
    inner: int = 0
    tied: bool = False  # one table for input and output, where the teacher has two


class Student(NamedTuple):
    """A student, and where it comes from."""

    decoder: Decoder
    layers: tuple[int, ...]  # numbers of the teacher's layers that its own stand for
    basis: Tensor | None  # [d, n] directions of the teacher's stream that it has, None: all


def smaller(teacher: Teacher, size: Size, counts: Tensor) -> Student:
    """Parts of the teacher as a model of its own. `counts` [V]: how often each token is met.

    Raises UsageError for a size that it cannot have, ModelError where no parts can be taken.
    """
    total = teacher.info.layers
    count = size.layers or max(1, round(total / EVERY))
    if count > total:
        raise UsageError(f"A student of {count} layers cannot be made of {total}.", "Set layers lower.")
    layers = _spread(total, count)
    whole = read(Path(teacher.info.path), layers)
    size = _checked(whole.spec, size)
    config = _config(whole, size)
    decoder = Decoder(read_spec(config), config)
    basis = None if size.width == whole.spec.width else _basis(whole, counts, size.width)
    tensors = _ends(whole, decoder.spec, basis)
    for place, layer in enumerate(whole.model.layers):
        assert isinstance(layer, Layer)
        parts = _Cut(layer, size, basis).tensors()
        tensors |= {f"model.layers.{place}.{name}": part for name, part in parts.items()}
    decoder.load_state_dict(decoder.state_dict() | tensors)
    return Student(decoder, layers, basis)


def from_config(path: Path, teacher: Teacher, luck: torch.Generator) -> Student:
    """A fresh student; its tables are the teacher's where they have its width. Raises ModelError, UsageError."""
    config = text_config(read_json(path / "config.json" if path.is_dir() else path))
    spec = read_spec(config)
    if spec.vocab != teacher.info.vocab:
        raise UsageError(
            f"{path} is of a model with {spec.vocab} tokens, {teacher.info.name} has {teacher.info.vocab}.",
            f"Set its vocab_size to {teacher.info.vocab}.",
        )
    decoder = Decoder(spec, config)
    start(decoder, luck, len(spec.layers))
    with torch.no_grad():
        decoder.model.embed_tokens.weight.normal_(0, _SPREAD, generator=luck)
        if spec.width == teacher.info.width:
            decoder.model.embed_tokens.weight.copy_(teacher.embedding() / spec.embed_scale)
            if not spec.tied:
                decoder.table.copy_(teacher.output() / spec.logit_scale)
    return Student(decoder, _spread(teacher.info.layers, len(spec.layers)), None)


def _spread(total: int, count: int) -> tuple[int, ...]:
    """Numbers of `count` of so many layers at even distances, the first and the last among them."""
    return tuple(round(at * (total - 1) / max(1, count - 1)) for at in range(count))


def _checked(spec: TargetSpec, size: Size) -> Size:
    """With nothing left open."""
    sizes = {_size(layer) for layer in spec.layers}
    if len(sizes) > 1:
        raise ModelError("Its layers have different sizes.", "Take a student from a config: --option config=FILE.")
    ((heads, inner),) = sizes
    most = {"heads": heads, "width": spec.width, "inner": inner}
    for name, limit in most.items():
        if getattr(size, name) > limit:
            raise UsageError(f"{name} of a student cannot be {getattr(size, name)}.", f"The model has {limit}.")
    if size.width not in (0, spec.width) and (spec.names.after_mixer or spec.names.after_channel):
        raise ModelError(
            f"The stream of a {spec.family} model cannot be made narrower: what is written to it is normed.",
            "Leave --option width out.",
        )
    return replace(size, **{name: getattr(size, name) or limit for name, limit in most.items()})


def _size(layer: LayerSpec) -> tuple[int, int]:
    assert isinstance(layer.mixer, AttentionSpec) and isinstance(layer.channel, DenseSpec)
    return layer.mixer.kv_heads, layer.channel.width


def _config(whole: Decoder, size: Size) -> dict[str, Any]:
    """What its config.json says."""
    mixer = whole.spec.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    return whole.config | {
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_attention_heads": mixer.heads // mixer.kv_heads * size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": mixer.head_dim,
        "tie_word_embeddings": whole.spec.tied or size.tied,
    }


def _basis(teacher: Decoder, counts: Tensor, width: int) -> Tensor:
    """Directions [d, n] that hold most of what is embedded and of what is asked for, tokens weighing as they are met."""
    weights = counts.to(teacher.table)[:, None] + 1
    total = torch.zeros(teacher.spec.width, teacher.spec.width, dtype=torch.float64)
    with torch.no_grad():
        for rows in (teacher.model.embed_tokens.weight, teacher.table * teacher.model.norm.factor):
            spread = (rows.t() @ (rows * weights)).double().cpu()
            total += spread / spread.trace()
    return torch.linalg.eigh(total).eigenvectors[:, -width:].flip(-1).to(teacher.table)


def _ends(teacher: Decoder, spec: TargetSpec, basis: Tensor | None) -> dict[str, Tensor]:
    """Tables and the final norm of a student of `spec`."""
    table, norm = teacher.model.embed_tokens.weight.detach(), teacher.model.norm
    tensors = {"model.embed_tokens.weight": table}
    if basis is None:
        tensors["model.norm.weight"] = norm.weight.detach()
        return tensors if spec.tied else tensors | {"lm_head.weight": teacher.table.detach()}
    tensors["model.embed_tokens.weight"] = table @ basis * (teacher.spec.embed_scale / spec.embed_scale)
    if not spec.tied:
        return tensors | {"lm_head.weight": _read_from(teacher.table, norm, basis)}
    grown = _grown(basis) * teacher.spec.embed_scale / spec.embed_scale
    factor = (basis * norm.factor.detach()[:, None] * basis).sum(0) * grown  # as near as a norm of its own comes
    return tensors | {"model.norm.weight": factor - 1 if norm.plus_one else factor}


def _grown(basis: Tensor) -> float:
    """By how much larger a normed row of the wide stream is than one of the narrow."""
    return (basis.shape[0] / basis.shape[1]) ** 0.5


def _read_from(weight: Tensor, norm: Norm, basis: Tensor) -> Tensor:
    """Rows [o, d] that read what `norm` gives, as rows [o, n] that read the narrow stream normed without weights."""
    return (weight * norm.factor).detach() @ basis * _grown(basis)


class _Cut:
    """What is kept of a layer."""

    def __init__(self, layer: Layer, size: Size, basis: Tensor | None) -> None:
        self._layer, self._size, self._basis = layer, size, basis
        self._spec = layer.self_attn.spec

    def tensors(self) -> dict[str, Tensor]:
        """By their names below the layer."""
        names, attention, mlp = self._layer.names, self._layer.self_attn, self._layer.mlp
        heads, inner = self._groups(), self._neurons()
        queries = (heads[:, None] * self._spec.heads // self._spec.kv_heads + self._each()).flatten()
        tensors: dict[str, Tensor] = {}
        for name, rows in (("q", _rows(queries, self._spec.head_dim)), ("k", _rows(heads, self._spec.head_dim))):
            tensors |= self._reading(
                f"self_attn.{name}_proj", getattr(attention, f"{name}_proj"), names.before_mixer, rows
            )
        rows = _rows(heads, self._spec.head_dim)
        tensors |= self._reading("self_attn.v_proj", attention.v_proj, names.before_mixer, rows)
        tensors |= self._writing("self_attn.o_proj", attention.o_proj, _rows(queries, self._spec.head_dim))
        for name in ("gate_proj", "up_proj"):
            tensors |= self._reading(f"mlp.{name}", getattr(mlp, name), names.before_channel, inner)
        tensors |= self._writing("mlp.down_proj", mlp.down_proj, inner)
        norms = {name: getattr(attention, name) for name in ("q_norm", "k_norm")}
        tensors |= {
            f"self_attn.{name}.weight": norm.weight.detach() for name, norm in norms.items() if norm is not None
        }
        if self._basis is None:
            outer = (names.before_mixer, names.after_mixer, names.before_channel, names.after_channel)
            tensors |= {f"{name}.weight": self._norm(name).weight.detach() for name in outer if name}
        return tensors

    def _norm(self, name: str) -> Norm:
        norm = self._layer.get_submodule(name)
        assert isinstance(norm, Norm)
        return norm

    def _each(self) -> Tensor:
        return torch.arange(self._spec.heads // self._spec.kv_heads)

    def _groups(self) -> Tensor:
        """Numbers of the key heads that write most, in their order."""
        attention, spec = self._layer.self_attn, self._spec
        values = attention.v_proj.weight.detach().view(spec.kv_heads, -1).norm(dim=-1)
        out = attention.o_proj.weight.detach().view(-1, spec.kv_heads, spec.heads // spec.kv_heads * spec.head_dim)
        return _best(values * out.transpose(0, 1).flatten(1).norm(dim=-1), self._size.heads)

    def _neurons(self) -> Tensor:
        """Numbers of the inner neurons that write most, in their order."""
        mlp = self._layer.mlp
        sizes = [part.weight.detach().norm(dim=-1) for part in (mlp.gate_proj, mlp.up_proj)]
        return _best(sizes[0] * sizes[1] * mlp.down_proj.weight.detach().norm(dim=0), self._size.inner)

    def _reading(self, name: str, part: Any, norm: str, rows: Tensor) -> dict[str, Tensor]:
        weight = part.weight.detach()[rows]
        tensors = {
            f"{name}.weight": weight if self._basis is None else _read_from(weight, self._norm(norm), self._basis)
        }
        return tensors if part.bias is None else tensors | {f"{name}.bias": part.bias.detach()[rows]}

    def _writing(self, name: str, part: Any, columns: Tensor) -> dict[str, Tensor]:
        weight, bias, basis = part.weight.detach()[:, columns], part.bias, self._basis
        tensors = {f"{name}.weight": weight if basis is None else basis.t() @ weight}
        if bias is None:
            return tensors
        return tensors | {f"{name}.bias": bias.detach() if basis is None else bias.detach() @ basis}


def _best(scores: Tensor, count: int) -> Tensor:
    return scores.cpu().argsort(descending=True, stable=True)[:count].sort().values


def _rows(heads: Tensor, size: int) -> Tensor:
    """Rows of whole heads."""
    return (heads[:, None] * size + torch.arange(size)).flatten()
