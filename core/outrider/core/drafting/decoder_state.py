"""A whole model that drafts: its decoder, its cache of one conversation, and the steps that a device makes alone.

Letters: `V` vocabulary of that model, `k` tokens of a draft, `W` newest tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from outrider.core.base.model_info import ModelInfo
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.model.cache.layout import DeviceStart
from outrider.core.model.cache.states import KVCache
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder
from outrider.core.model.graph_runner import GraphRunner
from outrider.core.model.load import load_decoder

from .contract import DeviceContext, InFlight, Target

CHUNK = 512  # tokens of one catch-up pass
SHORT = 17  # and of one that is captured; so many are filled up to a fixed number

Pick = Callable[[Tensor, int], Tensor]
"""`pick(logits [1, V], depth) -> ids [1]` of that model: it asks for no value."""


class DecoderState:
    """One conversation. It compares its cache with the tokens that it is shown, so that it needs no updates."""

    def __init__(self, decoder: Decoder, capacity: int, graphs: Capture | None = None) -> None:
        self.decoder, self.capacity = decoder, capacity
        self.cache = decoder.new_cache(capacity)
        self._graphs = graphs
        self._runner = None if graphs is None else GraphRunner(decoder, self.cache, graphs, lines=True)
        self._seen: list[int] = []  # ids whose K/V are in the cache, drafts of the last round included
        self._window: tuple[int, InFlight | None] | None = None  # where the device wrote rows last, and of which round
        self._steps: dict[Hashable, Callable[..., Tensor]] = {}  # of the device, captured

    @staticmethod
    def load(path: Path, target: Target, slack: int) -> tuple[DecoderState, ModelInfo]:
        """The model at `path`, kept as the target's drafters are; passes may reach `slack` tokens beyond the target's context.

        Raises ModelError, BrokenFileError.
        """
        checkpoint = open_checkpoint(path)
        try:
            decoder = load_decoder(checkpoint, target.beside, target.context + slack)
            return DecoderState(decoder, target.context + slack, target.graphs), info(checkpoint)
        finally:
            checkpoint.close()

    @property
    def vocab(self) -> int:
        """Its rows of logits."""
        return self.decoder.spec.vocab

    @property
    def captured(self) -> bool:
        """As `DraftState.captured`."""
        return self._graphs is not None

    @property
    def ahead(self) -> bool:
        """Whether the device can make drafts alone: what it wrote too much is cut off by a length."""
        return self._graphs is not None and not self.cache.forgets

    def clear(self) -> None:
        """Forget the conversation."""
        self._window = None
        self._seen.clear()
        self.cache.rewind(0)

    def wipe(self) -> None:
        """Forget it, and zero its rows: what is no number would spread from there, masked or not."""
        self.clear()
        for state in self.cache.states:
            if isinstance(state, KVCache):
                state.wipe(0)

    def fork(self) -> DecoderState:
        """Same weights, empty cache."""
        return DecoderState(self.decoder, self.capacity, self._graphs)

    def read(self, ids: list[int]) -> Tensor:
        """Keep the longest prefix that cache and conversation have in common, read the rest; logits [V] after the last id."""
        self._keep_common(ids[:-1])
        logits = self._feed(ids)
        assert logits is not None
        if self.cache.forgets:
            self.cache.snapshot()  # where the next round's true tokens differ from this one's draft, it begins again here
        return logits

    def step(self, ids: list[int]) -> Tensor:
        """Logits [V] behind some more ids."""
        if self._runner is not None and len(ids) <= SHORT <= self.capacity - len(self._seen):
            result = self._runner.forward(ids, None, ())
        else:
            result = self.decoder.run(torch.tensor(ids, device=self.decoder.device), self.cache, last=True)
        self._seen.extend(ids)
        self.cache.commit(len(self._seen))
        return result.logits[-1]

    def draft_ahead(self, context: DeviceContext, count: int, pick: Pick) -> Tensor | None:
        """A chain [count] behind all that will be true, the round in flight among it, as one captured piece; None: no room."""
        flying = context.in_flight
        known = len(context.tokens) - (flying is None)
        width = 1 if flying is None else flying.tokens.shape[0]
        if self._runner is None or self._graphs is None or not known or known + width + count > self.capacity:
            return None
        self._keep_common(context.tokens[:known])
        self._feed(context.tokens[:known])
        newest = torch.tensor(context.tokens[-1:]) if flying is None else flying.tokens
        taken = torch.ones(1, dtype=torch.int64) if flying is None else flying.count
        end = self._runner.end(known, width + count)
        key, arguments = (count, context.key, width, end), (torch.tensor([known]), newest, taken)
        if key not in self._steps:
            examples = [argument.to(self.decoder.device) for argument in arguments]
            self._steps[key] = self._graphs.function(partial(self._chain, count, end, pick), examples)
        self._window = known, flying
        return self._steps[key](*arguments)

    def _chain(self, count: int, end: int, pick: Pick, known: Tensor, newest: Tensor, taken: Tensor) -> Tensor:
        """The tokens [count] behind the first `taken` of `newest` [W], which are at `known`."""
        ids, start, row, path = newest, known, taken - 1, list[Tensor]()
        while True:
            logits = self.decoder.still(ids, self.cache, DeviceStart(start, end)).logits[row]
            path.append(pick(logits, len(path)))
            if len(path) == count:
                return torch.cat(path)
            ids, start = path[-1].clamp(0, self.vocab - 1), known + taken + len(path) - 1
            row = torch.zeros_like(taken)

    def _feed(self, ids: Sequence[int]) -> Tensor | None:
        logits = None
        while len(self._seen) < len(ids):
            logits = self.step(list(ids[len(self._seen) : len(self._seen) + CHUNK]))
        return logits

    def _keep_common(self, ids: Sequence[int]) -> None:
        """Cut the cache to what it has in common with the beginning of `ids`; what the device wrote of it counts."""
        if self._window is not None:
            base, flying = self._window
            taken = 1 if flying is None else flying.taken
            if len(self._seen) == base and len(ids) >= base + taken:
                self._seen.extend(ids[base : base + taken])
                self.cache.commit(len(self._seen))
        self._window, shared = None, 0
        for ours, theirs in zip(self._seen, ids, strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared < len(self._seen):
            del self._seen[self.cache.rewind(shared) :]
