"""A draft model: a smaller model guesses, one token a pass. With another tokenizer it guesses what both have (`vocabulary`).

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). Under *match* it draws with the target's own
noise, which makes the two agree as often as a coupling of their laws allows (arXiv 2408.07978); under *rejection* it draws
from the `draft` stream and tells its probabilities.

Letters: `V` vocabulary of the target, `Vd` of the draft model, `k` draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import (
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

    from outrider.core.drafting.decoder_state import DecoderState
    from outrider.core.train.recipe import Recipe

    from .vocabulary import Bridge

MOST = 32  # tokens of a draft
SLACK = 64  # positions beyond the target's context that a draft may reach
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
        from outrider.core.drafting.decoder_state import DecoderState

        assert match.weights is not None
        state, theirs = DecoderState.load(Path(match.weights), target, SLACK)
        same = theirs.tokenizer == target.info.tokenizer
        return ModelDrafter(state, target.info.vocab, None if same else _bridge(target.info, Path(match.weights)))


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

    def __init__(self, state: DecoderState, vocab: int, bridge: Bridge | None = None) -> None:
        self._state = state
        self._vocab = vocab
        self._bridge = bridge  # None: the ids are the same
        self._lost = False  # whether the last draft failed because its logits were no numbers
        self.device = state.ahead and bridge is None and vocab <= state.vocab

    def reset(self) -> None:
        """Forget the conversation."""
        self._state.clear()

    def advance(self, step: Committed) -> None:
        """Nothing yet: `propose` compares its cache with what became true."""

    def rewind(self, length: int) -> None:
        """Nothing yet, for the same reason."""

    def fork(self) -> ModelDrafter:
        """Same weights, empty cache; it catches up by itself."""
        return ModelDrafter(self._state.fork(), self._vocab, self._bridge)

    def close(self) -> None:
        """Free the cache; the weights go with the last reference."""
        self.reset()

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens [k], with `probs` [k, V] if they are wanted.

        None where its logits are no numbers. Raises ModelError where they are none again after reading everything anew: that
        will not recover, and costs too much to be tried in every round.
        """
        from outrider.core.drafting import ChainSampler

        ids = self._in_own_ids(context.tokens)
        count = min(context.nodes, MOST, self._state.capacity - len(ids))
        if count <= 0 or not ids:
            return None
        picks = ChainSampler(context, count, weighs=not self._state.captured)
        logits = self._state.read(ids)  # [Vd]
        while picks.add(self._in_target_ids(logits)) and (following := self._in_own_ids(picks.path[-1:])):
            logits = self._state.step(following)
        if picks.broken:
            return self._spoilt()
        self._lost = False
        return picks.draft()

    def _spoilt(self) -> None:
        """No draft, and all is read anew for the next one. Raises ModelError where that was no help."""
        from outrider.core.base.errors import ModelError

        self._state.wipe()
        if self._lost:
            raise ModelError("What it says is no number.", "Try another --dtype, or another draft model.")
        self._lost = True

    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`: the newest tokens and the steps of the draft are one captured piece."""
        choose = context.choose
        tokens = self._state.draft_ahead(
            context, min(context.nodes, MOST), lambda logits, depth: choose(self._in_target_ids(logits), depth)
        )
        return None if tokens is None else Draft(tokens)

    def _in_own_ids(self, tokens: Sequence[int]) -> list[int]:
        """Without those that it has no row for: padding, or words that were added to the target alone."""
        rows = self._state.vocab
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
