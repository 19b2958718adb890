"""The layers of an EAGLE draft, mostly one, and what stands before and after them.

Letters: `S` rows, `d` width of the draft, `D` width of the target, `n` states read, `Vd` words of its head, `V` of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Target
from outrider.core.drafting.files import DraftFiles
from outrider.core.drafting.layers import DraftLayers, Layout, Part, Rows, WeightReader, load_layers

from .format import AGAIN, EMBED_NORM, HIDDEN_NORM, OTHER, Container

SAMPLE, NEAR = 64, 0.1  # rows of an embedding that are compared, and how much of their norm may differ


@dataclass(frozen=True, slots=True)
class Mixed:
    """EAGLE-1: embedding and state become one row through `fc`."""

    fc: Part  # 2 d -> d
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

    fc: Part | None  # n D -> d
    each: tuple[Part, ...]  # norms of every state (EAGLE-3.1), or none
    whole: Part | None  # norm of all states side by side
    final: Callable[[Tensor], Tensor] | None  # the target's norm, where the one state is read after it
    before_embedding: Part | None  # norm
    before_state: Part  # norm
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


class Mask(NamedTuple):
    """What P-EAGLE puts where a token and its state are not known."""

    token: int
    state: Tensor  # [1, d], fused


@dataclass(frozen=True, slots=True)
class Network:
    """All weights of a draft. Immutable, so that forks share it."""

    embed: Callable[[Tensor], Tensor]  # ids [S] -> [S, d]
    entry: Mixed | Paired
    layers: DraftLayers
    norm: Part | None
    head: Callable[[Tensor], Tensor]  # [S, d] -> [S, Vd]
    words: Tensor | None  # [Vd] ids of the target; None: the same ids
    mask: Mask | None
    norm_output: bool
    nbytes: int

    @property
    def tables(self) -> Any:
        """Of its ropes."""
        return self.layers.tables

    def __call__(self, ids: Tensor, state: Tensor, where: Layout, memory: Rows) -> Tensor:
        """Features [S, d] for tokens [S], each with the (fused or fed back) state [S, d] that produced it."""
        x, residual = self.entry(self.embed(ids), state)
        return self.layers(residual, where, memory, x)

    def run(
        self, memory: Rows, ids: Tensor, state: Tensor, where: Layout, newest: Tensor | slice
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


def load(files: DraftFiles, container: Container, target: Target, slack: int) -> Network:
    """The weights of `files` for `target`, for `slack` positions beyond its context.

    Raises ModelError for a tensor of another shape than the config says, or ids outside the vocabulary.
    """
    read = WeightReader(files, container.spec, target, prefix="")
    entry, layers = _entry(read, container, target), load_layers(read, slack=slack)
    return Network(
        embed=_embedding(read, files, container, target),
        entry=entry,
        layers=layers,
        norm=read.norm("norm") if "norm.weight" in files.holds else None,
        head=_head(read, files, container, target),
        words=files.words(target.info.vocab).to(target.device) if "d2t" in files.holds else None,
        mask=_mask(read, container, entry, target.info.width),
        norm_output=container.norm_output,
        nbytes=read.nbytes,
    )


def _mask(read: WeightReader, container: Container, entry: Mixed | Paired, width: int) -> Mask | None:
    if container.mask is None or isinstance(entry, Mixed):
        return None
    states = read.tensor("mask_hidden", container.count(width) * width)
    return Mask(container.mask, entry.joined(states.view(1, -1, width)))


def _entry(read: WeightReader, container: Container, target: Target) -> Mixed | Paired:
    d, bias = container.spec.width, read.has("fc.bias")
    if container.version == 1:
        return Mixed(read.linear("fc", d, 2 * d, bias), target.norm)
    width = target.info.width
    count = container.count(width)
    found = [name for index in range(count) if read.has(f"{(name := f'fc_norm.{index}')}.weight")]
    if found and len(found) != count:
        raise ModelError(f"{container.name} has {len(found)} norms for {count} states.", AGAIN)
    return Paired(
        fc=read.linear("fc", d, count * width, bias) if container.fused else None,
        each=tuple(read.norm(name, width) for name in found),
        whole=read.norm("input_norm", count * width) if read.has("input_norm.weight") else None,
        final=target.norm if container.normed(width) else None,
        before_embedding=read.norm(EMBED_NORM.removesuffix(".weight")) if read.has(EMBED_NORM) else None,
        before_state=read.norm(HIDDEN_NORM.removesuffix(".weight")),
        norm_first=container.norm_before_residual,
    )


def _head(read: WeightReader, files: DraftFiles, container: Container, target: Target) -> Callable[[Tensor], Tensor]:
    if "d2t" in files.holds and (container.tied or "lm_head.weight" in files.holds):
        return read.reduced_head(container.words, tied=container.tied)
    if "lm_head.weight" in files.holds:
        return read.linear("lm_head", container.words, container.spec.width)
    if container.spec.width != target.info.width:
        raise ModelError(f"{container.name} has no head and is not as wide as {target.info.name}.", OTHER)
    return target.head


def _embedding(
    read: WeightReader, files: DraftFiles, container: Container, target: Target
) -> Callable[[Tensor], Tensor]:
    """The target's own, scaled as it is there, unless the draft was trained with another."""
    same_width = container.spec.width == target.info.width
    if "embed_tokens.weight" not in files.holds:
        if not same_width:
            raise ModelError(f"{container.name} has no embedding and is not as wide as {target.info.name}.", OTHER)
        return target.embed
    borrowed = container.version == 1 or not container.keeps_embedding
    if same_width and borrowed and (container.version == 1 or _same(files, target)):
        return target.embed
    return read.table("embed_tokens.weight", container.spec.width)


def _same(files: DraftFiles, target: Target) -> bool:
    """Whether rows of the draft's table are the target's, up to how the two are stored."""
    vocab = target.info.vocab
    ids = torch.arange(0, vocab, max(1, vocab // SAMPLE))
    ours = files.load("embed_tokens.weight")[ids].float()
    theirs = target.embed_raw(ids.to(target.device)).float().cpu()
    return ours.shape == theirs.shape and bool((ours - theirs).norm() <= NEAR * theirs.norm())
