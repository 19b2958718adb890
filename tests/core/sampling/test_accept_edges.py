"""Acceptance where single changes of its code went unseen: rows off the path, both bounds of *typical*, trees on the device."""

from __future__ import annotations

import math

import pytest
import torch
from toys import tree

from outrider.core.base.errors import ModelError
from outrider.core.model.graph_runner import DraftInputs
from outrider.core.sampling import accept
from outrider.core.sampling.accept import Accepted
from outrider.core.sampling.device import SamplingTensors
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings

PLAIN = Settings(temperature=1.0, top_p=1.0)


def certain(*tokens: int, vocab: int = 5) -> torch.Tensor:
    """Logits of rows that leave only one token."""
    return torch.log(torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float().clamp_min(1e-30))


def test_rows_start_with_the_root() -> None:
    made = Accepted.of([1, 3], [7, 8, 9], [7, 0, 8, 0, 9])
    assert (made.count.tolist(), made.path.tolist(), made.tokens.tolist()) == ([2], [0, 2, 4], [7, 8, 9])
    assert made.choices is not None and made.choices.tolist() == [7, 0, 8, 0, 9]


def test_rows_off_the_path_are_not_looked_at_unless_their_choices_are_asked_for() -> None:
    logits, draft = certain(1, 2, 3), tree([1, 4])
    logits[2] = math.nan
    sampler = Sampler(PLAIN, Noise(0))
    taken = accept.accept(logits, draft, sampler, 0)
    assert (taken.tokens.tolist(), taken.choices) == ([1, 2], None)
    with pytest.raises(ModelError):
        accept.accept(logits, draft, sampler, 0, choices=True)


def test_known_choices_are_taken_as_they_are() -> None:
    taken = accept.accept(certain(1, 2), tree([3]), Sampler(PLAIN, Noise(0)), 0, choices=True, chosen=[3, 4])
    assert taken.choices is not None
    assert (taken.tokens.tolist(), taken.choices.tolist()) == ([3, 4], [3, 4])


def test_each_rule_is_reached_by_its_name() -> None:
    """The target draws 0 here, finds 1 likely enough, and a drafter that is certain of 1 is wrong half of the time."""
    logits, draft = torch.log(torch.tensor([[0.5, 0.5], [0.0, 1.0]])), tree([1])
    seeds = [seed for seed in range(40) if Sampler(PLAIN, Noise(seed)).token(logits[0], 3) == 0]
    counts = {
        rule: [int(accept.accept(logits, draft, Sampler(PLAIN, Noise(seed), (), rule), 3).count) for seed in seeds]
        for rule in ("match", "rejection", "typical")
    }
    assert set(counts["match"]) == {0} and set(counts["rejection"]) == {0, 1} and set(counts["typical"]) == {1}


def test_typical_asks_for_less_where_the_target_is_undecided() -> None:
    """0.05 is below 0.09, and above 0.3 exp(-entropy) where twenty tokens are as likely."""
    flat = torch.zeros(2, 20)
    assert accept.typical(flat, tree([7]), Sampler(PLAIN, Noise(0)), 0).count.tolist() == [1]
    sharp = torch.log(torch.tensor([[0.95, 0.05], [0.5, 0.5]]))
    assert accept.typical(sharp, tree([1]), Sampler(PLAIN, Noise(0)), 0).count.tolist() == [0]


def test_typical_goes_on_from_the_row_of_its_last_node() -> None:
    logits, draft = certain(1, 2, 3, 4), tree([1, 2, 0], [-1, 0, -1])
    assert accept.typical(logits, draft, Sampler(PLAIN, Noise(0)), 0).tokens.tolist() == [1, 2, 3]
    assert accept.typical(logits, tree([0, 2, 0]), Sampler(PLAIN, Noise(0)), 0).tokens.tolist() == [1]


def test_a_residual_of_nothing_is_the_law_itself() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert accept.residual(p, p.clone(), 0).tolist() == p.tolist()
    assert accept.residual(p, None, 0).tolist() == [0.0, 0.75]
    assert accept.residual(p, torch.tensor([0.5, 0.5], dtype=torch.float64), 0).tolist() == [0.0, 0.25]
    assert p.tolist() == [0.25, 0.75], "the law itself is left alone"


@pytest.mark.parametrize("line", [True, False])
def test_the_device_draws_each_row_at_its_own_position(line: bool) -> None:
    parents = [-1, 0, 1] if line else [-1, -1, 1]
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
    draft, tensors = tree([1, 2, 3], parents), SamplingTensors.on(torch.device("cpu"))
    for seed in range(5):
        sampler = Sampler(PLAIN, Noise(seed))
        tensors.set(PLAIN, sampler.noise)
        inputs = DraftInputs.on(4, torch.device("cpu"), line=line)
        inputs.write([0, *draft.ids], None if line else parents)
        made = accept.accept(logits, inputs, tensors.like("whole", sure=True), torch.tensor([9]))
        want = accept.accept(logits, draft, sampler, 9, choices=True)
        assert made.choices is not None and want.choices is not None
        assert made.choices.tolist() == want.choices.tolist()


def test_of_equal_siblings_the_device_takes_the_first() -> None:
    draft, sampling = tree([4, 1, 1, 2], [-1, -1, -1, 1]), SamplingTensors.on(torch.device("cpu"))
    made = accept.accept(certain(1, 0, 2, 3, 0), draft, sampling, torch.tensor(0))
    assert made.count.tolist() == [2] and made.path[:3].tolist() == [0, 2, 4]
    assert made.tokens[:3].tolist() == [1, 2, 0] and made.sure is not None and made.sure.tolist() == [True]
