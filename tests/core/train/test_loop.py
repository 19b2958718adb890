"""The steps of a run: their order, what a kill leaves behind, and what comes after it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pupils
import pytest
import torch
from torch import nn

from outrider.core.base.errors import BrokenFileError, Cancelled, ModelError
from outrider.core.base.protocol import ModelChoice, TrainOrder
from outrider.core.train import checkpoint
from outrider.core.train.answers import Kept, Manner
from outrider.core.train.loop import LOG, Loop, Schedule, batches, in_epoch
from outrider.core.train.plan import Plan
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.run_settings import GENTLE, RATE, schedule_of
from outrider.core.train.states import States


class Pupil(nn.Module):
    """Learns the next token of the toy target from its last state; chance has a say in it."""

    states: tuple[int, ...] = (6,)

    def __init__(self, poison: int | None = None) -> None:
        super().__init__()
        self.out = nn.Linear(32, pupils.VOCAB)
        with torch.no_grad():
            self.out.weight.normal_(generator=torch.Generator().manual_seed(1))
            self.out.bias.zero_()
        self.poison, self.steps = poison, 0

    def groups(self) -> list[Group]:
        weight, bias = self.out.parameters()
        return [Group([weight], fresh=True), Group([bias], 0.1)]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        rows = torch.tensor([row for rows in batch.rows() for row in rows])
        x = batch.states[rows, 0] + 0.1 * torch.randn(len(rows), 32, generator=luck)
        loss = nn.functional.cross_entropy(self.out(x), batch.ids[rows + 1])
        self.steps += 1
        if self.steps == self.poison:
            loss = loss * math.nan
        loss.backward()
        return {"loss": float(loss.detach())}

    def save(self, folder: Path, *, whole: bool) -> None: ...


SCHEDULE = Schedule(steps=12, tokens=100, rate=1e-2, warm=3)


def loop(folder: Path, pupil: Pupil | None = None) -> Loop:
    teacher = pupils.teacher()
    folder.mkdir(exist_ok=True)
    pupil = pupil or Pupil()
    return Loop(pupil, States(teacher, pupils.texts(teacher, 12, length=20), pupil.states, None), SCHEDULE, folder)


def weights(made: Loop) -> list[torch.Tensor]:
    return [part.detach().clone() for part in made.module.parameters()]


def quiet(step: int, figures: Mapping[str, float]) -> None: ...


def test_every_epoch_has_all_texts_in_another_order() -> None:
    lengths = [30, 50, 70, 20, 90]
    some = list(islice(batches(lengths, 100, 4), 8))
    places = [place for part in some for place in part]
    first, second = places[:5], places[5:10]
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert first != second
    assert [place for part in some[: in_epoch(lengths, 100, 4)] for place in part] == first
    assert list(islice(batches(lengths, 100, 4), 8)) == some
    assert all(sum(lengths[place] for place in part[:-1]) < 100 for part in some)


def test_the_rate_rises_and_falls() -> None:
    rates = [SCHEDULE.at(step) for step in range(12)]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] < 0.1 * SCHEDULE.rate


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_a_stopped_run_comes_to_the_same_weights(tmp_path: Path, stop: int) -> None:
    whole = loop(tmp_path / "whole")
    whole.run(quiet, lambda: False)
    cut = loop(tmp_path / "cut")
    with pytest.raises(Cancelled):
        cut.run(quiet, lambda: cut.step >= stop)
    rest = loop(tmp_path / "cut")
    assert rest.step == stop
    rest.run(quiet, lambda: False)
    for one, other in zip(weights(whole), weights(rest), strict=True):
        assert torch.equal(one, other)
    lines = [json.loads(line) for line in (tmp_path / "cut" / LOG).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines == [json.loads(line) for line in (tmp_path / "whole" / LOG).read_text().splitlines()]


def test_what_was_done_behind_the_checkpoint_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill: the log goes further than the checkpoint, and its last line is half."""
    monkeypatch.setattr("outrider.core.train.loop.SAVED", math.inf)
    whole = loop(tmp_path / "whole")
    whole.run(quiet, lambda: False)
    killed = loop(tmp_path / "killed")

    def kill(step: int, figures: Mapping[str, float]) -> None:
        if step == 4:
            killed._save()
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.run(kill, lambda: False)
    with (tmp_path / "killed" / LOG).open("a") as file:
        file.write('{"step": 8, "lo')
    (tmp_path / "killed" / f"{checkpoint.NAME}.part").write_bytes(b"half")
    rest = loop(tmp_path / "killed")
    assert rest.step == 4
    rest.run(quiet, lambda: False)
    assert all(torch.equal(one, other) for one, other in zip(weights(whole), weights(rest), strict=True))
    assert (tmp_path / "killed" / LOG).read_text() == (tmp_path / "whole" / LOG).read_text()


def test_a_loss_that_is_no_number_ends_the_run_and_spoils_nothing(tmp_path: Path) -> None:
    good = loop(tmp_path)
    with pytest.raises(Cancelled):
        good.run(quiet, lambda: good.step >= 4)
    kept = (tmp_path / checkpoint.NAME).read_bytes()
    bad = loop(tmp_path, Pupil(poison=2))
    with pytest.raises(ModelError, match="step 6 is nan"):
        bad.run(quiet, lambda: False)
    assert (tmp_path / checkpoint.NAME).read_bytes() == kept
    assert loop(tmp_path).step == 4


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    made = loop(tmp_path)
    with pytest.raises(Cancelled):
        made.run(quiet, lambda: True)
    other = Pupil()
    other.more = nn.Linear(2, 2)
    with pytest.raises(BrokenFileError, match="not a checkpoint of this run"):
        loop(tmp_path, other)
    (tmp_path / checkpoint.NAME).write_bytes(b"nothing")
    with pytest.raises(BrokenFileError) as caught:
        loop(tmp_path)
    assert "begins its training anew" in caught.value.hint


@pytest.mark.parametrize(
    ("texts", "epochs", "told", "tokens"),
    [(10, 3.0, None, 256), (1400, 1.0, None, 350), (4000, 1.0, None, 512), (10, 3.0, 60, 60)],
)
def test_steps_are_small_where_there_is_little_to_learn_from(
    texts: int, epochs: float, told: int | None, tokens: int
) -> None:
    """So that there are about 400 of them, unless the user says how long they are."""
    order = TrainOrder(method="eagle", folder="", step_tokens=told)
    plan = Plan(order=order, model=ModelChoice(), target="", source="", prompts=0, epochs=epochs, manner=Manner())
    made = schedule_of(plan, [Kept(number, 20, [1] * 120) for number in range(texts)])
    assert made.tokens == tokens
    assert made.steps == max(1, round(epochs * in_epoch([100] * texts, tokens)))


@pytest.mark.parametrize(
    ("begun", "told", "rate"), [(None, None, RATE), ("drafter", None, GENTLE), ("drafter", 2e-3, 2e-3)]
)
def test_a_drafter_that_has_learnt_goes_on_gently(begun: str | None, told: float | None, rate: float) -> None:
    order = TrainOrder(method="eagle", folder="", continue_from=begun, rate=told)
    plan = Plan(order=order, model=ModelChoice(), target="", source="", prompts=0, epochs=1.0, manner=Manner())
    assert schedule_of(plan, [Kept(0, 20, [1] * 120)]).rate == rate
