"""Prompt lookup: what followed the last time these tokens stood here is likely to follow again.

Source: prompt lookup decoding (Apoorv Saxena, 2023). Longest n-gram first; of equal ones the newest; the index grows with
the conversation, so a proposal costs a few dictionary reads however long the context is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from outrider.core.drafting import Committed, Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Target

if TYPE_CHECKING:
    from torch import Tensor

LONGEST, SHORTEST = 5, 2  # tokens of context that must agree
FAR = 32  # tokens that are compared to tell how sure a guess is
MOST = 32  # tokens of a draft


class PromptLookup:
    """The method; it fits every model."""

    api = 1
    free = True
    options: Mapping[str, str] = {}

    def matches(self, model: ModelInfo) -> Match:
        """Always fits."""
        return Match(Fit.ANY, "repeats what stood in the chat before; needs no weights", gain=1.2)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Lookup:
        """A drafter without weights."""
        return Lookup()


class Lookup:
    """Follows one conversation. `index[n][gram]` is where the newest occurrence of an n-gram was continued."""

    needs = Needs()
    shape = Shape(nodes=MOST, depth=MOST)
    free = True

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the conversation."""
        self._tokens: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}
        self._undo: list[list[tuple[tuple[int, ...], int | None]]] = []  # for each token, what its arrival replaced

    def advance(self, step: Committed) -> None:
        """Index the n-grams that these tokens continue."""
        for token in step.tokens.tolist():
            self._add(token)

    def rewind(self, length: int) -> None:
        """Put back what the cut tokens had replaced."""
        while len(self._tokens) > length:
            self._tokens.pop()
            for gram, before in reversed(self._undo.pop()):
                if before is None:
                    del self._index[gram]
                else:
                    self._index[gram] = before

    def propose(self, context: Context) -> Draft | None:
        """The continuation of the longest n-gram that the conversation ends with; it may run into itself."""
        at = self._find()
        if at is None:
            return None
        tokens = self._tokens
        matched = self._matched(at)
        draft: list[int] = []
        for offset in range(min(context.nodes, MOST)):
            source = at + offset
            draft.append(tokens[source] if source < len(tokens) else draft[source - len(tokens)])
        sure = [(matched + depth) / (matched + depth + 2) for depth in range(len(draft))]
        return Draft(_tensor(draft), confidence=_tensor(sure))

    def fork(self) -> Lookup:
        """A copy with the same conversation."""
        copy = Lookup()
        copy._tokens = list(self._tokens)
        copy._index = dict(self._index)
        copy._undo = [list(entry) for entry in self._undo]
        return copy

    def close(self) -> None:
        """Nothing to free."""

    def _add(self, token: int) -> None:
        tokens, replaced = self._tokens, []
        at = len(tokens)
        for n in range(SHORTEST, min(LONGEST, at) + 1):
            gram = tuple(tokens[at - n :])
            replaced.append((gram, self._index.get(gram)))
            self._index[gram] = at
        tokens.append(token)
        self._undo.append(replaced)

    def _matched(self, at: int) -> int:
        """How many tokens before place `at` are those that the conversation ends with, as far as is looked."""
        tokens, end = self._tokens, len(self._tokens)
        count = 0
        while count < min(FAR, at) and tokens[at - 1 - count] == tokens[end - 1 - count]:
            count += 1
        return count

    def _find(self) -> int | None:
        end = len(self._tokens)
        for n in range(min(LONGEST, end), SHORTEST - 1, -1):
            at = self._index.get(tuple(self._tokens[end - n :]))
            if at is not None:
                return at
        return None


def _tensor(values: list[int] | list[float]) -> Tensor:
    import torch  # not at the top: asking whether a method fits must not load it

    return torch.tensor(values)
