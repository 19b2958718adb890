"""Gated delta net and Mamba-2 by tokens and by chunks, and what is kept of each for roll-back."""

from __future__ import annotations

import golden
import pytest
import torch
from golden import FOLDER, RECURRENT, decoder

from outrider.core.model.blocks import delta
from outrider.core.model.blocks.scan import CHUNK, by_chunks, by_tokens, chunked, fading
from outrider.core.model.cache.states import CacheConfig, Count, Recurrent


def inputs(rows: int, seed: int = 0) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """Random q, k, v, beta and the decay's logarithm for 3 heads of 8 and 5; some heads forget nearly everything."""
    g = torch.Generator().manual_seed(seed)
    q, k = (delta._unit(torch.randn(rows, 3, 8, generator=g)) for _ in range(2))
    v = torch.randn(rows, 3, 5, generator=g)
    beta = torch.rand(rows, 3, generator=g)
    return (q, k, v), beta, -torch.rand(rows, 3, generator=g) * torch.tensor([0.01, 1.0, 60.0])


def memory(seed: int = 1) -> torch.Tensor:
    return torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 20])
def test_chunks_give_what_tokens_give(rows: int) -> None:
    qkv, beta, logs = inputs(rows)
    want, end = delta._by_tokens(memory(), delta._steps(qkv, beta, logs.exp()), qkv[0])
    got, reached = delta._by_chunks(memory(), qkv, beta, logs)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=0)
    torch.testing.assert_close(reached, end, atol=2e-5, rtol=0)
    q, k, v = qkv
    want, end = by_tokens(memory(), q, k, v, logs.exp())
    got, reached = by_chunks(memory(), chunked(q), chunked(k), chunked(v), fading(chunked(logs[..., None])))
    torch.testing.assert_close(got[:rows], want, atol=2e-4, rtol=0)
    torch.testing.assert_close(reached, end, atol=2e-4, rtol=0)


def test_a_drafted_token_leaves_the_state_of_a_plain_one() -> None:
    """To the last bit: six tokens in one pass, of which three are true, and three tokens one by one."""
    qkv, beta, logs = inputs(6)
    steps = delta._steps(qkv, beta, logs.exp())
    alone = memory()
    for t in range(3):
        one = delta._steps(tuple(x[t : t + 1] for x in qkv), beta[t : t + 1], logs[t : t + 1].exp())
        alone = delta._walk(alone, one, 1)[2]
    assert torch.equal(delta._walk(memory(), steps, 3)[2], alone)
    (q, k, v), decay = qkv, logs.exp()
    alone = memory()
    for t in range(3):
        alone = by_tokens(alone, *(x[t : t + 1] for x in (q, k, v, decay)))[1]
    assert torch.equal(by_tokens(memory(), q[:3], k[:3], v[:3], decay[:3])[1], alone)


@pytest.mark.parametrize("name", RECURRENT)
def test_chunks_in_float64(name: str) -> None:
    known = golden.tensors(name)
    model = decoder(FOLDER / name, torch.float64, 150)
    short = model.run(known["input_ids"][0], model.new_cache(48, slack=0)).logits
    golden.assert_close(short, known["f64.logits"][0], atol=5e-6)
    ids = known["long.input_ids"][0]
    chunked, stepped = (model.run(ids, model.new_cache(150, slack=slack)).logits for slack in (0, 150))
    torch.testing.assert_close(chunked, stepped, atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", RECURRENT)
def test_prefill_then_drafts(name: str) -> None:
    """A wide pass, a draft of which some was right, another wide pass; then back to a kept state and the same again."""
    known = golden.tensors(name)
    ids, want = known["input_ids"][0], known["f64.logits"][0]
    model = decoder(FOLDER / name, torch.float64, 60)
    cache = model.new_cache(60, slack=8)
    model.run(ids[:20], cache)
    cache.commit(20)
    cache.snapshot()
    for right in (1, 4):
        draft = torch.cat((ids[20 : 20 + right], (ids[20 + right : 27] + 1) % 256))
        model.run(draft, cache)
        cache.commit(20 + right)
        logits = model.run(ids[20 + right :], cache).logits
        golden.assert_close(logits, want[20 + right :], atol=5e-6)
        cache.commit(48)
        assert cache.rewind(40) == 20


def test_a_wide_pass_is_committed_at_its_end_or_not_at_all() -> None:
    state = Recurrent(CacheConfig(100, torch.float32, torch.device("cpu"), slack=4), ((1,), torch.float32))
    asked = []

    def after(count: Count) -> list[torch.Tensor]:
        asked.append(count)
        return [torch.tensor([float(count)])]

    state.passed(9, after)
    assert asked == [9]
    assert not state.commit(4) and state.commit(9) and state.now[0].item() == 9
    assert state.commit(0) and state.now[0].item() == 0
    state.passed(4, after)
    assert asked == [9]
    assert state.commit(3) and state.now[0].item() == 3
    assert state.commit(1) and state.now[0].item() == 1
    assert not state.commit(5)
