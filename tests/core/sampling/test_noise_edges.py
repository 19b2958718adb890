"""Coins and the private noise of drafters: reproducible, and apart from each other."""

from __future__ import annotations

from itertools import pairwise

import torch

from outrider.core.sampling.noise import Noise

EVEN = torch.ones(1000, dtype=torch.float64)


def test_a_coin_falls_as_often_as_it_should_and_each_turn_has_its_own() -> None:
    noise = Noise(4)
    tossed = [[noise.coin(position, 0.3, turn) for position in range(200)] for turn in range(2)]
    assert all(34 < sum(turn) < 86 for turn in tossed)  # 60 ± 4 standard errors
    assert tossed[0] != tossed[1]
    assert tossed[0] == [Noise(4).coin(position, 0.3) for position in range(200)]
    assert not any(noise.coin(position, 0.0) for position in range(50))
    assert all(noise.coin(position, 1.0) for position in range(50))


def test_every_position_of_every_round_has_its_own_draft_noise() -> None:
    noise = Noise(4)
    drawn = [[noise.draft_stream(position, root).draw(EVEN) for position in range(20)] for root in range(5)]
    assert len({tuple(row) for row in drawn}) == 5
    for shift in range(1, 20):  # nor is it that of another position in an earlier round
        assert all(later[:-shift] != earlier[shift:] for earlier, later in pairwise(drawn))
    assert drawn[3] == [Noise(4).draft_stream(position, 3).draw(EVEN) for position in range(20)]
