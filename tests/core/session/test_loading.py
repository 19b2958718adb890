"""How many threads a model gets, and what is told of it once it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toys
from replay import Replay

from outrider.core.base.errors import Cancelled
from outrider.core.base.protocol import ModelChoice
from outrider.core.model.model import TargetModel
from outrider.core.policy.history import CostRecord
from outrider.core.policy.policy import Policy
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler
from outrider.core.session import calibration
from outrider.core.session.calibration import Calibrator
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.loading import open_model

SAMPLER = Sampler(toys.GREEDY, Noise(1))


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
        ({20: 1.0, 15: 0.9, 10: 0.8, 8: 0.6, 5: 0.9}, 8),  # eight fast cores beside slow ones
        ({20: 1.0, 12: 0.6, 11: 0.9, 10: 0.8}, 12),
        ({6: 1.0, 5: 0.8, 3: 1.1}, 5),
    ],
)
def test_the_count_that_is_fastest(costs: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that are not named take as long as the next higher one that is."""
    most = max(costs)
    costs = {count: costs[min(named for named in costs if named >= count)] for count in range(1, most + 1)}
    monkeypatch.setattr(calibration, "ALL_THREADS", most)
    monkeypatch.setattr(calibration, "CALIBRATION", 1e9)
    monkeypatch.setattr(Calibrator, "timed", lambda self, rows: costs[torch.get_num_threads()])
    Calibrator(toys.target(), SAMPLER, lambda: False).choose_threads(None)
    assert torch.get_num_threads() == chosen


def test_a_record_of_other_threads_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ALL_THREADS", 2)
    monkeypatch.setattr(
        Calibrator, "timed", lambda self, rows, context=0: {2: 0.001, 1: 0.002}[torch.get_num_threads()]
    )
    busy = CostRecord(0.0, 1, {1: 0.002, 8: 0.002}, (0.0, 0.0), {})  # made while another program had one of two cores
    policy = Calibrator(toys.target(), SAMPLER, lambda: False).policy(busy, None)
    assert torch.get_num_threads() == 2
    assert policy.costs.of(1) == pytest.approx(0.001)
    kept = CostRecord(0.0, 2, {1: 0.001, 8: 0.00111}, (0.0, 0.0), {})
    assert Calibrator(toys.target(), SAMPLER, lambda: False).policy(kept, None).costs.of(8) == pytest.approx(0.00111)


def test_what_there_was_no_time_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ALL_THREADS", 8)
    monkeypatch.setattr(Calibrator, "timed", lambda self, rows: 1.0)
    Calibrator(toys.target(), SAMPLER, lambda: False).choose_threads(None)
    assert torch.get_num_threads() == 8


def test_a_count_that_was_asked_for() -> None:
    Calibrator(toys.target(), SAMPLER, lambda: False).choose_threads(1)
    assert torch.get_num_threads() == 1
    with pytest.raises(Cancelled):
        Calibrator(toys.target(), SAMPLER, lambda: True).choose_threads(None)
    assert torch.get_num_threads() == calibration.ALL_THREADS  # the next model begins anew


@pytest.mark.parametrize("captured", [False, True])
def test_measuring_leaves_no_trace(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "CALIBRATION", 1e9)
    monkeypatch.setattr(calibration, "WIDTHS", (1, 4))
    toy = toys.target()
    target = TargetModel(toy.decoder, toy.info, toy.context, Replay() if captured else None)
    policy = Calibrator(target, SAMPLER, lambda: False).policy(None, None)
    assert isinstance(policy, Policy) and target.length == 0
    assert list(policy.costs.passes) == [1, 4]
    want = toys.answer(ChatCache(toy), [5, 9, 13]).token_ids
    assert toys.answer(ChatCache(target), [5, 9, 13]).token_ids == want


def test_memory_is_told_as_it_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    path = toys.checkpoint(tmp_path / "tiny")
    choice = ModelChoice(model=str(path), dtype="fp32", device="cpu", threads=1)
    model = open_model(choice, path, lambda *_: None, lambda: False)
    target, told = model.cache.target, model.loaded.memory
    assert told is not None and told.context == target.context and told.overhead > 0
    assert (told.weights, told.states) == (target.decoder.weights.nbytes, target.cache.nbytes)
    assert told.total == told.weights + target.cache.nbytes + told.overhead and told.verdict == ""
