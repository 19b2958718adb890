"""Choosing and accepting with tensors alone, against what the host does."""

from __future__ import annotations

import pytest
import torch

from outrider.core.model.lane import Sheet
from outrider.core.sampling import accept
from outrider.core.sampling.device import Knobs, choose, keep, kind_of
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
    noise, knobs, kind = Noise(11), Knobs.on(CPU), kind_of(settings)
    knobs.turn(settings, noise)
    assert kind is not None
    ids, known = choose(logits, torch.arange(70, 79), knobs, kind, sure=sure)
    assert ids.tolist() == Sampler(settings, noise).rows(logits, 70, torch.zeros(8, dtype=torch.int64)).tolist()
    assert known.all()


def test_what_a_pool_does_not_hold_is_not_sure() -> None:
    settings, knobs = Settings(temperature=1.0, top_p=0.99), Knobs.on(CPU)
    knobs.turn(settings, Noise(1))
    flat, steep = torch.zeros(5000), torch.zeros(5000).index_fill(0, torch.tensor([7]), 40.0)
    _, known = choose(torch.stack((flat, steep)), torch.tensor([3, 4]), knobs, "filtered", sure=False)
    assert known.tolist() == [False, True]
    _, known = choose(torch.stack((flat, steep)), torch.tensor([3, 4]), knobs, "filtered", sure=True)
    assert known.all()


@pytest.mark.parametrize("kind", ["greedy", "whole", "filtered"])
def test_no_number_is_not_sure(kind: str) -> None:
    knobs = Knobs.on(CPU)
    knobs.turn(Settings(temperature=0.7, top_p=0.9), Noise(1))
    logits = torch.randn(2, 100)
    logits[1, 4] = float("nan")
    _, known = choose(logits, torch.tensor([3, 4]), knobs, kind, sure=True)  # type: ignore[arg-type]
    assert known.tolist() == [True, False]


@pytest.mark.parametrize(
    "settings", [Settings(repeat_penalty=1.1), Settings(logit_bias=((3, 1.0),)), Settings(top_k=2000)]
)
def test_the_host_has_to(settings: Settings) -> None:
    assert kind_of(settings) is None


def test_paths() -> None:
    """Random trees with random agreement, equal siblings among them, and missing nodes: the path that the host finds."""
    g = torch.Generator().manual_seed(5)
    lengths = set()
    for _ in range(300):
        nodes = int(torch.randint(0, 12, (), generator=g))
        parents = [int(torch.randint(-1, max(node, 1), (), generator=g)) if node else -1 for node in range(nodes)]
        tokens = torch.randint(0, 3, (nodes,), generator=g).tolist()
        choice = torch.randint(0, 3, (13,), generator=g)
        logits = torch.nn.functional.one_hot(choice[: nodes + 1], 3).float()
        guess = accept.Guess(tokens, parents)
        verdict = accept.match(logits, guess, Sampler(Settings(temperature=0), Noise(1)), 5)
        sheet = Sheet.on(13, CPU, line=False)
        sheet.write([0, *tokens], parents)
        kept = keep(sheet.draft, choice, sheet.form)
        taken = int(kept.taken)
        lengths.add(taken)
        assert [row - 1 for row in kept.path[1:taken].tolist()] == verdict.path
        assert kept.tokens[:taken].tolist() == [*guess.names(verdict.path), verdict.token]
        assert kept.path[taken:].tolist() == list(range(taken, 13))
        if guess.line:
            chain = Sheet.on(13, CPU, line=True)
            chain.write([0, *tokens], None)
            assert keep(chain.draft, choice, None).tokens[:taken].tolist() == kept.tokens[:taken].tolist()
    assert lengths >= {1, 2, 3, 4}
