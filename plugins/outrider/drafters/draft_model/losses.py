"""What a student is asked for: the teacher's laws, softened by a temperature; or its logits.

Sources: Hinton et al. (arXiv 1503.02531), whose t² keeps gradients of one size whatever the temperature; Kim et al.
(arXiv 2105.08919) for logits. All give one number for each row.

Letters: `R` rows, `V` vocabulary, `k` labels, `d` width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.train.parts import wide
from outrider.core.train.recipe import Labels


def divergence(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """t² KL(teacher, student) of logits [R, V], both divided by t: [R]. 0 where their laws are equal."""
    ours, theirs = (wide(x / temperature).log_softmax(-1) for x in (logits, wanted))
    return temperature**2 * (theirs.exp() * (theirs - ours)).sum(-1)


def divergence_of_labels(logits: Tensor, labels: Labels, temperature: float) -> Tensor:
    """As `divergence`, of the likeliest tokens alone; all others count as one token. `labels` are of laws at t.

    Never more than `divergence`, and the same where all tokens have labels.
    """
    scaled = wide(logits / temperature)  # [R, V]
    whole = scaled.logsumexp(-1, keepdim=True)
    ours = scaled.gather(-1, labels.ids) - whole  # [R, k]
    chances = labels.logs.exp()
    found = (chances * (labels.logs - ours)).sum(-1)
    if labels.ids.shape[-1] < logits.shape[-1]:
        rest = (1 - chances.sum(-1)).clamp(min=0)  # [R]
        others = scaled.scatter(-1, labels.ids, -torch.inf).logsumexp(-1) - whole[:, 0]
        found = found + torch.xlogy(rest, rest) - rest * others
    return temperature**2 * found


def distance(logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean square of the differences of logits [R, n]: [R]. What is added to all of a row changes no law and does not count."""
    apart = wide(logits) - wide(wanted)
    return (apart - apart.mean(-1, keepdim=True)).square().mean(-1)


def distance_of_labels(logits: Tensor, labels: Labels, temperature: float) -> Tensor:
    """As `distance`, of the likeliest tokens."""
    return distance(logits.gather(-1, labels.ids), temperature * labels.logs)


def mismatch(states: Tensor, wanted: Tensor) -> Tensor:
    """Mean square of the differences of states [R, d], as a share of the wanted ones' own: []."""
    wanted = wide(wanted)
    return (wide(states) - wanted).square().mean() / wanted.square().mean()
