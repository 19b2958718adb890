"""Two vocabularies that are not the same: which tokens both have, and how text of one is written in the other.

Source: token-level intersection (Timor et al., arXiv 2502.05202). Tokens are equal if they stand for the same bytes, however
their tokenizers mark spaces, and both are control tokens or neither is. The draft model proposes only what both have, so its
law lives on the intersection and the text stays the target's. What it reads is translated token by token, so that a
longer conversation never changes what was read before: a shared token as itself, another one by the longest tokens that
spell its bytes.

Letters: `V` rows of the target's output, `Vd` of the draft model's, `s` shared tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[bool, bytes]  # whether it is a control token, and what it stands for


class Vocabulary:
    """Tokens of one model: `keys` in the order of their ids, and the id that ends an answer, if there is one."""

    def __init__(self, keys: list[Key], end: int | None = None) -> None:
        self.keys = keys
        self.end = end

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """All tokens of a tokenizer."""
        keys = [(token in tokenizer.special, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
        return cls(keys, tokenizer.token_id(tokenizer.eos_token) if tokenizer.eos_token else None)

    @cached_property
    def ids(self) -> dict[Key, int]:
        """Token ids by what they stand for; of equal ones the last, which is the one that text is encoded with."""
        return {key: token for token, key in enumerate(self.keys) if key[1]}

    def shared(self, other: Vocabulary) -> dict[int, int]:
        """Own id -> `other`'s id of every token that both have. What ends an answer is shared whatever it is called."""
        theirs = other.ids
        pairs = {token: theirs[key] for key, token in self.ids.items() if key in theirs}
        if self.end is not None and other.end is not None and self.end not in pairs and other.end not in pairs.values():
            pairs[self.end] = other.end
        return pairs


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of the model at `path`. Raises ModelError, BrokenFileError."""
    checkpoint = open_checkpoint(path)
    try:
        return Vocabulary.of(Tokenizer(checkpoint.text()))
    finally:
        checkpoint.close()


class Bridge:
    """Between the ids of a target and those of a draft model. `vocab`: V."""

    def __init__(self, target: Vocabulary, draft: Vocabulary, vocab: int) -> None:
        import torch

        pairs = {ours: theirs for ours, theirs in target.shared(draft).items() if ours < vocab}
        self._target, self._vocab = target, vocab
        self._ours = torch.tensor(list(pairs), dtype=torch.int64)  # [s]
        self._theirs = torch.tensor(list(pairs.values()), dtype=torch.int64)  # [s]
        self._spelt = {ours: [theirs] for ours, theirs in pairs.items()}
        self._pieces = {data: token for (control, data), token in draft.ids.items() if not control}
        self._longest = max(map(len, self._pieces), default=0)

    def draft_ids(self, tokens: Iterable[int]) -> list[int]:
        """The conversation in the draft model's tokens; bytes that it has no token for are left out."""
        spelt, ids = self._spelt, []
        for token in tokens:
            if token not in spelt:
                spelt[token] = self._spell(token)
            ids += spelt[token]
        return ids

    def target_row(self, logits: Tensor) -> Tensor:
        """[Vd] -> [V]: the logits of shared tokens, -inf for all others."""
        import torch

        self._ours, self._theirs = self._ours.to(logits.device), self._theirs.to(logits.device)  # moved once
        row = logits.new_full((self._vocab,), -torch.inf)
        row[self._ours] = logits[self._theirs]
        return row

    def _spell(self, token: int) -> list[int]:
        """The longest tokens, from the left, that spell what a target's token stands for."""
        data = self._target.keys[token][1] if token < len(self._target.keys) else b""
        ids, at = [], 0
        while at < len(data):
            size = min(self._longest, len(data) - at)
            while size and data[at : at + size] not in self._pieces:
                size -= 1
            if size:
                ids.append(self._pieces[data[at : at + size]])
            at += size or 1
        return ids
