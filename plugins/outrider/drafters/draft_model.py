"""A draft model: a smaller model with the same tokenizer guesses, one token a pass.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). Under *match* it draws with the target's own
noise, which makes the two agree as often as a coupling of their laws allows (arXiv 2408.07978); under *rejection* it draws
from the `draft` stream and tells its probabilities.

Letters: `V` vocabulary of the target, `Vd` of the draft model, `k` draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Step, Target

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.core.target.decoder import Decoder

MOST = 32  # tokens of a draft
SLACK = 64  # positions beyond the target's context that a draft may reach
CHUNK = 512  # tokens of one catch-up pass


class DraftModel:
    """The method; it needs `--drafter-weights`."""

    api = 1

    def matches(self, model: ModelInfo) -> Match:
        """Fits any model for which a smaller one with the same tokenizer is given."""
        return Match(
            Fit.FAMILY,
            "needs a smaller model with the same tokenizer: --drafter-weights PATH or NAME",
            gain=1.5,
            ready=False,
        )

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the model at `weights` shares the target's tokenizer. Raises ModelError if there is none."""
        from outrider.core.weights.checkpoint import describe
        from outrider.core.weights.library import resolve

        path = resolve(weights)
        theirs = describe(path)
        if theirs.tokenizer != model.tokenizer:
            reason = f"{path.name} has another tokenizer than {model.name} ({theirs.vocab} and {model.vocab} entries)"
            return Match(Fit.NO, reason, weights=str(path))
        files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
        return Match(
            Fit.FAMILY,
            f"{path.name} shares the tokenizer of {model.name}",
            gain=1.5,
            nbytes=sum(file.stat().st_size for file in files),
            weights=str(path),
        )

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Rider:
        """Load the draft model that `match` names. Raises ModelError if it cannot be read."""
        from outrider.core.target.linear import Form
        from outrider.core.target.load import load_decoder
        from outrider.core.weights.checkpoint import open_checkpoint

        assert match.weights is not None
        capacity = target.context + SLACK
        checkpoint = open_checkpoint(Path(match.weights))
        try:
            decoder = load_decoder(checkpoint, Form(target.dtype, target.device), capacity)
        finally:
            checkpoint.close()
        return Rider(decoder, capacity, target.info.vocab)


class Rider:
    """Follows one conversation with its own cache; catches up lazily when it is asked for a draft."""

    needs = Needs()
    shape = Shape(nodes=MOST, depth=MOST)

    def __init__(self, decoder: Decoder, capacity: int, vocab: int) -> None:
        self._decoder = decoder
        self._capacity = capacity
        self._vocab = vocab
        self._cache = decoder.new_cache(capacity)
        self._seen: list[int] = []  # ids whose K/V lie in the cache, drafts of the last round included

    def reset(self) -> None:
        """Forget the conversation."""
        self._seen.clear()
        self._cache.rewind(0)

    def advance(self, step: Step) -> None:
        """Nothing yet: `propose` compares its cache with what became true."""

    def rewind(self, length: int) -> None:
        """Only the first `length` ids are still true."""
        if length < len(self._seen):
            del self._seen[self._cache.rewind(length) :]

    def fork(self) -> Rider:
        """Same weights, empty cache; it catches up by itself."""
        return Rider(self._decoder, self._capacity, self._vocab)

    def close(self) -> None:
        """Free the cache; the weights go with the last reference."""
        self.reset()

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens [k], with `probs` [k, V] if they are wanted."""
        import torch

        position = len(context.tokens)
        count = min(context.nodes, MOST, self._capacity - position)
        if count <= 0:
            return None
        logits = self._catch_up(context.tokens)  # [Vd]
        path: list[int] = []
        laws: list[Tensor] = []
        while True:
            row = self._in_target_ids(logits)  # [V]
            if context.probs:
                law = context.to_probs(row, path)
                laws.append(law)
                path.append(context.rng(position + len(path)).draw(law))
            else:
                path.append(int(context.sample(row[None], position + len(path), path)[0]))
            if len(path) == count:
                break
            logits = self._pass([path[-1]])
        return Draft(torch.tensor(path), probs=torch.stack(laws) if laws else None)

    def _catch_up(self, tokens: Sequence[int]) -> Tensor:
        """Keep the longest common prefix of cache and conversation, feed the rest; logits [Vd] behind the last token."""
        ids = list(tokens)
        shared = 0
        for ours, theirs in zip(self._seen, ids[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        self.rewind(shared)
        logits = None
        while len(self._seen) < len(ids):
            logits = self._pass(ids[len(self._seen) : len(self._seen) + CHUNK])
        assert logits is not None
        if self._cache.forgets:
            self._cache.keep()  # where the next round's true tokens part from this one's draft, it begins again here
        return logits

    def _pass(self, ids: list[int]) -> Tensor:
        import torch

        result = self._decoder.run(torch.tensor(ids, device=self._decoder.device), self._cache, last=True)
        self._seen.extend(ids)
        self._cache.commit(len(self._seen))
        return result.logits[0]

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """[Vd] -> [V]: equal tokenizers share their ids; rows that only one side has are padding and never drafted."""
        import torch

        if logits.shape[0] == self._vocab:
            return logits
        row = logits.new_full((self._vocab,), -torch.inf)
        shared = min(self._vocab, logits.shape[0])
        row[:shared] = logits[:shared]
        return row
