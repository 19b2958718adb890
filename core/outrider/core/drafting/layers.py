"""Layers of a drafter's own, from its files to passes: the one way in which a drafter gets at weights.

A `WeightReader` reads linear layers, norms, tables and heads by name and checks their shapes. `load_layers` reads whole
transformer layers with their rope tables. `DraftLayers` runs them over the rows of a `DraftState`, in one go where the
processor can.

Letters: `S` rows of a pass, `C` rows read, `d` width of the draft, `K` key heads, `h` head size, `V` words of the target, `Vd`
of them that a reduced head knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block, Mixer
from outrider.core.model.blocks.rope import rotate_
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import LOOSE, PassLayout, Tables, Tree
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, CacheConfig, KVCache, State
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, TargetSpec
from outrider.core.model.kernels.linear import Linear, Stacked, Table
from outrider.core.model.load import tables
from outrider.core.model.stack import Stack, stack_of

from .contract import Target
from .files import DraftFiles
from .state import Scratch

if TYPE_CHECKING:
    from outrider.core.model.kernels.forms import WeightFormat

Part = Callable[[Tensor], Tensor]  # a linear layer or a norm [S, i] -> [S, o], or a table, ids [S] -> [S, o]
# what `DraftState` hands to `run`, and a drafter on to its layers
Rows = Sequence[KVCache]  # of all layers
Layout = PassLayout  # of a pass


class WeightReader(Builder):
    """Reads a drafter's tensors by name, kept as a drafter keeps matrices of its own, or in another `form`."""

    apart = False  # queries are kept apart from keys and values, which `DraftLayers.keep` then makes alone

    def __init__(
        self,
        files: DraftFiles,
        spec: TargetSpec | None,
        target: Target,
        *,
        form: WeightFormat | None = None,
        prefix: str | None = None,
    ) -> None:
        """`spec`: of the layers, if there are any; `prefix`: what names begin with in the files, None: as a model's do."""
        info = target.info
        spec = spec or TargetSpec("drafter", info.width, info.vocab, target.context, 1e-6, (), tied=False)
        super().__init__(files, spec, form or target.beside)
        self.target, self.files = target, files
        if prefix is not None:
            self.prefix = prefix

    def lookup(self, rows: Tensor) -> Part:
        """Rows [V, o] as a table."""
        return Table(rows, self._dtype)

    def reduced_head(self, rows: int, *, tied: bool, scale: float = 1.0, cap: float | None = None) -> ReducedHead:
        """The head over the `rows` words of `d2t`; `tied`: its rows are the target's, and left out of the files."""
        ids = self.files.words(self.target.info.vocab, self.prefix).to(self.target.device)
        layer = self.own(self.target.rows(ids)) if tied else self.linear("lm_head", rows, self.spec.width)
        return ReducedHead(layer, ids, scale, cap)

    def fused(self, parts: list[Any], biases: list[Tensor]) -> Linear:
        """As `Reader.fused`; with queries `apart`, which come first of three."""
        whole = super().fused
        if not self.apart or len(parts) != 3:
            return whole(parts, biases)
        return Stacked([whole(parts[:1], biases[:1]), whole(parts[1:], biases[1:])])


@dataclass(frozen=True, slots=True)
class ReducedHead:
    """An output layer over some words of the target."""

    layer: Linear  # d -> Vd
    ids: Tensor  # [Vd] of the target
    scale: float = 1.0
    cap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """[S, d] -> [S, Vd]."""
        logits = self.layer(hidden)
        logits = logits if self.scale == 1.0 else logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True, slots=True)
