"""Logits of few bits, each penalty alone, rows that are no numbers, and small vocabularies of drafters."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import Sampling
from outrider.core.sampling.device import SamplingTensors
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import (
    COLD,
    STRONGEST,
    Sampler,
    Settings,
    certainty,
    fill,
    greedy_rows,
    in_target_ids,
)

LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(7)) * 3
CPU = torch.device("cpu")


@pytest.mark.parametrize("settings", [Settings(temperature=0.3, top_p=1.0), Settings(temperature=0.3, top_p=0.9)])
def test_logits_of_few_bits_are_computed_with_in_fp32(settings: Settings) -> None:
    few, sampler = LOGITS.bfloat16(), Sampler(settings, Noise(0))
    assert torch.equal(sampler.distribution(few), sampler.distribution(few.float()))
    assert torch.equal(sampler.distribution(few.double()).nonzero(), sampler.distribution(few).nonzero())


@pytest.mark.parametrize(
    ("settings", "less"),
    [
        (Settings(temperature=0, presence_penalty=0.5), 0.5),
        (Settings(temperature=0, frequency_penalty=0.5), 1.5),
        (Settings(temperature=0, presence_penalty=0.25, frequency_penalty=0.5), 1.75),
    ],
)
def test_each_penalty_counts_alone(settings: Settings, less: float) -> None:
    """An id that came three times, the last time in the draft; what only the prompt has is left alone."""
    sampler = Sampler(settings, Noise(0), context=[5])
    sampler.commit([3, 3])
    ids, scores = sampler.compared(LOGITS, 0, [3])
    want = LOGITS.clone()
    want[3] -= less
    assert ids is None
    torch.testing.assert_close(scores, want)


def test_a_bias_has_its_bounds_and_the_coldest_temperature_is_greedy() -> None:
    made = fill(Sampling(temperature=COLD / 2, logit_bias={4: math.inf, 2: -math.inf, 9: 1.5}), Sampling())
    assert made.temperature == 0 and made.logit_bias == ((2, -STRONGEST), (4, STRONGEST), (9, 1.5))
    assert fill(Sampling(temperature=COLD), Sampling()).temperature == COLD


def test_settings_are_told_with_the_penalties_that_matter() -> None:
    told = Settings(temperature=0.5, top_k=7, presence_penalty=0.5, logit_bias=((3, 1.0),)).sampling(
        Sampling(repeat_penalty=1.0)
    )
    want = Sampling(
        temperature=0.5, top_k=7, top_p=0.95, min_p=0.0, repeat_penalty=1.0, presence_penalty=0.5, logit_bias={3: 1.0}
    )
    assert told == want


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_greedy_rows_are_numbers(wrong: float) -> None:
    rows = torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 1.0]])
    assert greedy_rows(rows).tolist() == [1, 0]
    rows[1, 2] = wrong
    with pytest.raises(ModelError, match="not a number"):
        greedy_rows(rows)


def test_the_certainty_of_a_row_is_the_share_of_its_best() -> None:
    rows = torch.log(torch.tensor([[[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]]]))
    torch.testing.assert_close(certainty(rows), torch.tensor([[0.7, 0.5]]))


def test_a_small_vocabulary_in_the_ids_of_the_target() -> None:
    rows, words = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([4, 0, 2])
    no = -math.inf
    assert in_target_ids(rows, words, 5).tolist() == [[2.0, no, 3.0, no, 1.0], [5.0, no, 6.0, no, 4.0]]
    assert in_target_ids(rows, None, 5) is rows


@pytest.mark.parametrize("best", [2.0, 9.0, 30.0])
def test_a_nucleus_is_found_however_far_it_reaches(best: float) -> None:
    """Ids of 0.1 natural-log units apart, as a whole so or so far below the best one."""
    logits = torch.cat((torch.tensor([best]), -0.1 * torch.arange(200.0)))
    probs = logits.double().softmax(-1)
    for mass in (0.3, 0.9, 0.999):
        left = Sampler(Settings(temperature=1.0, top_p=mass), Noise(0)).distribution(logits).nonzero()[:, 0]
        count = int((probs.cumsum(0) - probs < mass).sum())
        assert left.tolist() == list(range(count))


def test_rows_of_other_widths_have_noise_of_their_own_ids() -> None:
    noise = Noise(3)
    for vocab in (10, 20, 10):
        want = noise.uniform("target", 4, torch.arange(vocab))
        assert torch.equal(noise.uniform_all("target", 4, vocab, CPU), want)


def test_a_row_of_the_device_is_sure_by_its_own_numbers() -> None:
    """A flat row needs more ids than the pool has, a sharp one does not; what the filters keep counts, best first."""
    settings = Settings(temperature=1.0, top_p=0.9)
    flat, sharp = torch.zeros(4000), torch.zeros(4000)
    sharp[77] = 20.0
    tensors = SamplingTensors.on(CPU)
    tensors.set(settings, Noise(1))
    rows = torch.stack((sharp, flat, sharp))
    ids, sure = tensors.like("filtered", sure=False).choose(rows, torch.arange(3))
    assert sure.tolist() == [True, False, True] and (int(ids[0]), int(ids[2])) == (77, 77)
    assert tensors.like("filtered", sure=True).choose(rows, torch.arange(3))[1].all()
