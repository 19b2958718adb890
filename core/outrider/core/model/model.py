"""The target of one conversation: a decoder, its states, and the seam that drafters may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from outrider.core.base.model_info import ModelInfo
from outrider.core.model.cache.early_exit import EarlyStates
from outrider.core.model.cache.layout import PaddedStart, padded, tree_of
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, Cache, KVCache
from outrider.core.model.kernels.forms import WeightFormat

from .capture import Capture, Result, capture_for
from .decoder import Decoder, Pass
from .exact import apart, width
from .graph_runner import GraphRunner
from .steps import filled

SMALL = 0.85  # bytes of a parameter up to which a model has about 4 bits
HALF = 0.75  # share of the bytes of plain weights up to which it has about 8


class TargetModel:
    """Implements `drafting.Target`. Ids come in as lists, the length is moved by `commit` and `rewind` alone.

    On a GPU, or with a `capture`, passes that decode take the `graph_runner`. `exact`: exact mode, for drafts of so many tokens.
    """

    def __init__(
        self,
        decoder: Decoder,
        info: ModelInfo,
        context: int,
        capture: Capture | None = None,
        *,
        exact: int | None = None,
    ) -> None:
        self.decoder = decoder
        self.info = info
        self.context = context
        self.dtype, self.device = decoder.dtype, decoder.device
        self.vocab = decoder.spec.vocab
        """Rows of the output layer."""
        self.cache = decoder.new_cache(context + MAX_DRAFT_ROWS)
        if capture is None and decoder.device.type == "cuda":
            capture = capture_for(decoder.device)
        self.exact = exact is not None
        self.width = 0 if exact is None or (capture is None and apart(decoder)) else width(exact)
        """Rows of every pass that decodes; 0: as many as there are to decode."""
        self.most = self.width or MAX_DRAFT_ROWS
        """Rows of the widest pass that decodes: the root, and the longest draft."""
        self.graph_runner = (
            None if capture is None else GraphRunner(decoder, self.cache, capture, lines=self.exact, fixed=self.width)
        )
        self._apart = (
            None if capture is None else capture.apart()
        )  # what a drafter cannot record stops no pass of the target
        self._states: tuple[int, ...] = ()  # that the last pass exported

    @property
    def form(self) -> WeightFormat:
        """How the decoder's matrices are kept."""
        return self.decoder.form

    @property
    def beside(self) -> WeightFormat:
        """How a drafter's own matrices are best kept.

        On a CPU a pass takes as long as its weights take to read. Beside a target that is quantised, a drafter with plain ones
        would cost a large share of a pass; in as many bits it guesses about as well. Elsewhere they stay plain.
        """
        each, bits = self.decoder.weights.each, None
        if self.device.type == "cpu" and each:
            bits = 4 if each <= SMALL else 8 if each <= HALF * self.dtype.itemsize else None
        return WeightFormat(self.dtype, self.device, bits)

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self.cache.length

    @property
    def trees(self) -> bool:
        """Whether a pass may verify a tree."""
        return self.cache.trees and not self.exact

    @contextmanager
    def using(self, cache: Cache) -> Iterator[None]:
        """Meanwhile this is the target of another conversation, whose states are in `cache`; its passes are not captured."""
        before = self.cache, self.graph_runner
        self.cache, self.graph_runner = cache, None
        try:
            yield
        finally:
            self.cache, self.graph_runner = before

    def forward(
        self,
        ids: Sequence[int] | Tensor,
        *,
        last: bool = False,
        states: Sequence[int] = (),
        parents: Sequence[int] | None = None,
    ) -> Pass:
        """One pass over `ids` after the committed tokens; nothing is committed.

        With `parents` the ids are a root and a tree below it: id 1 + i is a child of id 1 + parents[i], -1 is the root. `last`:
        logits of the last row only, as for a prompt. What `early` has computed of these very tokens is not computed again.
        Raises ValueError for more rows than exact mode has in a pass.
        """
        self._states = tuple(states)
        if self.width and not last and len(ids) > self.width:
            raise ValueError(f"{len(ids)} rows where a pass has {self.width}")
        listed = not isinstance(ids, Tensor)
        if self.graph_runner is not None and not last and (listed or self.width) and len(ids) <= MAX_DRAFT_ROWS:
            return self.graph_runner.forward(ids if listed else ids.tolist(), parents, self._states)
        early = None
        if self.cache.early_states is not None:
            early = None if isinstance(ids, Tensor) or parents is not None else self._reusable(ids)
            self.cache.early_states = None
        if not isinstance(ids, Tensor):
            ids = torch.tensor(ids, dtype=torch.int64)
        if self.width and not last:
            return self._fixed(ids, states)
        tree = None if parents is None else tree_of(parents, self.length, self.device)
        return self.decoder.run(ids.to(self.device), self.cache, last=last, states=states, tree=tree, early=early)

    def _reusable(self, ids: Sequence[int]) -> EarlyStates | None:
        """States of the early layers for a pass over `ids`; if those of the last token are missing, they are computed here."""
        early = self.cache.early_states
        if early is None or not early.leads_to(ids, self._states):
            return None
        if len(early.ids) < len(ids):
            self.early(torch.tensor(ids[-1:]), self.length + len(ids) - 1, early.layers)
        return None if self.cache.early_states is None else self.cache.early_states.first(len(ids))

    def _fixed(self, ids: Tensor, states: Sequence[int]) -> Pass:
        """The pass of a chain, filled up to the width; what stands after the chain is scratch."""
        rows = ids.shape[0]
        start = PaddedStart(self.length, padded(self.cache.capacity), rows)
        result = self.decoder.still(filled(ids.to(self.device), self.width), self.cache, start, states=states)
        return Pass(result.logits[:rows], None if result.hidden is None else result.hidden[:rows])

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """The first `length` tokens of what the last pass saw are true; after a tree, the rows `path` of the pass."""
        self.cache.commit(length, path)

    def rewind(self, length: int) -> int:
        """Back to `length`, or to the nearest earlier length whose state is known; returns which."""
        return self.cache.rewind(length)

    def snapshot(self) -> None:
        """Remember the state at the committed length, for later rewinds; free where states can be cut."""
        self.cache.snapshot()

    def embed(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] with the target's own scale."""
        return self.decoder.embed(ids)

    def embed_raw(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] rows of the table."""
        return self.decoder.embed_raw(ids)

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm alone."""
        return self.decoder.norm(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """[n, d] -> [n, V] without norm."""
        return self.decoder.head(hidden)

    def rows(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] rows of the output layer, expanded."""
        return self.decoder.rows(ids)

    def early(self, ids: Tensor, start: int, layers: int) -> Tensor:
        """Residual [n, d] after the first layers, good until the next call; what they write is scratch."""
        if self.graph_runner is not None and ids.shape[0] <= MAX_DRAFT_ROWS and not self.cache.forgets:
            return self.graph_runner.early(ids, start, layers)
        states = self.decoder.early(ids, self.cache, start, layers, self._states)
        self.cache.early_states = self._record_early(ids, start, layers, states)
        return states[layers].clone()  # drafters may write to it

    def _record_early(self, ids: Tensor, start: int, layers: int, states: dict[int, Tensor]) -> EarlyStates | None:
        """What an early pass leaves for the pass that verifies; None where that will be a whole one.

        So it is where this one does not follow the ones before it; where states are overwritten, since each early pass begins
        at the committed one; where exact mode gives all passes one width; and on a GPU: a draft and its pass read the same
        weights either way, and rows cost next to nothing there.
        """
        if self.graph_runner is not None or self.device.type != "cpu" or self.width or self.cache.forgets:
            return None
        early, before, rows = EarlyStates(layers, ids.tolist(), states), self.cache.early_states, start - self.length
        if rows == 0:
            return early
        follows = before is not None and before.layers == layers and 0 < rows <= len(before.ids)
        return before.then(early, rows) if before is not None and follows else None

    def kv(self, layer: int) -> tuple[Tensor, Tensor, int]:
        """Keys, values [K, C, h] that a layer reads, and the committed length. Raises ValueError if it has none.

        Row i is that of position max(0, length - C) + i: C is the cache's capacity, with scratch at and beyond the length, or
        what a ring gives in order, the window - 1 rows (or all, if there are fewer) that a token at `length` sees besides
        itself. Where rope turns only a part of each head, its dims are in the order that `rope.order` describes.
        """
        state = self.cache.states[self.decoder.weights.blocks[layer].source]
        if not isinstance(state, KVCache) or len(state.parts) > 1:
            raise ValueError(f"layer {layer} keeps no keys and values")
        keys, values = state.ordered(self.cache.length)[0].transpose(0, 1).chunk(2)
        return keys, values, self.cache.length

    @property
    def graphs(self) -> Capture | None:
        """What records passes; None where they run as they are."""
        return self._apart

    def capture(self, function: Callable[..., Result], *examples: Tensor) -> Callable[..., Result]:
        """A CUDA graph of `function` on a GPU, the function itself elsewhere.

        It takes tensors of the examples' shapes, asks the device for no value, and what it writes beside its result is where
        nothing is lost when it is tried out. Its result is good until the next call.
        """
        return function if self._apart is None else self._apart.function(function, examples)