class DraftLayers:
    """Transformer layers. Immutable, so that forks share them."""

    spec: TargetSpec
    blocks: tuple[Block, ...]
    mixers: tuple[Mixer, ...]  # what makes rows, for `DraftState`
    tables: Tables
    stack: Stack | None  # all layers in one go, where the processor can

    def __call__(self, x: Tensor, layout: Layout | Sequence[Layout], rows: Rows, entry: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d] through all layers, each by a layout of its own where there are several.

        `entry` [S, n]: what the first one reads in place of the normed `x`.
        """
        one = isinstance(layout, PassLayout)
        if one and self.stack is not None:
            output = self.stack.through(x, layout, rows, entry)
            if output is not None:
                return output
        for index, block in enumerate(self.blocks):
            state = rows[index] if rows else None
            x = block.run(x, layout if one else layout[index], state, self.spec, None if index else entry)
            x = x if block.scalar is None else x * block.scalar
        return x

    def at(self, position: int, target: Target) -> Layout:
        """Of a pass of one row that stands at `position`."""
        return PassLayout(position, 1, self.tables, target.dtype, target.device)

    def each(self, x: Tensor, layout: Layout, rows: Rows) -> list[Tensor]:
        """What every layer makes of the same [S, d]."""
        return [block.run(x, layout, kept, self.spec) for block, kept in zip(self.blocks, rows, strict=True)]

    def keep(self, x: Tensor, layout: Layout, rows: Rows) -> None:
        """Write keys and values of every layer for the same [S, d], and nothing else; read with queries `apart`."""
        for mixer, layer_rows in zip(self.mixers, rows, strict=True):
            assert isinstance(mixer, Attention) and isinstance(mixer.mix, Stacked)
            spec = mixer.spec
            keys, values = mixer.mix.parts[1](x).view(x.shape[0], -1, spec.head_dim).chunk(2, 1)  # each [S, K, h]
            if mixer.k_norm is not None:
                keys = mixer.k_norm(keys)
            if spec.rope is not None:
                rotate_(keys, *layout.rope(spec.rope, spec.head_dim))
            layer_rows.take(layout, torch.cat((keys, values), 1))


@torch.inference_mode()
def load_layers(
    read: WeightReader,
    numbers: Sequence[int] | None = None,
    *,
    slack: int = MAX_DRAFT_ROWS,
    ropes: Tables | None = None,
    change: Callable[[int, Block], object] | None = None,
) -> DraftLayers:
    """The layers of these numbers, all if None, with rope tables that reach `slack` positions beyond the target's context.

    `ropes`: tables of other layers of the same kind, to share. `change` may put something else around or in place of a block's
    parts. Raises ModelError, BrokenFileError.
    """
    spec, target = read.spec, read.target
    numbers = range(len(spec.layers)) if numbers is None else numbers
    blocks = tuple(read.block(number) for number in numbers)
    mixers = tuple(block.mixer for block in blocks)
    if ropes is None:
        own = replace(spec, layers=tuple(spec.layers[number] for number in numbers))
        ropes = tables(own, target.context + slack, target.dtype, target.device)
    for index, block in enumerate(blocks):
        if change is not None:
            change(index, block)
    like = torch.empty(0, dtype=target.dtype, device=target.device)
    plain = not spec.parallel and spec.residual_scale == 1.0
    return DraftLayers(spec, blocks, mixers, ropes, stack_of(blocks, ropes, like) if plain else None)


# ------------------------------------------------------------------------------------------------ other attention


class BorrowedAttention:
    """Attention of one row over keys and values that the target wrote."""

    def __init__(self, attention: Attention, source: int) -> None:
        self.spec, self.source = attention.spec, source
        self._q, self._q_norm, self._out = attention.mix, attention.q_norm, attention.out
        self.keys = self.values = torch.empty(0)  # [K, C, h]

    @classmethod
    def of(cls, block: Block, target: Target) -> BorrowedAttention:
        """Take the place of a block's attention, over the rows of the target's last layer of its kind. Raises ModelError."""
        assert isinstance(block.mixer, Attention)
        block.mixer = attention = cls(block.mixer, _source(read_spec(target.info.config), block.mixer.spec))
        return attention

    def new_state(self, room: CacheConfig) -> State | None:
        """None: it keeps nothing."""
        return None

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[1, d] -> [1, d], plus the residual if there is one."""
        spec, kv_heads = self.spec, self.keys.shape[0]
        q = self._q(x).view(1, spec.heads, spec.head_dim)
        if self._q_norm is not None:
            q = self._q_norm(q)
        if spec.rope is not None:
            rotate_(q, *where.rope(spec.rope, spec.head_dim))
        q = q.view(1, kv_heads, -1, spec.head_dim)  # a group's queries are its rows
        y = F.scaled_dot_product_attention(q, self.keys[None], self.values[None], scale=spec.scale)
        y = self._out(y.reshape(1, -1))
        return y if residual is None else residual + y


def borrowing_spec(config: Mapping[str, Any]) -> TargetSpec:
    """Of a decoder whose layers have queries alone. Raises ModelError."""
    spec = read_spec(config)
    layers = []
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.mixer, AttentionSpec)
        layers.append(replace(layer, mixer=replace(layer.mixer, source=index)))
    return replace(spec, layers=tuple(layers))


def _source(target: TargetSpec, mixer: AttentionSpec) -> int:
    """The last layer of the target, of the same kind and size, that has keys and values of its own."""
    other = "Take the drafter of this very model."
    found = {
        index: layer.mixer.kv_heads
        for index, layer in enumerate(target.layers)
        if isinstance(layer.mixer, AttentionSpec)
        and layer.mixer.source is None
        and (layer.mixer.window, layer.mixer.head_dim) == (mixer.window, mixer.head_dim)
    }
    if not found:
        kind = f"sliding layers of window {mixer.window}" if mixer.window else "full attention layers"
        raise ModelError(f"The target has no {kind} with heads of {mixer.head_dim} for this drafter to read.", other)
    last = max(found)
    if mixer.heads % found[last]:
        raise ModelError(f"{mixer.heads} heads cannot share the target's {found[last]} heads of keys.", other)
    return last


def block_layout(scratch: Scratch, slots: int, *, causal: bool, window: int = 0) -> Layout:
    """Of `slots` provisional rows that see each other, or those before them alone, and the true rows.

    `window`: every slot sees the same so many true rows, the last ones. These are given as loose rows at the first slot's
    position, where the window of no slot ends before them, and all that is below them is outside it. Where only the device
    knows how many rows are true, they begin so far before it even where the rows do not: more than a kernel takes.
    """
    device, count = scratch.like.device, scratch.base
    offsets = torch.arange(slots, device=device)
    behind = offsets - offsets[:, None]  # [slots, slots] how far a column stands behind a row
    seen = behind <= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    if not window:
        return scratch.tree(offsets, seen)
    if isinstance(count, Tensor):
        before = max(window, LOOSE)
        ahead = torch.arange(-before, slots, device=device)  # [T]
        near = (ahead[:before] >= -window).expand(slots, -1)
        return scratch.layout(slots, Tree(count - before, count + ahead.clamp(min=0), torch.cat((near, seen), 1)))
    base = max(0, count - window)
    open_ = torch.ones(slots, count - base, dtype=torch.bool, device=device)
    positions = torch.cat((torch.full((count - base,), count, device=device), offsets + count))
    return scratch.layout(slots, Tree(base, positions, torch.cat((open_, seen), 1)))
