"""How many threads a model gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import toys

from outrider.core import loading
from outrider.core.errors import Cancelled


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        ({8: 1.0, 4: 1.2, 2: 1.5, 1: 2.0}, 8),  # more are better
        ({8: 1.0, 4: 0.6, 2: 0.5, 1: 0.7}, 2),  # they get into each other's way
        ({8: 1.0, 4: 0.99, 2: 0.5, 1: 0.4}, 8),  # what is as good stays
        ({8: 1.0, 4: 0.9, 2: 0.8, 1: 0.7}, 1),
    ],
)
def test_the_count_that_is_fastest(costs: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ALL_THREADS", 8)
    monkeypatch.setattr(loading, "CALIBRATION", 1e9)
    monkeypatch.setattr(loading, "_timed", lambda target, rows: costs[torch.get_num_threads()])
    loading._choose_threads(toys.target(), None, lambda: False)
    assert torch.get_num_threads() == chosen


def test_what_there_was_no_time_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ALL_THREADS", 8)
    monkeypatch.setattr(loading, "_timed", lambda target, rows: 1.0)
    loading._choose_threads(toys.target(), None, lambda: False)
    assert torch.get_num_threads() == 8


def test_a_count_that_was_asked_for() -> None:
    loading._choose_threads(toys.target(), 1, lambda: False)
    assert torch.get_num_threads() == 1
    with pytest.raises(Cancelled):
        loading._choose_threads(toys.target(), None, lambda: True)
    assert torch.get_num_threads() == loading.ALL_THREADS  # the next model begins anew
