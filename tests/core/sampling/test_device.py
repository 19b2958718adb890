"""Choosing and accepting with tensors alone, against what the host does."""

from __future__ import annotations

import pytest
import torch
from toys import tree

from outrider.core.model.graph_runner import DraftInputs
from outrider.core.sampling.accept import accept
from outrider.core.sampling.device import SamplingTensors, kind_of
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings

CPU = torch.device("cpu")
SETTINGS = [
    Settings(temperature=0),
    Settings(temperature=0.7, top_p=1.0),
    Settings(temperature=1.3, top_p=1.0, min_p=0.05),
    Settings(temperature=0.7, top_p=0.95),
    Settings(temperature=1.0, top_p=0.5, top_k=40),
    Settings(temperature=0.9, top_p=1.0, top_k=3, min_p=0.3),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("sure", [True, False])
def test_choices(settings: Settings, sure: bool) -> None:
    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(1)) * 3
    noise, tensors, kind = Noise(11), SamplingTensors.on(CPU), kind_of(settings)
    tensors.set(settings, noise)
    assert kind is not None
    ids, known = tensors.like(kind, sure=sure).choose(logits, torch.arange(70, 79))
    assert ids.tolist() == Sampler(settings, noise).chain(logits, 70).tolist()
    assert known.all()


def test_what_a_pool_does_not_hold_is_not_sure() -> None:
    settings, tensors = Settings(temperature=1.0, top_p=0.99), SamplingTensors.on(CPU)
    tensors.set(settings, Noise(1))
    flat, steep = torch.zeros(5000), torch.zeros(5000).index_fill(0, torch.tensor([7]), 40.0)
    _, known = tensors.like("filtered", sure=False).choose(torch.stack((flat, steep)), torch.tensor([3, 4]))
    assert known.tolist() == [False, True]
    _, known = tensors.like("filtered", sure=True).choose(torch.stack((flat, steep)), torch.tensor([3, 4]))
    assert known.all()


@pytest.mark.parametrize("kind", ["greedy", "whole", "top_k", "filtered"])
def test_no_number_is_not_sure(kind: str) -> None:
    tensors = SamplingTensors.on(CPU)
    tensors.set(Settings(temperature=0.7, top_p=0.9), Noise(1))
    logits = torch.randn(2, 100)
    logits[1, 4] = float("nan")
    _, known = tensors.like(kind, sure=True).choose(logits, torch.tensor([3, 4]))  # type: ignore[arg-type]
    assert known.tolist() == [True, False]


@pytest.mark.parametrize(
    "settings", [Settings(repeat_penalty=1.1), Settings(logit_bias=((3, 1.0),)), Settings(top_k=2000)]
)
def test_the_host_has_to(settings: Settings) -> None:
    assert kind_of(settings) is None


def test_rows_of_several_answers() -> None:
    """Each with its own settings and seed, as each chooses for itself."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(2)) * 3
    samplers = [Sampler(Settings(temperature=0.5 + n, top_k=3 + 4 * n, top_p=0.9), Noise(n)) for n in range(3)]
    ids, known = SamplingTensors.of(samplers, "top_k", CPU).choose(logits, torch.tensor([5, 9, 2]))
    want = [sampler.token(row, at) for sampler, row, at in zip(samplers, logits, (5, 9, 2), strict=True)]
    assert ids.tolist() == want and known.all()


@pytest.mark.parametrize("settings", SETTINGS[:3], ids=str)
def test_paths(settings: Settings) -> None:
    """Random trees, equal siblings and missing nodes among them: the same function by tensors and by the host."""
    g = torch.Generator().manual_seed(5)
    counts = set()
    tensors, kind = SamplingTensors.on(CPU), kind_of(settings)
    for seed in range(200):
        sampler = Sampler(settings, Noise(seed))
        tensors.set(settings, sampler.noise)
        nodes = int(torch.randint(0, 12, (), generator=g))
        parents = [int(torch.randint(-1, max(node, 1), (), generator=g)) if node else -1 for node in range(nodes)]
        draft = tree(torch.randint(0, 3, (nodes,), generator=g).tolist(), parents)
        logits = torch.nn.functional.one_hot(torch.randint(0, 3, (13,), generator=g), 3) * 4.0
        want = accept(logits[: nodes + 1], draft, sampler, 5, choices=True)
        inputs = DraftInputs.on(13, CPU, line=False)
        inputs.write([0, *draft.ids], parents)
        assert kind is not None
        sampling = tensors.like(kind, sure=True)
        for made, rows in (
            (accept(logits, inputs, sampling, torch.tensor([5])), 13),
            (accept(logits[: nodes + 1], draft, sampling, 5), nodes + 1),
        ):
            taken = 1 + int(made.count)
            counts.add(taken)
            assert made.count.tolist() == want.count.tolist() and made.sure is not None and made.sure.all()
            assert made.path[:taken].tolist() == want.path.tolist()
            assert made.tokens[:taken].tolist() == want.tokens.tolist()
            assert made.choices is not None and want.choices is not None
            assert made.choices[: nodes + 1].tolist() == want.choices.tolist()
            assert made.path[taken:].tolist() == list(range(taken, rows))
        if draft.chain:
            chain = DraftInputs.on(13, CPU, line=True)
            chain.write([0, *draft.ids], None)
            assert accept(logits, chain, sampling, 5).tokens[: len(want.tokens)].tolist() == want.tokens.tolist()
    assert counts >= {1, 2, 3, 4}
