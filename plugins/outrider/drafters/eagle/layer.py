"""The one layer of an EAGLE draft, and what stands before and behind it.

Letters: `S` rows, `d` width of the draft, `D` width of the target, `n` states read, `Vd` words of its head, `V` of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import Target
from outrider.core.errors import ModelError
from outrider.core.target.attention import Attention
from outrider.core.target.linear import Form, Linear
from outrider.core.target.load import tables
from outrider.core.target.mlp import ACTIVATIONS, Dense
from outrider.core.target.norm import Norm
from outrider.core.target.reader import Reader
from outrider.core.target.spec import AttentionSpec, DenseSpec
from outrider.core.target.state import Rows
from outrider.core.target.where import Tables, Where

from .format import AGAIN, EMBED_NORM, HEADS, HIDDEN_NORM, LAYER, OTHER, Container, Source

SAMPLE, NEAR = 64, 0.1  # rows of an embedding that are compared, and how much of their norm may differ


@dataclass(frozen=True, slots=True)
class Mixed:
    """EAGLE-1: embedding and state become one row through `fc`."""

    fc: Linear  # 2 d -> d
    final: Callable[[Tensor], Tensor]  # the target's norm

    def fuse(self, states: Tensor) -> Tensor:
        """[S, 1, D] -> [S, d]: what the target's head sees."""
        return self.final(states[:, 0])

    def __call__(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[S, d] twice -> what attention reads, and the residual."""
        x = self.fc(torch.cat((embedded, state), -1))
        return x, x


@dataclass(frozen=True, slots=True)
class Paired:
    """EAGLE-3: several states become one through `fc`; attention reads it beside the embedding."""

    fc: Linear | None  # n D -> d
    each: tuple[Norm, ...]  # of every state (EAGLE-3.1), or none
    whole: Norm | None  # of all states side by side
    final: Callable[[Tensor], Tensor] | None  # the target's norm, where the one state is read behind it
    before_embedding: Norm | None
    before_state: Norm
    norm_first: bool  # the residual takes the normed state

    def fuse(self, states: Tensor) -> Tensor:
        """[S, n, D] -> [S, d]."""
        if self.final is not None:
            states = self.final(states)
        if self.each:
            states = torch.stack([norm(states[:, index]) for index, norm in enumerate(self.each)], 1)
        x = states.flatten(1)
        x = x if self.whole is None else self.whole(x)
        return x if self.fc is None else self.fc(x)

    def __call__(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[S, d] twice -> what attention reads [S, 2 d], and the residual [S, d]."""
        normed = self.before_state(state)
        embedded = embedded if self.before_embedding is None else self.before_embedding(embedded)
        return torch.cat((embedded, normed), -1), normed if self.norm_first else state


@dataclass(frozen=True, slots=True)
class Layer:
    """All weights of a draft. Immutable, so that forks share it."""

    embed: Callable[[Tensor], Tensor]  # ids [S] -> [S, d]
    entry: Mixed | Paired
    attention: Attention
    before_mlp: Norm
    mlp: Dense
    norm: Norm | None
    head: Callable[[Tensor], Tensor]  # [S, d] -> [S, Vd]
    words: Tensor | None  # [Vd] ids of the target; None: the same ids
    tables: Tables
    norm_output: bool
    nbytes: int

    def __call__(self, ids: Tensor, state: Tensor, where: Where, rows: Rows) -> Tensor:
        """Features [S, d] for tokens [S], each with the (fused or fed back) state [S, d] that produced it."""
        x, residual = self.entry(self.embed(ids), state)
        x = self.attention(x, where, rows, residual)
        return self.mlp(self.before_mlp(x), x)

    def logits(self, feature: Tensor) -> Tensor:
        """[S, d] -> [S, Vd]."""
        return self.head(feature if self.norm is None else self.norm(feature))

    def fed_back(self, feature: Tensor) -> Tensor:
        """[S, d] -> [S, d]: the state of the tokens that were guessed from these features."""
        return self.norm(feature) if self.norm_output and self.norm is not None else feature


def load(source: Source, container: Container, target: Target, rows: int, norm_output: bool | None) -> Layer:
    """The weights of `source` for `target`, rope tables of `rows` positions. `norm_output` None: as the config says.

    Raises ModelError for a tensor of another shape than the config says, or ids outside the vocabulary.
    """
    spec, holds = container.spec, source.holds()
    read = Reader(source, spec, Form(target.dtype, target.device))
    mixer, channel = spec.layers[0].mixer, spec.layers[0].channel
    assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
    before_mlp = read.norm(f"{LAYER}post_attention_layernorm")
    assert before_mlp is not None
    return Layer(
        embed=_embedding(read, source, container, target),
        entry=_entry(read, container, target, holds),
        attention=_attention(read, mixer, spec.width * (2 if container.version == 3 else 1), holds),
        before_mlp=before_mlp,
        mlp=_mlp(read, channel, spec.width),
        norm=read.norm("norm") if "norm.weight" in holds else None,
        head=_head(read, container, target, holds),
        words=_words(source, container, target) if "d2t" in holds else None,
        tables=tables(spec, rows, target.dtype, target.device),
        norm_output=container.norm_output if norm_output is None else norm_output,
        nbytes=read.nbytes,
    )


def _entry(read: Reader, container: Container, target: Target, holds: set[str]) -> Mixed | Paired:
    d, bias = container.spec.width, "fc.bias" in holds
    if container.version == 1:
        return Mixed(read.linear("fc", d, 2 * d, bias), target.norm)
    width = target.info.width
    count = container.count(width)
    found = {f"fc_norm.{index}" for index in range(count)} & {name.removesuffix(".weight") for name in holds}
    if found and len(found) != count:
        raise ModelError(f"{container.name} has {len(found)} norms for {count} states.", AGAIN)
    each = [read.norm(name, width) for name in sorted(found)]
    before_state = read.norm(HIDDEN_NORM.removesuffix(".weight"))
    assert before_state is not None
    return Paired(
        fc=read.linear("fc", d, count * width, bias) if container.fused else None,
        each=tuple(norm for norm in each if norm is not None),
        whole=read.norm("input_norm", count * width) if "input_norm.weight" in holds else None,
        final=target.norm if container.normed(width) else None,
        before_embedding=read.norm(EMBED_NORM.removesuffix(".weight")) if EMBED_NORM in holds else None,
        before_state=before_state,
        norm_first=container.norm_before_residual,
    )


def _attention(read: Reader, spec: AttentionSpec, columns: int, holds: set[str]) -> Attention:
    at, h = f"{LAYER}self_attn.", spec.head_dim
    sizes = (("q", spec.heads * h), ("k", spec.kv_heads * h), ("v", spec.kv_heads * h))
    mix = read.fused(
        [read.matrix(f"{at}{name}_proj.weight", size, columns) for name, size in sizes],
        [read.tensor(f"{at}{name}_proj.bias", size) for name, size in sizes] if spec.bias else [],
    )
    norms = [read.norm(name.removesuffix(".weight"), h) if spec.qk_norm else None for name in sorted(HEADS)]
    out = read.linear(f"{at}o_proj", read.spec.width, spec.heads * h, spec.output_bias)
    return Attention(spec, mix, out, k_norm=norms[0], q_norm=norms[1])


def _mlp(read: Reader, spec: DenseSpec, d: int) -> Dense:
    at, halves = f"{LAYER}mlp.", ("gate_proj", "up_proj")
    gate_up = read.fused(
        [read.matrix(f"{at}{name}.weight", spec.width, d) for name in halves],
        [read.tensor(f"{at}{name}.bias", spec.width) for name in halves] if spec.bias else [],
    )
    return Dense(gate_up, read.linear(f"{at}down_proj", d, spec.width, spec.bias), ACTIVATIONS[spec.activation])


def _head(read: Reader, container: Container, target: Target, holds: set[str]) -> Callable[[Tensor], Tensor]:
    if "lm_head.weight" in holds:
        return read.layer(read.stored("lm_head.weight", container.words, container.spec.width, None))
    if container.spec.width != target.info.width:
        raise ModelError(f"{container.name} has no head and is not as wide as {target.info.name}.", OTHER)
    return target.head


def _embedding(read: Reader, source: Source, container: Container, target: Target) -> Callable[[Tensor], Tensor]:
    """The target's own, scaled as it is there, unless the draft was trained with another."""
    same_width = container.spec.width == target.info.width
    if "embed_tokens.weight" not in source.holds():
        if not same_width:
            raise ModelError(f"{container.name} has no embedding and is not as wide as {target.info.name}.", OTHER)
        return target.embed
    borrowed = container.version == 1 or not container.keeps_embedding
    if same_width and borrowed and (container.version == 1 or _same(source, target)):
        return target.embed
    return read.table("embed_tokens.weight", container.spec.width)


def _same(source: Source, target: Target) -> bool:
    """Whether rows of the draft's table are the target's, up to how the two are stored."""
    vocab = target.info.vocab
    ids = torch.arange(0, vocab, max(1, vocab // SAMPLE))
    ours = source.load("model.embed_tokens.weight")[ids].float()
    theirs = target.embed_raw(ids.to(target.device)).float().cpu()
    return ours.shape == theirs.shape and bool((ours - theirs).norm() <= NEAR * theirs.norm())


def _words(source: Source, container: Container, target: Target) -> Tensor:
    """The target's id of every word of a reduced head, [Vd]; files hold the distance to it."""
    offsets = source.load("d2t")
    ids = torch.arange(container.words) + offsets
    if offsets.is_floating_point() or not bool(((ids >= 0) & (ids < target.info.vocab)).all()):
        raise ModelError(f"{container.name}: d2t leads outside the vocabulary.", AGAIN)
    return ids.to(target.device, torch.int64)
