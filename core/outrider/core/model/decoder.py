"""The decoder: a stack of blocks and one forward pass over them. It owns no conversation; states come in with each call.

Letters: `S` new tokens, `V` vocabulary, `d` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Mixer, Weights
from outrider.core.model.blocks.latent import LatentAttention
from outrider.core.model.cache.early_exit import EarlyStates
from outrider.core.model.cache.layout import DeviceStart, PaddedStart, PassLayout, Tree
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, RINGS, Cache, CacheConfig
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.interface import Fused

from .kernels import ops
from .stack import Stack, stacks

EXPANDED = 256  # rows of the unit matrix by which an output layer is expanded at a time


class Pass(NamedTuple):
    """What one forward gives."""

    logits: Tensor  # [S or 1, V]
    hidden: Tensor | None  # [S, states asked for, d]
    from_exit: bool = False  # the early layers had run while the tokens were drafted


class Decoder:
    """Runs blocks over tokens."""

    def __init__(self, spec: TargetSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.form = weights.form or WeightFormat(self.dtype, self.device)
        self._known: dict[Fused, Mapping[int, Stack]] = {}
        self._scale = torch.tensor(spec.embed_scale, dtype=self.dtype, device=self.device)  # rounded as weights are
        self.unnamed: Tensor | None = None  # [m] ids that the tokenizer has no token for

    @cached_property
    def reads_what_is_there(self) -> bool:
        """Whether still passes read no more rows than there are, so that their `end` costs nothing."""
        return reads_what_is_there([block.mixer for block in self.weights.blocks], self._scale)

    def new_cache(self, capacity: int, *, slack: int = MAX_DRAFT_ROWS, rings: float = RINGS) -> Cache:
        """Empty states of this model for `capacity` tokens (at most the rope table's rows).

        What the newest `slack` tokens left can be cut off again; `rings` as in `CacheConfig`.
        """
        if capacity > self.weights.rows:
            raise ValueError(f"capacity {capacity} exceeds the rope table of {self.weights.rows}")
        room = CacheConfig(capacity, self.dtype, self.device, slack, rings)
        return Cache([block.mixer.new_state(room) for block in self.weights.blocks], capacity)

    def embed_raw(self, ids: Tensor) -> Tensor:
        """[S] -> [S, d] rows of the table."""
        return self.weights.embedding(ids)

    def embed(self, ids: Tensor, *, read: bool = False) -> Tensor:
        """[S] -> [S, d] as the first block sees them. `read`: the host may read the ids."""
        x = self.weights.embedding.few(ids) if read else self.embed_raw(ids)
        if self.spec.embed_scale != 1.0:
            x = x * self._scale
        return x if self.weights.embed_norm is None else self.weights.embed_norm(x)

    def norm(self, hidden: Tensor) -> Tensor:
        """Final norm alone, [S, d] -> [S, d]."""
        return self.weights.norm(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """[S, d] -> [S, V] with the model's multiplier and cap, no norm; in fp32 where that costs nothing."""
        logits = self.weights.head.exact(hidden)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_cap is not None:
            logits = torch.tanh(logits / self.spec.logit_cap) * self.spec.logit_cap
        return logits

    def hide(self, ids: Sequence[int]) -> None:
        """No pass gives these ids a chance from now on: the tokenizer has no token for them."""
        self.unnamed = torch.tensor(ids, dtype=torch.int64, device=self.device) if ids else None

    def logits(self, x: Tensor) -> Tensor:
        """Last residual [S, d] -> [S, V]; -inf for ids that no token has. `head` alone is the model's own number for them."""
        logits = self.head(self.weights.norm(x))
        return logits if self.unnamed is None else logits.index_fill_(-1, self.unnamed, -torch.inf)

    @torch.inference_mode()
    def rows(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] rows of the output layer with the model's multiplier, expanded."""
        if self.spec.tied:
            rows = self.embed_raw(ids)
        else:
            ones = torch.eye(self.spec.width, dtype=self.dtype, device=self.device)
            rows = torch.cat([self.weights.head(part)[:, ids] for part in ones.split(EXPANDED)]).t().contiguous()
        return rows * self.spec.logit_scale if self.spec.logit_scale != 1.0 else rows

    @torch.inference_mode()
    def run(
        self,
        ids: Tensor,
        cache: Cache,
        *,
        last: bool = False,
        states: Sequence[int] = (),
        tree: Tree | None = None,
        early: EarlyStates | None = None,
    ) -> Pass:
        """One pass over `ids` [S] at `cache.length`; states are written there, the length is not moved.

        `tree`: where the ids are no line. `last`: logits of the last row only. `states`: numbers of the residuals to export
        (0 embedding … L before the norm). `early`: the layers that have run over `ids` already.
        """
        kept: dict[int, Tensor] = {} if early is None else dict(early.states)
        layers = range(0 if early is None else early.layers, len(self.weights.blocks))
        where = self._where(ids, cache, cache.length, tree)
        x = self._blocks(ids, cache, where, layers, (states, kept))
        hidden = torch.stack([kept[k] for k in states], 1) if states else None
        return Pass(self.logits(x[-1:] if last else x), hidden, early is not None)

    @torch.inference_mode()
    def still(
        self,
        ids: Tensor,
        cache: Cache,
        start: DeviceStart | PaddedStart,
        *,
        states: Sequence[int] = (),
        tree: Tree | None = None,
    ) -> Pass:
        """As `run`, from a row on that only the device knows, or with fixed shapes."""
        exports: dict[int, Tensor] = {}
        where = PassLayout(start, ids.shape[0], self.weights.tables, self.dtype, self.device, tree)
        x = self._blocks(ids, cache, where, range(len(self.weights.blocks)), (states, exports))
        hidden = torch.stack([exports[k] for k in states], 1) if states else None
        return Pass(self.logits(x), hidden)

    @torch.inference_mode()
    def early(
        self, ids: Tensor, cache: Cache, start: int | DeviceStart, layers: int, states: Sequence[int] = ()
    ) -> dict[int, Tensor]:
        """Residuals [S, d] for `ids` at `start` by number: that after the first `layers` blocks, which are all that run, and
        those of `states` below it. What they write is scratch.
        """
        exports: dict[int, Tensor] = {}
        x = self._blocks(ids, cache, self._where(ids, cache, start, None), range(layers), (states, exports))
        return exports | {layers: x}

    def _where(self, ids: Tensor, cache: Cache, start: int | DeviceStart, tree: Tree | None) -> PassLayout:
        rows = ids.shape[0]
        if not isinstance(start, DeviceStart) and start + rows > cache.capacity:
            raise ValueError(f"{rows} tokens at {start} exceed a cache of {cache.capacity}")
        return PassLayout(start, rows, self.weights.tables, self.dtype, self.device, tree)

    def _blocks(
        self, ids: Tensor, cache: Cache, where: PassLayout, layers: range, keep: tuple[Sequence[int], dict[int, Tensor]]
    ) -> Tensor:
        """Through some layers; where they are not the first ones, what these gave is kept already."""
        (states, kept), index, count = keep, layers.start, layers.stop
        x = kept[index] if index else self.embed(ids, read=not where.still)  # [S, d]
        extra = None
        if self.weights.extra is not None:
            extra = self.weights.extra(ids, self.embed(ids) if index else x, len(self.weights.blocks))
        ready = self._stacks(x)
        while index < count:
            if index in states:
                kept[index] = x
            stack = ready.get(index)
            stop = index + 1 if stack is None else min(stack.stop, count)
            y = None if stack is None else stack.run(x, where, cache, range(index, stop), keep)
            if y is None:
                block, stop = self.weights.blocks[index], index + 1
                y = block.run(x, where, cache.states[block.source], self.spec)
                if block.per_layer is not None and extra is not None:
                    y = y + block.per_layer(y, extra[:, index])
                if block.scalar is not None:
                    y = y * block.scalar
            x, index = y, stop
        if count in states:
            kept[count] = x
        return x

    def _stacks(self, x: Tensor) -> Mapping[int, Stack]:
        """What runs several blocks in one go, by the number of each of them."""
        fast = ops.fused(x)
        if fast is None:
            return {}
        if fast not in self._known:
            self._known[fast] = stacks(fast, self.weights, self.spec)
        return self._known[fast]


def reads_what_is_there(mixers: Sequence[Mixer], like: Tensor) -> bool:
    """`Decoder.reads_what_is_there` for any mixers; `like` has their dtype and is on their device."""
    fast = ops.fused(like)
    plain = [mixer.heads for mixer in mixers if isinstance(mixer, Attention)]
    fused = all(fast is not None and heads is not None and fast.attends(heads, like.dtype) for heads in plain)
    return fused and not any(isinstance(mixer, LatentAttention) for mixer in mixers)
