"""Losses whose graphs are in memory one at a time.

Several heads that read the same states, each with logits over a vocabulary, hold most of their memory in these logits. Each
loss is gone back through as soon as it is there, down to the states; what all of them want of the states is then sent on
through what made those, once (Gloeckle et al., arXiv 2404.19737, section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def backward(states: Sequence[Tensor], losses: Callable[[list[Tensor]], Iterable[Tensor]]) -> float:
    """Add the gradients of a sum of losses; returns the sum. `losses` makes one after another, from copies of the states."""
    leaves = [state.detach().requires_grad_(state.requires_grad) for state in states]
    total = 0.0
    for loss in losses(leaves):
        loss.backward()
        total += float(loss.detach())
    pairs = [(state, leaf.grad) for state, leaf in zip(states, leaves, strict=True) if leaf.grad is not None]
    if pairs:
        torch.autograd.backward([state for state, _ in pairs], [grad for _, grad in pairs])
    return total
