"""The block diffusion drafter: one pass over the anchor and mask tokens, with the target's states as its context.

Sources: DFlash (arXiv 2602.06036), DFlash2 (z-lab, 2026: a convolution around each mixer).

Every layer takes keys and values of the context straight from one fused target state for each committed token; they never
change, so they are computed once. Those of the block are provisional.

Letters: `d` width, `P` target states of a row, `B` slots, `C` context rows, `K` key/value heads, `h` head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import Target
from outrider.core.drafting.state import DraftState, Scratch
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.blocks.rope import rotate_
from outrider.core.model.cache.layout import LOOSE, PassLayout, Tables, Tree
from outrider.core.model.cache.states import KVCache
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.stack import Stack, stack_of

from .format import Plan, Sight


@dataclass(frozen=True, slots=True)
class Conv:
    """Two short convolutions over the block, one before and one behind a mixer; both kernels come from what goes in."""

    base: Tensor  # [2, taps, d]
    projection: Linear  # d -> 2 taps groups

    def around(self, u: Tensor, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, d] -> [B, d]."""
        rows, (_, taps, width) = u.shape[0], self.base.shape
        extra = self.projection(u).view(rows, 2, taps, -1)  # [B, 2, taps, groups]
        kernels = self.base + extra.repeat_interleave(width // extra.shape[-1], -1)  # [B, 2, taps, d]
        return _convolved(kernels[:, 1], mixer(_convolved(kernels[:, 0], u)))


def _convolved(kernel: Tensor, x: Tensor) -> Tensor:
    """Tap s of the kernel [B, taps, d] weighs the slot s places earlier of `x` [B, d]; nothing stands before the block."""
    y = kernel[:, 0] * x
    for tap in range(1, kernel.shape[1]):
        y[tap:] += kernel[tap:, tap] * x[:-tap]
    return y


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; `context` is the part of its attention that fused target states go through."""

    sight: Sight
    attention: Attention
    context: Linear  # d -> 2 K h
    dense: Dense
    before_attention: Norm
    before_dense: Norm
    attention_conv: Conv | None
    dense_conv: Conv | None

    @property
    def whole(self) -> Block | None:
        """The same as a block of a decoder; None where it has convolutions, which that knows nothing of."""
        if self.attention_conv is not None or self.dense_conv is not None:
            return None
        return Block(self.attention, self.dense, 0, self.before_attention, None, self.before_dense, None)

    def keep(self, fused: Tensor, where: PassLayout, rows: KVCache) -> None:
        """Keys and values of context rows, from fused states [n, d]."""
        spec = self.attention.spec
        keys, values = self.context(fused).view(fused.shape[0], -1, spec.head_dim).chunk(2, 1)  # each [n, K, h]
        if self.attention.k_norm is not None:
            keys = self.attention.k_norm(keys)
        if spec.rope is not None:
            rotate_(keys, *where.rope(spec.rope, spec.head_dim))
        rows.take(where, torch.cat((keys, values), 1))

    def __call__(self, x: Tensor, where: PassLayout, rows: KVCache) -> Tensor:
        """Slots [B, d] -> [B, d]."""
        u = self.before_attention(x)
        if self.attention_conv is None:
            x = self.attention(u, where, rows, x)
        else:
            x = x + self.attention_conv.around(u, lambda v: self.attention(v, where, rows))
        u = self.before_dense(x)
        return self.dense(u, x) if self.dense_conv is None else x + self.dense_conv.around(u, self.dense)


@dataclass(frozen=True, slots=True)
class Network:
    """The weights, and how they run."""

    plan: Plan
    fuse: Linear  # P d -> d
    fuse_norm: Norm
    layers: tuple[Layer, ...]
    norm: Norm
    tables: Tables
    stack: Stack | None  # all layers in one go, where the processor can

    @property
    def loose(self) -> bool:
        """Whether a layer's window ends at the anchor, which takes loose rows."""
        return any(layer.sight.window and layer.sight.reading != "slot" for layer in self.layers)

    def new_state(self, target: Target) -> DraftState:
        """Of a new conversation: context rows from the target's states [S, P, d]."""
        mixers = [layer.attention for layer in self.layers]
        return DraftState(target, mixers, self.tables, lambda states: states, self._keep)

    def _keep(
        self, memory: Sequence[KVCache], ids: Tensor, states: Tensor, where: PassLayout, newest: Tensor | slice
    ) -> None:
        """Target states [n, P, d] of committed tokens become context rows."""
        fused = self.fuse_norm(self.fuse(states.flatten(1)))
        for layer, kept in zip(self.layers, memory, strict=True):
            layer.keep(fused, where, kept)

    def block(self, x: Tensor, scratch: Scratch, memory: Sequence[KVCache]) -> Tensor:
        """Slots [B, d], embedded, behind the context rows -> their states [B, d] behind the last norm."""
        places: dict[Sight, PassLayout] = {}
        for layer in self.layers:
            if layer.sight not in places:
                tree = tree_of(layer.sight, scratch.base, scratch.shift, x.shape[0], x.device)
                places[layer.sight] = scratch.layout(x.shape[0], tree)
        if self.stack is not None:
            made = self.stack.through(x, next(iter(places.values())), memory)
            if made is not None:
                return self.norm(made)
        for layer, kept in zip(self.layers, memory, strict=True):
            x = layer(x, places[layer.sight], kept)
        return self.norm(x)


def stack(layers: Sequence[Layer], tables: Tables, like: Tensor) -> Stack | None:
    """The layers in one go, if all see the same slots and C runs them; `like` has their dtype and lies on their device."""
    blocks = [block for block in (layer.whole for layer in layers) if block is not None]
    alike = len(blocks) == len(layers) and len({layer.sight for layer in layers}) == 1
    return stack_of(blocks, tables, like) if alike else None


def tree_of(sight: Sight, count: int | Tensor, shift: int | Tensor, slots: int, device: torch.device) -> Tree:
    """Whom `slots` behind `count` context rows see; a block is never longer than a window, so its slots see each other.
    `shift`: how far positions are ahead of rows.

    A window that ends at the anchor leaves the same W context rows to every slot: these are given as loose rows at the
    anchor's position, where the window of no slot ends before them, and all that lies below them is outside it. Where only
    the device knows `count`, [1], they begin so far before it even where the context does not: more than a kernel takes.
    """
    offsets = torch.arange(slots, device=device)
    behind = offsets - offsets[:, None]  # [B, B] how far a column stands behind a row
    seen = behind <= 0 if sight.causal else torch.ones_like(behind, dtype=torch.bool)
    if sight.reading == "slot" or not sight.window:
        return Tree(count, offsets + (count + shift), seen)
    if isinstance(count, Tensor):
        before = max(sight.window, LOOSE)
        ahead = torch.arange(-before, slots, device=device)  # [T]
        near = (ahead[:before] >= -sight.window).expand(slots, -1)
        return Tree(count - before, count + ahead.clamp(min=0), torch.cat((near, seen), 1))
    base = max(0, count - sight.window)
    open_ = torch.ones(slots, count - base, dtype=torch.bool, device=device)
    positions = torch.cat((torch.full((count - base,), count, device=device), offsets + count))
    return Tree(base, positions, torch.cat((open_, seen), 1))
