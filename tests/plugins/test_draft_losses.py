"""What a student is asked for: zero where it says what the teacher says, of one size at every temperature, true gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outrider.core.train.recipe import Labels
from outrider.drafters.draft_model import losses

LUCK = torch.Generator().manual_seed(5)
OURS = torch.randn(4, 9, generator=LUCK, dtype=torch.float64) * 2
THEIRS = torch.randn(4, 9, generator=LUCK, dtype=torch.float64) * 2


def law(row: Tensor, temperature: float) -> list[float]:
    """From first principles."""
    weights = [math.exp(float(x) / temperature) for x in row]
    return [weight / sum(weights) for weight in weights]


def labels(logits: Tensor, top: int, temperature: float) -> Labels:
    best = (logits / temperature).log_softmax(-1).topk(top, -1)
    return Labels(best.indices, best.values)


@pytest.mark.parametrize("t", [0.5, 1.0, 3.0])
def test_the_divergence_is_that_of_the_formula(t: float) -> None:
    for row, found in enumerate(losses.divergence(OURS, THEIRS, t).tolist()):
        pairs = zip(law(THEIRS[row], t), law(OURS[row], t), strict=True)
        assert found == pytest.approx(t * t * sum(p * math.log(p / q) for p, q in pairs), rel=1e-12)


@pytest.mark.parametrize("t", [0.5, 1.0, 3.0])
def test_nothing_is_lost_where_both_say_the_same(t: float) -> None:
    same = THEIRS + torch.tensor([[1.0], [-2.0], [0.0], [7.0]])  # the same laws
    for found in (
        losses.divergence(same, THEIRS, t),
        losses.divergence_of_labels(same, labels(THEIRS, 4, t), t),
        losses.divergence_of_labels(same, labels(THEIRS, 9, t), t),
        losses.distance(same, THEIRS),
        losses.distance_of_labels(same, labels(THEIRS, 4, t), t),
    ):
        torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-12, rtol=0)


def test_its_size_does_not_hang_on_the_temperature() -> None:
    """Logits and temperature c times as large: c² times the loss. And towards high temperatures it comes to a limit."""
    one = losses.divergence(OURS, THEIRS, 1.5)
    for c in (0.25, 4.0):
        torch.testing.assert_close(losses.divergence(c * OURS, c * THEIRS, 1.5 * c), c * c * one)
        found = losses.divergence_of_labels(c * OURS, labels(c * THEIRS, 3, 1.5 * c), 1.5 * c)
        torch.testing.assert_close(found, c * c * losses.divergence_of_labels(OURS, labels(THEIRS, 3, 1.5), 1.5))
    limit = losses.distance(OURS, THEIRS) / 2
    torch.testing.assert_close(losses.divergence(OURS, THEIRS, 1e4), limit, rtol=1e-3, atol=0)


def test_labels_of_all_tokens_are_the_whole_law_and_of_some_a_part_of_it() -> None:
    whole = losses.divergence(OURS, THEIRS, 2.0)
    torch.testing.assert_close(losses.divergence_of_labels(OURS, labels(THEIRS, 9, 2.0), 2.0), whole)
    torch.testing.assert_close(
        losses.distance_of_labels(OURS, labels(THEIRS, 9, 2.0), 2.0), losses.distance(OURS, THEIRS)
    )
    before = torch.zeros(4, dtype=torch.float64)
    for top in (1, 2, 5):
        found = losses.divergence_of_labels(OURS, labels(THEIRS, top, 2.0), 2.0)
        assert bool((found >= before - 1e-12).all())
        assert bool((found <= whole + 1e-12).all())
        before = found
    one = labels(THEIRS, 2, 2.0)
    for row in range(4):
        p, q = law(THEIRS[row], 2.0), law(OURS[row], 2.0)
        kept = one.ids[row].tolist()
        rest = [1 - sum(x[at] for at in kept) for x in (p, q)]
        wanted = sum(p[at] * math.log(p[at] / q[at]) for at in kept) + rest[0] * math.log(rest[0] / rest[1])
        assert float(losses.divergence_of_labels(OURS, one, 2.0)[row]) == pytest.approx(4 * wanted, rel=1e-12)


def test_gradients_are_true() -> None:
    ours, some, every = OURS.clone().requires_grad_(), labels(THEIRS, 3, 2.0), labels(THEIRS, 9, 2.0)
    for loss in (
        lambda x: losses.divergence(x, THEIRS, 2.0),
        lambda x: losses.divergence_of_labels(x, some, 2.0),
        lambda x: losses.divergence_of_labels(x, every, 2.0),
        lambda x: losses.distance(x, THEIRS),
        lambda x: losses.distance_of_labels(x, some, 2.0),
        lambda x: losses.mismatch(x, THEIRS),
    ):
        assert torch.autograd.gradcheck(loss, ours)


def test_a_teacher_that_is_certain_spoils_nothing() -> None:
    sure = torch.full((1, 9), -1e4, dtype=torch.float64)
    sure[0, 2] = 0.0
    ours = OURS[:1].clone().requires_grad_()
    for found in (losses.divergence(ours, sure, 1.0), losses.divergence_of_labels(ours, labels(sure, 2, 1.0), 1.0)):
        (slope,) = torch.autograd.grad(found.sum(), ours)
        assert found.item() == pytest.approx(-OURS[0].log_softmax(-1)[2].item())
        assert bool(slope.isfinite().all())


def test_chances_that_are_rounded_to_more_than_one_spoil_nothing() -> None:
    ours = OURS[:1].clone().requires_grad_()
    over = Labels(torch.tensor([[2, 4]]), torch.tensor([[0.6, 0.4 + 1e-7]], dtype=torch.float64).log())
    found = losses.divergence_of_labels(ours, over, 1.0)
    (slope,) = torch.autograd.grad(found.sum(), ours)
    assert bool(found.isfinite().all())
    assert bool(slope.isfinite().all())
