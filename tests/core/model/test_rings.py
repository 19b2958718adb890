"""Sliding layers that keep a ring of their newest rows: the same numbers, roll-back within the slack, snapshots beyond it."""

from __future__ import annotations

import golden
import pytest
import torch
from golden import FOLDER, SLIDING, decoder, tolerance

from outrider.core.drafting import ModelInfo
from outrider.core.model.cache import layout
from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import Cache, CacheConfig, KVCache, SlidingKVCache, new_rows
from outrider.core.model.families.spec import AttentionSpec
from outrider.core.model.model import TargetModel

CPU = torch.device("cpu")


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps, so that a ring for a window of 16 and a slack of 8 has 24 rows and turns within 48 tokens."""
    monkeypatch.setattr(layout, "SPAN", 8)


@pytest.fixture(params=SLIDING)
def name(request: pytest.FixtureRequest, fine: None) -> str:
    return request.param


def rings(cache: Cache) -> list[SlidingKVCache]:
    return [some for some in cache.states if isinstance(some, SlidingKVCache)]


def fed(model, cache: Cache, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Logits [S, V] of all `ids` in passes of `rows`."""
    logits = []
    for at in range(0, len(ids), rows):
        logits.append(model.run(ids[at : at + rows], cache).logits)
        cache.commit(cache.length + len(logits[-1]))
    return torch.cat(logits)


@pytest.mark.parametrize("rows", [1, 7, 9, 10, 31, 48], ids=lambda rows: f"by-{rows}")
def test_float64_logits(name: str, rows: int) -> None:
    """In place up to 9 rows, wider passes beside the ring."""
    known = golden.tensors(name)
    model = decoder(FOLDER / name, torch.float64, 48)
    cache = model.new_cache(48, slack=8, rings=0)
    assert {ring.rows for ring in rings(cache)} == {24}
    logits = fed(model, cache, known["input_ids"][0], rows)
    golden.assert_close(logits, known["f64.logits"][0], atol=5e-6)


@pytest.mark.parametrize("accepted", [0, 1, 5])
def test_rejected_drafts_leave_no_trace(name: str, accepted: int) -> None:
    """Drafts overwrite the oldest rows, of which the next pass needs none."""
    known = golden.tensors(name)
    ids = known["input_ids"][0]
    model = decoder(FOLDER / name, torch.float64, 60)
    cache = model.new_cache(60, slack=8, rings=0)
    fed(model, cache, ids[:31], 10)
    model.run(torch.cat((ids[31 : 32 + accepted], (ids[32 + accepted : 40] + 1) % 256)), cache)
    cache.commit(32 + accepted)
    logits = model.run(ids[32 + accepted :], cache).logits
    golden.assert_close(logits, known["f64.logits"][0, 32 + accepted :], atol=5e-6)


def test_rewind_three_windows_back(name: str) -> None:
    known = golden.tensors(name)
    ids = known["long.input_ids"][0]
    model = decoder(FOLDER / name, torch.float32, 150)
    cache = model.new_cache(150, slack=8, rings=0)
    assert not cache.cut
    for at in range(0, 150, 30):
        model.run(ids[at : at + 30], cache)
        cache.commit(at + 30)
        cache.snapshot()
    assert cache.rewind(145) == 145  # the slack
    assert cache.rewind(145 - 3 * 16) == 90
    logits = fed(model, cache, ids[90:], 8)
    golden.assert_close(logits, known["long.logits"][0, 90:], atol=tolerance(name))
    assert cache.rewind(29) == 0
    again = fed(model, cache, ids[:48], 40)
    fresh = fed(model, model.new_cache(48), ids[:48], 40)
    torch.testing.assert_close(again, fresh, atol=1e-4, rtol=0)


def test_keys_and_values_of_a_ring(name: str) -> None:
    """Drafters get the newest rows in order of position, whatever keeps them."""
    ids = golden.tensors(name)["input_ids"][0]
    model = decoder(FOLDER / name, torch.float32, 120)
    target = TargetModel(model, ModelInfo(name, "golden", 256, 64, len(model.weights.blocks), "bytes"), 50)
    fed(model, target.cache, ids[:40], 10)
    layers = [i for i, some in enumerate(model.spec.layers) if isinstance(some.mixer, AttentionSpec)]
    full = {layer: target.kv(layer) for layer in layers}
    target.cache = model.new_cache(120, slack=8, rings=0)
    fed(model, target.cache, ids[:40], 10)
    for layer, (keys, values, length) in full.items():
        mixer = model.spec.layers[layer].mixer
        assert isinstance(mixer, AttentionSpec) and length == 40 and keys.shape[1] == 120
        got = target.kv(layer)
        first = max(0, 40 - got[0].shape[1])
        assert first == (40 - 15 if mixer.window else 0)
        torch.testing.assert_close(got[0][:, : 40 - first], keys[:, first:40], atol=1e-4, rtol=0)
        torch.testing.assert_close(got[1][:, : 40 - first], values[:, first:40], atol=1e-4, rtol=0)


def room(capacity: int) -> CacheConfig:
    return CacheConfig(capacity, torch.float32, CPU)


def test_a_ring_only_where_it_saves_memory() -> None:
    """A window of 100 and 64 rows of slack make a ring of 192 rows, which does not grow with the context."""
    kept = {capacity: new_rows(room(capacity), (2, 4), window=100) for capacity in (384, 385, 5000, 50_000)}
    assert not isinstance(kept[384], SlidingKVCache) and kept[384].nbytes == 384 * 8 * 4
    assert kept[385].nbytes == kept[5000].nbytes == kept[50_000].nbytes == 192 * 8 * 4
    full = new_rows(room(5000), (2, 4))
    assert isinstance(full, KVCache) and full.cut and full.nbytes == 5056 * 8 * 4


def test_what_a_token_reads_hangs_on_its_position_alone() -> None:
    """The same rows in the same slots, whether it comes alone or with others."""
    ring = new_rows(room(1000), (1,), window=100)
    assert isinstance(ring, SlidingKVCache)
    for start, rows in [(0, 300), (300, 30), (330, 64)]:
        where = PassLayout(start, rows, {}, torch.float32, CPU)
        ring.take(where, torch.arange(float(start), start + rows)[:, None])
    together = PassLayout(330, 64, {}, torch.float32, CPU)
    seen, masks = ring.take(together)[0], ring.mask(together, 1)
    for row in (0, 17, 63):
        alone = PassLayout(330 + row, 1, {}, torch.float32, CPU)
        mask = ring.mask(alone, 1)
        assert torch.equal(mask[0] == 0, masks[row] == 0)
        assert sorted(seen[masks[row] == 0].flatten().tolist()) == list(range(231 + row, 331 + row))


def test_a_ring_cannot_be_cut_below_its_slack() -> None:
    ring = new_rows(room(1000), (1,), window=100)
    assert isinstance(ring, SlidingKVCache) and ring.slack == 93
    ring.take(PassLayout(0, 192, {}, torch.float32, CPU), torch.zeros(192, 1))
    assert ring.commit(0)
    ring.take(PassLayout(192, 9, {}, torch.float32, CPU), torch.zeros(9, 1))
    assert ring.commit(201 - 93) and not ring.commit(201 - 94)
    ring.restore(ring.snapshot(150), 150)
    assert ring.commit(150) and not ring.commit(149)
