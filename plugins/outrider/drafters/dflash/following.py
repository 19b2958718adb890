"""What DSpark (arXiv 2607.05147) adds to a draft under training: a bias by the token before a slot, and how sure the draft is.

Loss of a slot, q the draft's law there and p the target's: 0.1 times the cross-entropy, 0.9 times |p - q|, and the binary
cross-entropy of the confidence against the chance 1 - |p - q| / 2 that a token drawn from q stays.

Letters: `R` slots, `V` vocabulary, `n` words, `r` rank, `d` width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.core.train.chunked_loss import Law
from outrider.core.train.parts import wide

CROSS, APART, SURE = 0.1, 0.9, 1.0  # weights of the three


class Markov(nn.Module):
    """What the token before adds to the logits; nothing at first."""

    def __init__(self, vocab: int, words: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, words, bias=False)

    def begin(self, luck: torch.Generator) -> None:
        """Fresh weights."""
        nn.init.normal_(self.markov_w1.weight, generator=luck)
        nn.init.zeros_(self.markov_w2.weight)


class Confidence(nn.Module):
    """The chance that the token of a slot stays, from the slot and the previous token; even at first."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.proj = nn.Linear(columns, 1)

    def begin(self) -> None:
        """Fresh weights."""
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)


def losses(logits: Tensor, law: Law, sure: Tensor) -> Tensor:
    """Of slots with logits [R, n], the target's laws there and confidences [R] before the sigmoid: [R]."""
    apart = (wide(logits).softmax(-1) - law.spread(logits)).abs().sum(-1)
    stays = (1 - apart.detach() / 2).clamp(0, 1)
    doubt = F.binary_cross_entropy_with_logits(wide(sure), stays.to(wide(sure)), reduction="none")
    return CROSS * law.loss(logits) + APART * apart + SURE * doubt
