"""Muon beside AdamW."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from outrider.core.train.optimiser import MOMENTUM, SIZE, Optimiser, orthogonal
from outrider.core.train.recipe import Group


@pytest.mark.parametrize("shape", [(24, 60), (60, 24)])
def test_a_matrix_is_turned_into_one_of_singular_values_of_about_one(shape: tuple[int, int]) -> None:
    luck = torch.Generator().manual_seed(0)
    matrix = torch.randn(*shape, generator=luck)
    made = orthogonal(matrix).float()
    values = torch.linalg.svdvals(made)
    assert made.shape == matrix.shape and values.min() > 0.6 and values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.cosine_similarity(made.flatten(), (u @ v).flatten(), 0) > 0.97
    assert bool((orthogonal(torch.zeros(3, 4)) == 0).all())


def test_matrices_that_are_fresh_take_muon_and_all_else_adamw() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 9), nn.Linear(9, 4)
    other, twin = copy.deepcopy(first), copy.deepcopy(second)
    groups = [Group(list(first.parameters()), fresh=True), Group(list(second.parameters()), 0.5)]
    ours = Optimiser(groups, 1e-2, (0.9, 0.95), 0.1)
    beside = [other.bias, *twin.parameters()]
    theirs = torch.optim.AdamW(beside, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    average = torch.zeros(9, 6)
    for step in range(3):
        x, wanted = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)), first.weight.detach().clone()
        for net in (nn.Sequential(first, second), nn.Sequential(other, twin)):
            net.zero_grad()
            net(x).square().mean().backward()
        gradient = first.weight.grad
        assert gradient is not None
        average.lerp_(gradient, 1 - MOMENTUM)
        wanted = wanted * (1 - 1e-2 * 0.1) - 1e-2 * SIZE * 3 * orthogonal(gradient.lerp(average, MOMENTUM)).float()
        ours.step()
        theirs.step()
        torch.testing.assert_close(first.weight.detach(), wanted)
        with torch.no_grad():
            other.weight.copy_(first.weight)
        for one, same in zip((first.bias, *second.parameters()), beside, strict=True):
            torch.testing.assert_close(one, same)
