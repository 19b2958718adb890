"""One pass over the tokens of several conversations: weights are read once for all, each keeps states of its own.

What looks at rows alone (embedding, norms, linear layers, channel mixers, head) runs over all rows one after another. A token
mixer comes apart into what it does to each row before and after, and what it does along the tokens of one conversation.

Letters: `S` tokens of one conversation, `R` rows of all of them, `V` vocabulary, `d` width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outrider.core.model.blocks.attention import Attention
from outrider.core.model.cache.layout import KVSlots, PassLayout, tree_of
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, RINGS, Cache, CacheConfig, KVCache, State
from outrider.core.model.families.spec import AttentionSpec, RopeSpec
from outrider.core.model.kernels.interface import BatchAttention, Fused
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS

from .decoder import Decoder, Pass


class Parted(Protocol):
    """A token mixer in three steps."""

    def new_state(self, room: CacheConfig) -> State | None:
        """As `decoder.Mixer`."""
        ...

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """[R, d] -> what the other two steps take, each part with R rows; depends on each row alone."""
        ...

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """What the S rows of one conversation take from its memory and leave there: [S, ...]. May write over `parts`."""
        ...

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """[R, ...] -> [R, d], plus the residual if there is one; depends on each row alone."""
        ...


class SequencePass(NamedTuple):
    """One conversation's share of a pass."""

    ids: Sequence[int]  # [S], the root and the draft
    cache: Cache
    parents: Sequence[int] | None = None  # as in `TargetModel.forward`
    states: tuple[int, ...] = ()  # numbers of the residuals to export


class BatchLayout(PassLayout):
    """Several places, one behind the other, each with the states that belong to it."""

    def __init__(self, decoder: Decoder, shares: Sequence[SequencePass]) -> None:
        tables, dtype, device = decoder.weights.tables, decoder.dtype, decoder.device
        super().__init__(0, sum(len(share.ids) for share in shares), tables, dtype, device)
        self._attentions: dict[tuple[RopeSpec | None, int, tuple[int, ...]], BatchAttention | None] = {}
        self.each: list[tuple[slice, PassLayout, Cache]] = []
        at = 0
        for ids, cache, parents, _ in shares:
            if cache.length + len(ids) > cache.capacity:
                raise ValueError(f"{len(ids)} tokens at {cache.length} exceed a cache of {cache.capacity}")
            tree = None if parents is None else tree_of(parents, cache.length, device)
            where = PassLayout(cache.length, len(ids), tables, dtype, device, tree)
            self.each.append((slice(at, at + len(ids)), where, cache))
            at += len(ids)

    def attended(self, mixed: Tensor, mixer: Attention, source: int) -> Tensor | None:
        """[R, H h] by one fused kernel for all conversations; None where there is none for this layer."""
        fast, heads, spec = mixer.fused(mixed), mixer.heads, mixer.spec
        if fast is None or heads is None:
            return None
        states = [cache.states[source] for _, _, cache in self.each]
        places = [
            state.place(where)
            for state, (_, where, _) in zip(states, self.each, strict=True)
            if isinstance(state, KVCache)
        ]
        rings = tuple(-1 if place is None else place[1] for place in places)
        if -1 in rings:
            return None
        key = spec.rope, spec.head_dim, rings
        if key not in self._attentions:
            self._attentions[key] = self._attention(fast, spec, rings)
        attend = self._attentions[key]
        return (
            None
            if attend is None
            else attend(mixed, [state.parts[0] for state in states if isinstance(state, KVCache)], heads)
        )

    def _attention(self, fast: Fused, spec: AttentionSpec, rings: Sequence[int]) -> BatchAttention | None:
        places = []
        for (_, where, _), ring in zip(self.each, rings, strict=True):
            if where.sight is None:
                return None
            cos, sin = (None, None) if spec.rope is None else where.rope(spec.rope, spec.head_dim)
            slots = where.slots(ring) if ring else where.index
            places.append(KVSlots(slots, ring, cos, sin, where.sight))
        return fast.attend_batch(places)


@dataclass(slots=True)
class _Each:
    """A mixer that goes along each conversation by itself."""

    mixer: Parted
    source: int  # of the state

    def new_state(self, room: CacheConfig) -> State | None:
        """As the mixer's."""
        return self.mixer.new_state(room)

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[R, d] -> [R, d]; the states come with the place."""
        assert isinstance(where, BatchLayout)
        parts, made = self.mixer.project(x), list[Tensor]()
        y = where.attended(parts[0], self.mixer, self.source) if isinstance(self.mixer, Attention) else None
        if y is None:
            for rows, place, cache in where.each:
                some = tuple(part[rows] for part in parts)
                made.append(self.mixer.along(some, place, cache.states[self.source]))
            y = torch.cat(made)
        return self.mixer.output(y, parts, residual)


class Batched(Decoder):
    """A decoder's blocks over several conversations."""

    def __init__(self, decoder: Decoder) -> None:
        blocks = []
        for block in decoder.weights.blocks:
            parted = hasattr(block.mixer, "project")  # the others look at no other token
            mixer = _Each(block.mixer, block.source) if parted else block.mixer  # type: ignore[arg-type]
            blocks.append(replace(block, mixer=mixer))
        super().__init__(decoder.spec, replace(decoder.weights, blocks=tuple(blocks)))
        self._alone = decoder
        self.unnamed = decoder.unnamed

    @torch.inference_mode()
    def together(self, shares: Sequence[SequencePass]) -> list[Pass]:
        """A pass after the committed tokens of each conversation; nothing is committed.

        As many passes as keep each within `MAX_DECODE_ROWS` rows: a row's result does not depend on the others there.
        """
        passes: list[Pass] = []
        for some in _packed(shares):
            passes += [self._single(*some)] if len(some) == 1 else self._pass(some)
        return passes

    def _single(self, share: SequencePass) -> Pass:
        """The pass of one conversation, which has faster steps."""
        tree = None if share.parents is None else tree_of(share.parents, share.cache.length, self.device)
        ids = torch.tensor(share.ids, device=self.device)
        return self._alone.run(ids, share.cache, states=share.states, tree=tree)

    def _pass(self, shares: Sequence[SequencePass]) -> list[Pass]:
        states = sorted({number for share in shares for number in share.states})
        kept: dict[int, Tensor] = {}
        ids = torch.tensor([token for share in shares for token in share.ids], device=self.device)
        where = BatchLayout(self, shares)
        x = self._blocks(ids, shares[0].cache, where, range(len(self.weights.blocks)), (states, kept))
        logits = self.logits(x)  # [R, V]
        made = []
        for share, (rows, _, _) in zip(shares, where.each, strict=True):
            hidden = torch.stack([kept[k][rows] for k in share.states], 1) if share.states else None
            made.append(Pass(logits[rows], hidden))
        return made


def _packed(shares: Sequence[SequencePass]) -> Iterator[Sequence[SequencePass]]:
    """Shares that go into one pass, in order."""
    first = rows = 0
    for number, share in enumerate(shares):
        if rows and rows + len(share.ids) > MAX_DECODE_ROWS:
            yield shares[first:number]
            first, rows = number, 0
        rows += len(share.ids)
    if rows:
        yield shares[first:]


def state_bytes(decoder: Decoder, tokens: int) -> int:
    """What the states of a conversation of so many tokens take."""
    room = CacheConfig(tokens + MAX_DRAFT_ROWS, decoder.dtype, torch.device("meta"), MAX_DRAFT_ROWS, RINGS)
    states = (block.mixer.new_state(room) for block in decoder.weights.blocks)
    return sum(state.nbytes for state in states if state is not None)
