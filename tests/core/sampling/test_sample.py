"""Logits -> distribution -> token: filters against a naive reference, penalties, and that the token follows the law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import Sampling
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings, fill


def naive(logits: Tensor, s: Settings) -> Tensor:
    """Filters as one would write them on paper, over a full sort."""
    if s.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), logits.shape[0]).double()
    p = (logits.double() / s.temperature).softmax(-1)
    if s.top_k:
        p[p.sort(descending=True, stable=True).indices[s.top_k :]] = 0
        p /= p.sum()
    if s.top_p < 1:
        ranked, order = p.sort(descending=True, stable=True)
        p[order[(ranked.cumsum(0) - ranked) >= s.top_p]] = 0
        p /= p.sum()
    if s.min_p:
        p[p < s.min_p * p.max()] = 0
    return p / p.sum()


SETTINGS = [
    Settings(temperature=0),
    Settings(temperature=1.0, top_p=1.0),
    Settings(temperature=0.7, top_p=0.95),
    Settings(temperature=1.3, top_p=0.5),
    Settings(temperature=1.0, top_k=7, top_p=1.0),
    Settings(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
    Settings(temperature=5.0, top_p=0.999),
    Settings(temperature=1.0, top_p=1.0, min_p=0.2),
    Settings(temperature=1.0, top_k=1, top_p=1.0),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("scale", [0.1, 2.0, 12.0])
def test_filters_equal_the_naive_ones(settings: Settings, scale: float) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(1)) * scale
    got = Sampler(settings, Noise(0)).distribution(logits)
    torch.testing.assert_close(got, naive(logits, settings), atol=1e-6, rtol=1e-4)
    assert math.isclose(float(got.sum()), 1.0, abs_tol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [SETTINGS[2], *(pytest.param(each, marks=pytest.mark.thorough) for each in (SETTINGS[1], *SETTINGS[3:]))],
    ids=str,
)
def test_tokens_follow_the_distribution(settings: Settings) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(2)) * 1.5
    sampler = Sampler(settings, Noise(7))
    law = sampler.distribution(logits)
    counts = torch.zeros(12, dtype=torch.float64)
    for position in range(3000):
        counts[sampler.token(logits, position)] += 1
    kept = law > 0
    assert counts[~kept].sum() == 0
    expected = law[kept] * 3000
    chi = float(((counts[kept] - expected) ** 2 / expected).sum())
    freedom = max(1, int(kept.sum()) - 1)
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_greedy_is_a_one_hot_everywhere() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(3))
    sampler = Sampler(Settings(temperature=0), Noise(0))
    best = int(logits.argmax())
    assert sampler.greedy
    assert sampler.token(logits, 4) == best
    assert float(sampler.distribution(logits)[best]) == 1.0
    assert sampler.chain(logits[None], 4).tolist() == [best]


def test_the_token_depends_on_seed_and_position_only() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(4))
    settings = Settings(temperature=1.0, top_p=1.0)
    one, two = Sampler(settings, Noise(9)), Sampler(settings, Noise(9))
    forward = [one.token(row, 100 + i) for i, row in enumerate(logits)]
    backward = [two.token(logits[i], 100 + i) for i in reversed(range(5))]
    assert forward == backward[::-1]
    assert Sampler(settings, Noise(10)).chain(logits, 100).tolist() != forward


def test_penalties_count_context_answer_and_draft() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 0.5])
    base = Settings(temperature=0, repeat_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    sampler = Sampler(base, Noise(0), context=[0])
    sampler.commit([1, 1])
    x = sampler._processed(logits, [2])
    # 0: repeated in the prompt; 1: twice in the answer; 2: once in the draft; 3: new
    expected = [2.0 / 2, -2.0 * 2 - 0.25 - 1.0, 1.0 / 2 - 0.25 - 0.5, 0.5]
    torch.testing.assert_close(x, torch.tensor(expected))
    torch.testing.assert_close(logits, torch.tensor([2.0, -2.0, 1.0, 0.5]))  # the row itself is left alone


def test_logit_bias_forces_and_forbids() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    assert Sampler(Settings(temperature=0, logit_bias=((0, 50.0),)), Noise(0)).token(logits, 0) == 0
    assert Sampler(Settings(temperature=0, logit_bias=((2, -50.0),)), Noise(0)).token(logits, 0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_not_a_number_is_told(temperature: float) -> None:
    logits = torch.tensor([1.0, float("nan"), 3.0])
    with pytest.raises(ModelError, match="not a number"):
        Sampler(Settings(temperature=temperature), Noise(0)).token(logits, 0)


def test_fill_prefers_the_user_then_the_model() -> None:
    model = Sampling(temperature=0.2, top_k=50)
    assert fill(Sampling(), model) == Settings(temperature=0.2, top_k=50)
    assert fill(Sampling(temperature=0, top_p=0.5), model) == Settings(temperature=0, top_k=50, top_p=0.5)


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(temperature=-1), "--temperature"),
        (Sampling(temperature=float("nan")), "--temperature"),
        (Sampling(top_p=0), "--top-p"),
        (Sampling(top_p=float("nan")), "--top-p"),
        (Sampling(top_k=-1), "--top-k"),
        (Sampling(min_p=1.5), "--min-p"),
        (Sampling(repeat_penalty=0), "--repeat-penalty"),
        (Sampling(max_tokens=0), "--max-tokens"),
        (Sampling(seed=-1), "--seed"),
        (Sampling(logit_bias={3: float("nan")}), "--logit-bias"),
        (Sampling(stop=[""]), "--stop"),
    ],
)
def test_options_out_of_range_are_named(sampling: Sampling, words: str) -> None:
    problem = sampling.problem()
    assert problem is not None
    assert problem.startswith(words)
    assert Sampling().problem() is None
