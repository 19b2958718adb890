"""Captured steps of drafters: one capture for each key, arguments from anywhere, ends that grow in steps."""

from __future__ import annotations

import golden
import pytest
import torch
import toys
from replay import Replay
from torch import Tensor

from outrider.core.formats.checkpoint import describe
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.cache.states import CacheConfig, KVCache
from outrider.core.model.kernels import ops
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.model.steps import Steps, filled


def test_a_key_is_captured_once() -> None:
    graphs, runs = Replay(), []
    steps = Steps(graphs, torch.zeros(0), [])

    def work(sheet: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(sheet.shape)
        return x * sheet, x + sheet[-1]

    for key, rows in (("two", 2), ("three", 3), ("two", 2)):
        sheet, x = steps.pinned(range(1, rows + 1)), torch.rand(rows)
        product, total = steps(key, work, sheet, x)
        assert torch.equal(product, x * sheet)
        assert torch.equal(total, x + rows)
    assert graphs.count == len(runs) == 2


def test_ends_grow_in_steps_where_passes_read_them_all() -> None:
    block = toys.decoder().weights.blocks[0].mixer
    assert isinstance(block, Attention)
    state = block.new_state(CacheConfig(5000, torch.float32, torch.device("cpu")))
    assert isinstance(state, KVCache)
    with ops.only("cpu", None):
        steps = Steps(Replay(), state.parts[0], [block])
    ends = [steps.end(stop, state) for stop in (1, 1024, 1025, 2049, 4097, 5000)]
    assert ends == [1024, 1024, 2048, 4096, 5056, 5056]


def test_filled() -> None:
    x = torch.rand(2, 3, 4)
    assert filled(x, 2) is x
    more = filled(x, 5)
    assert more.shape == (5, 3, 4)
    assert torch.equal(more[:2], x) and not bool(more[2:].any())


@pytest.mark.parametrize("kind", ["qwen3_5", "nemotron_h", "lfm2"])
def test_a_snapshot_outlives_the_captured_pass_that_it_came_from(kind: str) -> None:
    folder = golden.FOLDER / kind
    decoder, prompt = golden.decoder(folder, torch.float32, 64 + MAX_DRAFT_ROWS), [5, 9, 13, 40, 7]
    made = []
    for capture in (None, Replay()):
        target = TargetModel(decoder, describe(folder), 64, capture)
        for ids in (prompt, [8], [3], [6, 2]):
            target.forward(ids)
            target.commit(target.length + len(ids))
            if ids is prompt or len(ids) == 1:
                target.snapshot()
        rows = []
        for length in (6, 5):
            assert target.rewind(length) == length
            rows.append(target.forward([11]).logits.clone())
        made.append(torch.cat(rows))
    torch.testing.assert_close(made[1], made[0], atol=1e-5, rtol=1e-5)
