"""A draft model: a smaller model guesses, one token a pass. With another tokenizer it guesses what both have (`vocabulary`).

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). Under *match* it draws with the target's own
noise, which makes the two agree as often as a coupling of their laws allows (arXiv 2408.07978); under *rejection* it draws
from the `draft` stream and tells its probabilities.

Letters: `V` vocabulary of the target, `Vd` of the draft model, `k` draft tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import (
    Choose,
    Committed,
    Context,
    DeviceContext,
    Draft,
    Fit,
    Match,
    ModelInfo,
    Needs,
    Shape,
    Target,
)

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.core.drafting import InFlight
    from outrider.core.model.capture import Capture
    from outrider.core.model.decoder import Decoder
    from outrider.core.train.recipe import Recipe

    from .vocabulary import Bridge

MOST = 32  # tokens of a draft
SLACK = 64  # positions beyond the target's context that a draft may reach
CHUNK = 512  # tokens of one catch-up pass
SHORT = 17  # and of one that takes the lane, where there is one; so many are filled up to a fixed number
LEAST_SHARED = 0.5  # share of the draft model's tokens that the target must have too


class DraftModel:
    """The method; it needs `--drafter-weights`."""

    api = 1
    options: Mapping[str, str] = {}

    @property
    def recipe(self) -> Recipe:
        """How one is distilled."""
        from .training import DraftRecipe

        return DraftRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Fits any model for which a smaller one is given."""
        return Match(
            Fit.FAMILY,
            "needs a smaller model, best one with the same tokenizer: --drafter-weights PATH or NAME",
            gain=1.5,
            ready=False,
        )

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the model at `weights` has enough tokens of the target. Raises ModelError if there is none."""
        from outrider.core.formats.checkpoint import describe

        path = Path(weights)
        theirs = describe(path)
        files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
        nbytes = sum(file.stat().st_size for file in files)
        if not any(".layers.0." in name for name in theirs.tensors):
            return Match(Fit.NO, f"{path.name} is no whole model", weights=str(path))
        if theirs.tokenizer == model.tokenizer:
            reason = f"{path.name} shares the tokenizer of {model.name}"
            return Match(Fit.FAMILY, reason, gain=1.5, nbytes=nbytes, weights=str(path))
        share = _shared(model, path) if theirs.tokenizer and model.tokenizer and model.path else 0.0
        reason = f"{path.name} has another tokenizer than {model.name}, {int(100 * share)}% of its tokens are shared"
        if share < LEAST_SHARED:
            return Match(Fit.NO, f"{reason} and {LEAST_SHARED:.0%} would be needed", weights=str(path))
        return Match(Fit.ANY, reason, gain=1.2, nbytes=nbytes, weights=str(path))

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> ModelDrafter:
        """Load the draft model that `match` names. Raises ModelError if it cannot be read."""
        from outrider.core.formats.checkpoint import info, open_checkpoint
        from outrider.core.model.load import load_decoder

        assert match.weights is not None
        capacity = target.context + SLACK
        checkpoint = open_checkpoint(Path(match.weights))
        try:
            same = info(checkpoint).tokenizer == target.info.tokenizer
            decoder = load_decoder(checkpoint, target.beside, capacity)
        finally:
            checkpoint.close()
        bridge = None if same else _bridge(target.info, Path(match.weights))
        return ModelDrafter(decoder, capacity, target.info.vocab, bridge, target.graphs)


def _shared(model: ModelInfo, path: Path) -> float:
    """Share of the tokens of the model at `path` that the target has too."""
    from .vocabulary import read_vocabulary

    theirs = read_vocabulary(path)
    return len(read_vocabulary(Path(model.path)).shared(theirs)) / max(1, len(theirs.ids))


def _bridge(model: ModelInfo, path: Path) -> Bridge:
    from .vocabulary import Bridge, read_vocabulary

    return Bridge(read_vocabulary(Path(model.path)), read_vocabulary(path), model.vocab)


class ModelDrafter:
    """Follows one conversation with its own cache; catches up lazily when it is asked for a draft."""

    needs = Needs()
    shape = Shape(nodes=MOST, depth=MOST)

    def __init__(
        self,
        decoder: Decoder,
        capacity: int,
        vocab: int,
        bridge: Bridge | None = None,
        graphs: Capture | None = None,
    ) -> None:
        from outrider.core.model.graph_runner import GraphRunner

        self._decoder = decoder
        self._capacity = capacity
        self._vocab = vocab
        self._bridge = bridge  # None: the ids are the same
        self._graphs = graphs
        self._cache = decoder.new_cache(capacity)
        self._lane = None if graphs is None else GraphRunner(decoder, self._cache, graphs, lines=True)
        self._lost = False  # whether the last draft came to nothing because its logits were no numbers
        self._seen: list[int] = []  # ids whose K/V lie in the cache, drafts of the last round included
        self._window: tuple[int, InFlight | None] | None = None  # where the device wrote rows last, and of which round
        self._steps: dict[Hashable, Callable[..., Tensor]] = {}  # of the device, captured
        same = bridge is None and vocab <= decoder.spec.vocab
        self.device = graphs is not None and same and not self._cache.forgets

    def reset(self) -> None:
        """Forget the conversation."""
        self._window = None
        self._seen.clear()
        self._cache.rewind(0)

    def advance(self, step: Committed) -> None:
        """Nothing yet: `propose` compares its cache with what became true."""

    def rewind(self, length: int) -> None:
        """Nothing yet, for the same reason."""

    def fork(self) -> ModelDrafter:
        """Same weights, empty cache; it catches up by itself."""
        return ModelDrafter(self._decoder, self._capacity, self._vocab, self._bridge, self._graphs)

    def close(self) -> None:
        """Free the cache; the weights go with the last reference."""
        self.reset()

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens [k], with `probs` [k, V] if they are wanted.

        None where its logits are no numbers. Raises ModelError where they are none again after reading everything anew: that
        will not mend, and costs too much to be tried in every round.
        """
        from outrider.core.drafting import ChainSampler

        ids = self._in_own_ids(context.tokens)
        count = min(context.nodes, MOST, self._capacity - len(ids))
        if count <= 0 or not ids:
            return None
        picks = ChainSampler(context, count, weighs=self._graphs is None)
        logits = self._catch_up(ids)  # [Vd]
        while picks.add(self._in_target_ids(logits)) and (following := self._in_own_ids(picks.path[-1:])):
            logits = self._pass(following)
        if picks.broken:
            return self._spoilt()
        self._lost = False
        return picks.draft()

    def _spoilt(self) -> None:
        """No draft, and all is read anew for the next one. Raises ModelError where that was no help."""
        from outrider.core.base.errors import ModelError
        from outrider.core.model.cache.states import KVCache

        self.reset()
        for state in self._cache.states:
            if isinstance(state, KVCache):
                state.wipe(0)
        if self._lost:
            raise ModelError("What it says is no number.", "Try another --dtype, or another draft model.")
        self._lost = True

    def _catch_up(self, ids: list[int]) -> Tensor:
        """Keep the longest common prefix of cache and conversation, feed the rest; logits [Vd] behind the last token."""
        self._keep_common(ids[:-1])
        logits = None
        while len(self._seen) < len(ids):
            logits = self._pass(ids[len(self._seen) : len(self._seen) + CHUNK])
        assert logits is not None
        if self._cache.forgets:
            self._cache.keep()  # where the next round's true tokens part from this one's draft, it begins again here
        return logits

    def _keep_common(self, ids: Sequence[int]) -> None:
        """Cut the cache to what it has in common with the beginning of `ids`; what the device wrote of it counts."""
        if self._window is not None:
            base, flying = self._window
            taken = 1 if flying is None else flying.taken
            if len(self._seen) == base and len(ids) >= base + taken:
                self._seen.extend(ids[base : base + taken])
                self._cache.commit(len(self._seen))
        self._window, shared = None, 0
        for ours, theirs in zip(self._seen, ids, strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared < len(self._seen):
            del self._seen[self._cache.rewind(shared) :]

    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`: the newest tokens and the steps of the draft are one captured piece."""
        import torch

        flying = context.in_flight
        known = len(context.tokens) - (flying is None)
        count = min(context.nodes, MOST)
        width = 1 if flying is None else flying.tokens.shape[0]
        if self._lane is None or self._graphs is None or not known or known + width + count > self._capacity:
            return None
        self._keep_common(context.tokens[:known])
        while len(self._seen) < known:
            self._pass(list(context.tokens[len(self._seen) : known][:CHUNK]))
        newest = torch.tensor(context.tokens[-1:]) if flying is None else flying.tokens
        taken = torch.ones(1, dtype=torch.int64) if flying is None else flying.count
        end = self._lane.end(known, width + count)
        key = (count, context.key, width, end)
        arguments = torch.tensor([known]), newest, taken
        if key not in self._steps:
            work = partial(self._ahead, context.choose, count, end)
            examples = [argument.to(self._decoder.device) for argument in arguments]
            self._steps[key] = self._graphs.function(work, examples)
        self._window = known, flying
        return Draft(self._steps[key](*arguments))

    def _ahead(self, choose: Choose, count: int, end: int, known: Tensor, newest: Tensor, taken: Tensor) -> Tensor:
        """The tokens [count] of a chain behind the first `taken` of `newest` [W], which stand at `known`."""
        import torch

        from outrider.core.model.cache.layout import DeviceStart

        ids, start, row, path = newest, known, taken - 1, []
        while True:
            logits = self._decoder.still(ids, self._cache, DeviceStart(start, end)).logits[row]
            path.append(choose(self._in_target_ids(logits), len(path)))
            if len(path) == count:
                return torch.cat(path)
            ids, start, row = (
                path[-1].clamp(0, self._decoder.spec.vocab - 1),
                known + taken + len(path) - 1,
                slice(0, 1),
            )

    def _pass(self, ids: list[int]) -> Tensor:
        import torch

        if self._lane is not None and len(ids) <= SHORT <= self._capacity - len(self._seen):
            result = self._lane.forward(ids, None, ())
        else:
            result = self._decoder.run(torch.tensor(ids, device=self._decoder.device), self._cache, last=True)
        self._seen.extend(ids)
        self._cache.commit(len(self._seen))
        return result.logits[-1]

    def _in_own_ids(self, tokens: Sequence[int]) -> list[int]:
        """Without those that it has no row for: padding, or words that were added to the target alone."""
        rows = self._decoder.spec.vocab
        if self._bridge is not None:
            return self._bridge.draft_ids(tokens)
        return list(tokens) if self._vocab <= rows else [token for token in tokens if token < rows]

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """[..., Vd] -> [..., V]: equal tokenizers share their ids; rows that only one side has are padding and never drafted."""
        import torch

        if self._bridge is not None:
            return self._bridge.target_row(logits)
        if logits.shape[-1] == self._vocab:
            return logits
        rows = logits.new_full((*logits.shape[:-1], self._vocab), -torch.inf)
        shared = min(self._vocab, logits.shape[-1])
        rows[..., :shared] = logits[..., :shared]
        return rows
