"""The layers of an EAGLE draft, mostly one, and what stands before and behind them.

Letters: `S` rows, `d` width of the draft, `D` width of the target, `n` states read, `Vd` words of its head, `V` of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Target
from outrider.core.formats.stored import words
from outrider.core.model.blocks import block as blocks
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import KVCache
from outrider.core.model.families.spec import AttentionSpec, DenseSpec
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.load import tables
from outrider.core.model.reader import Reader
from outrider.core.model.stack import Stack, stack_of

from .format import AGAIN, EMBED_NORM, HIDDEN_NORM, OTHER, Container, Source, first_norm

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
        return self.joined(states if self.final is None else self.final(states))

    def joined(self, states: Tensor) -> Tensor:
        """[S, n, D] -> [S, d] of states that stand behind the target's norm where that is read."""
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
class Block:
    """One layer."""

    before: Norm | None  # of the residual; none in the first layer, where the entry makes what attention reads
    attention: Attention
    before_mlp: Norm
    mlp: Dense

    @property
    def whole(self) -> blocks.Block:
        """The same as a block of a decoder."""
        return blocks.Block(self.attention, self.mlp, 0, self.before, None, self.before_mlp, None)

    def __call__(self, x: Tensor, residual: Tensor, where: PassLayout, rows: KVCache) -> Tensor:
        """The residual [S, d] behind it; attention reads `x`."""
        x = self.attention(x, where, rows, residual)
        return self.mlp(self.before_mlp(x), x)


class Mask(NamedTuple):
    """What P-EAGLE puts where a token and its state are not known."""

    token: int
    state: Tensor  # [1, d], fused


@dataclass(frozen=True, slots=True)
class Network:
    """All weights of a draft. Immutable, so that forks share it."""

    embed: Callable[[Tensor], Tensor]  # ids [S] -> [S, d]
    entry: Mixed | Paired
    blocks: tuple[Block, ...]
    norm: Norm | None
    head: Callable[[Tensor], Tensor]  # [S, d] -> [S, Vd]
    words: Tensor | None  # [Vd] ids of the target; None: the same ids
    mask: Mask | None
    tables: Tables
    norm_output: bool
    nbytes: int
    stack: Stack | None  # all blocks in one go, where the processor can

    def __call__(self, ids: Tensor, state: Tensor, where: PassLayout, memory: Sequence[KVCache]) -> Tensor:
        """Features [S, d] for tokens [S], each with the (fused or fed back) state [S, d] that produced it."""
        x, residual = self.entry(self.embed(ids), state)
        made = None if self.stack is None else self.stack.through(residual, where, memory, x)
        if made is not None:
            return made
        for block, rows in zip(self.blocks, memory, strict=True):
            x = x if block.before is None else block.before(residual)
            residual = block(x, residual, where, rows)
        return residual

    def run(
        self, memory: Sequence[KVCache], ids: Tensor, state: Tensor, where: PassLayout, newest: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """As `DraftState` runs it: logits [k, Vd] of the newest rows, and what is fed back behind each [k, d]."""
        feature = self(ids, state, where, memory)[newest]
        return self.logits(feature), self.fed_back(feature)

    def logits(self, feature: Tensor) -> Tensor:
        """[S, d] -> [S, Vd]."""
        return self.head(feature if self.norm is None else self.norm(feature))

    def fed_back(self, feature: Tensor) -> Tensor:
        """[S, d] -> [S, d]: the state of the tokens that were guessed from these features."""
        return self.norm(feature) if self.norm_output and self.norm is not None else feature


def load(source: Source, container: Container, target: Target, rows: int) -> Network:
    """The weights of `source` for `target`, rope tables of `rows` positions.

    Raises ModelError for a tensor of another shape than the config says, or ids outside the vocabulary.
    """
    spec, holds = container.spec, source.holds()
    read = Reader(source, spec, target.beside)
    entry = _entry(read, container, target, holds)
    blocks = tuple(_block(read, container, index, holds) for index in range(len(spec.layers)))
    ropes = tables(spec, rows, target.dtype, target.device)
    return Network(
        embed=_embedding(read, source, container, target),
        entry=entry,
        blocks=blocks,
        norm=read.norm("norm") if "norm.weight" in holds else None,
        head=_head(read, source, container, target),
        words=_words(source, container, target) if "d2t" in holds else None,
        mask=_mask(read, container, entry, target.info.width),
        tables=ropes,
        norm_output=container.norm_output,
        nbytes=read.nbytes,
        stack=stack_of(
            [block.whole for block in blocks], ropes, torch.empty(0, dtype=target.dtype, device=target.device)
        ),
    )


def _mask(read: Reader, container: Container, entry: Mixed | Paired, width: int) -> Mask | None:
    if container.mask is None or isinstance(entry, Mixed):
        return None
    states = read.tensor("mask_hidden", container.count(width) * width)
    return Mask(container.mask, entry.joined(states.view(1, -1, width)))


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


def _block(read: Reader, container: Container, index: int, holds: set[str]) -> Block:
    spec = container.spec
    mixer, channel = spec.layers[index].mixer, spec.layers[index].channel
    assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
    wide = spec.width * (2 if container.version == 3 and not index else 1)
    before_mlp = read.norm(f"layers.{index}.post_attention_layernorm")
    assert before_mlp is not None
    return Block(
        before=read.norm(first_norm(index, holds)) if index else None,
        attention=_attention(read, mixer, f"layers.{index}.self_attn.", wide),
        before_mlp=before_mlp,
        mlp=_mlp(read, channel, f"layers.{index}.mlp.", spec.width),
    )


def _attention(read: Reader, spec: AttentionSpec, at: str, columns: int) -> Attention:
    h = spec.head_dim
    sizes = (("q", spec.heads * h), ("k", spec.kv_heads * h), ("v", spec.kv_heads * h))
    mix = read.fused(
        [read.matrix(f"{at}{name}_proj.weight", size, columns) for name, size in sizes],
        [read.tensor(f"{at}{name}_proj.bias", size) for name, size in sizes] if spec.bias else [],
    )
    q_norm, k_norm = (read.norm(f"{at}{name}_norm", h) if spec.qk_norm else None for name in "qk")
    out = read.linear(f"{at}o_proj", read.spec.width, spec.heads * h, spec.output_bias)
    return Attention(spec, mix, out, q_norm=q_norm, k_norm=k_norm)


def _mlp(read: Reader, spec: DenseSpec, at: str, d: int) -> Dense:
    halves = "gate_proj", "up_proj"
    gate_up = read.fused(
        [read.matrix(f"{at}{name}.weight", spec.width, d) for name in halves],
        [read.tensor(f"{at}{name}.bias", spec.width) for name in halves] if spec.bias else [],
    )
    return Dense(gate_up, read.linear(f"{at}down_proj", d, spec.width, spec.bias), spec.activation)


def _head(read: Reader, source: Source, container: Container, target: Target) -> Callable[[Tensor], Tensor]:
    holds = source.holds()
    if container.tied and "d2t" in holds:
        return read.own(target.rows(_words(source, container, target)))
    if "lm_head.weight" in holds:
        return read.layer(read.stored("lm_head.weight", container.words, container.spec.width, read.form.quantize))
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
    """The target's id of every word of a reduced head, [Vd]."""
    marks = source.load("t2d") if "t2d" in source.holds() else None
    return words(source.load("d2t"), marks, target.info.vocab, container.name).to(target.device)
