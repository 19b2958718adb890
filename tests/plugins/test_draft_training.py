"""Distilling a draft model: the loss is the formula's whatever is in memory at a time, a toy is learnt and drafts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pupils
import pytest
import torch
import toys
from safetensors.torch import load_file
from torch import Tensor

from outrider.core.base.errors import Cancelled, ModelError, UsageError
from outrider.core.drafting import registry
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.train import decoder as decoders
from outrider.core.train.answers import Kept
from outrider.core.train.loop import Loop, Schedule
from outrider.core.train.offline_acceptance import measure_acceptance
from outrider.core.train.recipe import Batch, Changing, Continuing, Labeller, Text
from outrider.core.train.states import States, nbytes
from outrider.core.train.teacher import Teacher
from outrider.drafters.draft_model import training
from outrider.drafters.draft_model.training import DraftRecipe, DraftTrainee, Settings

VOCAB = 259


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    return pupils.from_disk(toys.checkpoint(tmp_path_factory.mktemp("teacher") / "big", layers=6))


def fresh(teacher: Teacher, **options: Any) -> DraftTrainee:
    luck = torch.Generator().manual_seed(3)
    return DraftRecipe().trainee(teacher, Settings(**options), torch.ones(VOCAB), luck)


def luck(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(trainee: DraftTrainee, batch: Batch, seed: int = 1) -> tuple[Mapping[str, float], dict[str, Tensor]]:
    trainee.zero_grad()
    figures = trainee.learn(batch, luck(seed))
    return figures, {name: part.grad.clone() for name, part in trainee.named_parameters() if part.grad is not None}


def quiet(step: int, figures: Mapping[str, float]) -> None: ...


def plainly(trainee: DraftTrainee, teacher: Teacher, texts: list[Kept]) -> Tensor:
    """Text by text and row by row; t, alpha and the match are those of the test below."""
    rows, apart = list[Tensor](), list[Tensor]()
    for text in texts:
        ids = torch.tensor(text.ids)
        states = teacher.read(text.ids, (3, 6)).double()
        made = trainee.student(ids, [Text(0, 0, len(ids))], (2,))
        logits, wanted = trainee.student.logits(made.last), teacher.logits(states[:, 1].float()).double()
        for row in range(text.first - 1, len(ids) - 1):
            p, q = (wanted[row] / 2).softmax(0), (logits[row] / 2).softmax(0)
            soft = 4 * (p * (p.log() - q.log())).sum()
            rows.append(0.7 * soft - 0.3 * logits[row].log_softmax(0)[ids[row + 1]])
        apart.append(torch.stack((trainee.projections[0](made.kept[0]), states[:, 0])))
    ours, theirs = torch.cat(apart, 1)
    return torch.stack(rows).mean() + 0.5 * (ours - theirs).square().mean() / theirs.square().mean()


def test_the_loss_and_its_gradients_are_those_of_the_formula(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SLICE", 5)
    texts = pupils.answers(teacher, 3, 14)
    trainee = fresh(teacher, layers=3, width=20, temperature=2.0, alpha=0.7, match=0.5, matched=1).double()
    assert trainee.states == (3, 6)
    assert trainee._pairs == [(2, 3)]
    figures, found = gradients(trainee, pupils.batch(teacher, texts, trainee.states))
    trainee.zero_grad()
    wanted = plainly(trainee, teacher, texts)
    wanted.backward()
    assert figures["loss"] == pytest.approx(wanted.item(), rel=1e-6)
    assert found.keys() == {name for name, _ in trainee.named_parameters()}
    for name, part in trainee.named_parameters():
        torch.testing.assert_close(found[name], part.grad, rtol=1e-4, atol=1e-7)


def test_a_student_that_is_the_teacher_has_nothing_to_learn(teacher: Teacher) -> None:
    trainee = fresh(teacher, layers=6, alpha=1.0, match=1.0, temperature=3.0)
    figures, found = gradients(trainee, pupils.batch(teacher, pupils.answers(teacher, 3, 14), trainee.states))
    assert figures["loss"] == pytest.approx(0, abs=1e-6)
    assert figures["right"] == 1.0
    assert max(float(grad.abs().max()) for grad in found.values()) < 1e-4


def test_labels_on_disk_are_learnt_like_whole_laws(teacher: Teacher, tmp_path: Path) -> None:
    texts = pupils.answers(teacher, 4, 14)
    whole = fresh(teacher, layers=2, alpha=0.8, temperature=2.0)
    wanted, grads = gradients(whole, States(teacher, texts, whole.states, None).batch([2, 0]))
    for top in (VOCAB, 64):
        trainee = fresh(teacher, layers=2, alpha=0.8, temperature=2.0, top=top)
        assert isinstance(trainee, Labeller)
        assert trainee.states == ()
        file = tmp_path / f"states-{top}" / "states.bin"
        file.parent.mkdir()
        kept = States(teacher, texts, trainee.states, file, trainee)
        kept.prepare("these", lambda done, total: None, lambda: False)
        assert not file.exists()
        assert file.with_name("labels.bin").stat().st_size == nbytes(teacher, texts, (), top) == 4 * 8 * 8 * top
        figures, found = gradients(trainee, kept.batch([2, 0]))
        anew, same = gradients(trainee, States(teacher, texts, trainee.states, None, trainee).batch([2, 0]))
        assert anew == figures
        assert all(torch.equal(found[name], grad) for name, grad in same.items())
        assert figures["right"] == wanted["right"]
        apart = {name: float((found[name] - grad).norm() / grad.norm()) for name, grad in grads.items()}
        if top == VOCAB:
            assert figures["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
            assert max(apart.values()) < 1e-4
        else:
            assert figures["soft"] < wanted["soft"]
            assert max(apart.values()) < 0.6
        without = gradients(trainee, States(teacher, texts, (), None).batch([2, 0]))[0]
        assert without["loss"] == pytest.approx(wanted["loss"], rel=1e-5)  # nothing kept: whole laws


def test_labels_of_another_run_are_not_taken(teacher: Teacher, tmp_path: Path) -> None:
    texts = pupils.answers(teacher, 2, 14)
    trainee = fresh(teacher, layers=2, top=4)
    asked: list[int] = []
    real = trainee.label
    trainee.label = lambda text: asked.append(text.number) or real(text)  # type: ignore[method-assign]

    def prepare(of: str) -> None:
        States(teacher, texts, (), tmp_path / "states.bin", trainee).prepare(of, lambda *_: None, lambda: False)

    prepare("these")
    prepare("these")
    assert asked == [0, 1]
    prepare("others")
    assert asked == [0, 1, 0, 1]
    with pytest.raises(Cancelled):
        States(teacher, texts, (), tmp_path / "states.bin", trainee).prepare("more", lambda *_: None, lambda: True)
    assert not (tmp_path / "labels.json").exists()


def test_behind_the_offline_start_the_student_answers_itself(teacher: Teacher) -> None:
    texts = pupils.answers(teacher, 4, 14)
    trainee = fresh(teacher, layers=2, own=1.0, offline=0.5, own_tokens=7, alpha=0.3)
    batch = pupils.batch(teacher, texts, trainee.states)
    assert gradients(trainee, batch)[0]["own"] == 0.0
    late = Batch(batch.ids, batch.states, batch.texts, None, 0.5)
    own = trainee._answered(late, luck())
    assert [text.answer - text.start for text in own.texts] == [6, 6, 6, 6]
    assert all(1 <= text.end - text.answer <= 7 for text in own.texts)
    for text, given in zip(own.texts, texts, strict=True):
        ids = own.ids[text.start : text.end].tolist()
        assert ids[:6] == given.ids[:6]
        torch.testing.assert_close(own.states[text.start : text.end], teacher.read(ids, (6,)))
    figures, found = gradients(trainee, late)
    assert figures["own"] == 1.0
    assert figures["loss"] == pytest.approx(figures["soft"])  # what it said itself is not held up to it
    assert gradients(trainee, late)[0] == figures
    assert gradients(trainee, late, seed=2)[0] != figures
    assert all(bool(grad.isfinite().all()) for grad in found.values())


def test_several_teachers_are_the_mean_of_their_laws(teacher: Teacher, tmp_path: Path) -> None:
    other = pupils.from_disk(toys.checkpoint(tmp_path / "other", seed=4, layers=2))
    options = {"teachers": (str(tmp_path / "other"),), "shares": (3.0, 1.0)}
    trainee = fresh(teacher, layers=2, **options)
    text = pupils.answers(teacher, 1, 14)[0]
    batch = pupils.batch(teacher, [text], trainee.states)
    found = trainee.teachers.logits(trainee.teachers.lasts(batch)).exp()
    laws = [one.logits(one.read(text.ids, (one.info.layers,))[5:13, 0]).softmax(-1) for one in (teacher, other)]
    torch.testing.assert_close(found, 0.75 * laws[0] + 0.25 * laws[1])
    labels = trainee.teachers.labels(batch, 3, 1.0)
    torch.testing.assert_close(labels.logs.exp(), found.topk(3, -1).values)
    assert gradients(trainee, batch)[0]["loss"] != gradients(fresh(teacher, layers=2), batch)[0]["loss"]
    toys.checkpoint(tmp_path / "strange", extra=["<|more|>"])
    with pytest.raises(UsageError, match="another tokenizer"):
        fresh(teacher, layers=2, teachers=str(tmp_path / "strange"))
    with pytest.raises(UsageError, match="2 shares are given for 1 teachers"):
        fresh(teacher, layers=2, shares=(1.0, 2.0))


def test_the_target_is_trained_along(teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SLICE", 5)
    texts = pupils.answers(teacher, 3, 14)
    trainee = fresh(teacher, layers=2, online=0.1, match=1.0, alpha=1.0)
    assert trainee.states == ()
    assert trainee.target is not None
    assert [group.factor for group in trainee.groups()] == [1.0, 0.1]
    _, found = gradients(trainee, pupils.batch(teacher, texts, ()))
    offline = fresh(teacher, layers=2, match=1.0, alpha=1.0)
    _, same = gradients(offline, pupils.batch(teacher, texts, offline.states))
    for name, grad in same.items():  # the student learns as from a target that stays
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4)
    trainee.zero_grad()
    batch = pupils.batch(teacher, texts, ())
    rows = torch.tensor([row for rows in batch.rows() for row in rows])
    logits = trainee.target.logits(trainee.target(batch.ids, batch.texts).last[rows])
    torch.nn.functional.cross_entropy(logits, batch.ids[rows + 1]).backward()
    for name, part in trainee.target.named_parameters():  # and that learns from the text alone
        torch.testing.assert_close(found[f"target.{name}"], part.grad, atol=1e-6, rtol=1e-4)
    assert isinstance(trainee, Changing)
    assert trainee.joint
    changed = trainee.target_now()
    with torch.no_grad():
        said = trainee.target.logits(trainee.target(batch.ids[:14], [Text(0, 0, 14)]).last)
    torch.testing.assert_close(changed.forward(batch.ids[:14].tolist()).logits, said, atol=1e-5, rtol=1e-5)
    assert not offline.joint
    with pytest.raises(ModelError, match="stays as it is"):
        offline.target_now()
    trainee.save(tmp_path / "out", whole=False)
    assert pupils.from_disk(tmp_path / "out" / "target").info.layers == 6
    assert pupils.from_disk(tmp_path / "out").info.layers == 2


def test_rounded_targets_are_learnt_from_and_not_trained(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(path: Path):
        found = open_checkpoint(path)
        found.quantisation = "Q4_1"
        return found

    monkeypatch.setattr(decoders, "open_checkpoint", rounded)
    fresh(teacher, layers=2)
    with pytest.raises(ModelError, match="rounded cannot be trained"):
        fresh(teacher, layers=2, online=0.1)


def test_frozen_tables_stay(teacher: Teacher) -> None:
    trainee = fresh(teacher, layers=2, frozen=True)
    trained = {id(part) for group in trainee.groups() for part in group.parts}
    kept = {name for name, part in trainee.named_parameters() if id(part) not in trained}
    assert kept == {"student.model.embed_tokens.weight", "student.lm_head.weight"}
    found = gradients(trainee, pupils.batch(teacher, pupils.answers(teacher, 2, 14), trainee.states))[1]
    assert not kept & found.keys()


def test_a_student_that_is_there_is_gone_on_with(teacher: Teacher, tmp_path: Path) -> None:
    first, second = fresh(teacher, layers=2), fresh(teacher, layers=2)
    with torch.no_grad():
        for part in first.parameters():
            part.mul_(0.5)
    first.save(tmp_path / "one", whole=False)
    assert isinstance(second, Continuing)
    second.load(tmp_path / "one")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one.bfloat16().float(), other)
    with pytest.raises(UsageError, match="of another size"):
        fresh(teacher, layers=3).load(tmp_path / "one")


@pytest.mark.parametrize("stop", [2, 5])
def test_a_stopped_run_comes_to_the_same_weights(teacher: Teacher, tmp_path: Path, stop: int) -> None:
    """Also where the student has begun to answer itself."""
    texts = pupils.answers(teacher, 8, 14)

    def loop(name: str) -> Loop:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        trainee = fresh(teacher, layers=2, own=0.7, offline=0.4, own_tokens=5)
        schedule = Schedule(steps=8, tokens=20, rate=1e-3, warm=2)
        return Loop(trainee, States(teacher, texts, trainee.states, None), schedule, folder)

    whole, cut = loop("whole"), loop("cut")
    whole.run(quiet, lambda: False)
    with pytest.raises(Cancelled):
        cut.run(quiet, lambda: cut.step >= stop)
    rest = loop("cut")
    assert rest.step == stop
    rest.run(quiet, lambda: False)
    for one, other in zip(whole.module.parameters(), rest.module.parameters(), strict=True):
        assert torch.equal(one, other)
    lines = (tmp_path / "whole" / "log.jsonl").read_text()
    assert lines == (tmp_path / "cut" / "log.jsonl").read_text()
    own = [json.loads(line)["own"] for line in lines.splitlines()]
    assert own[:4] == [0.0] * 4
    assert 1.0 in own[4:]


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"alpha": "1.5"}, "alpha, own and offline"),
        ({"temperature": "0"}, "temperature must be above 0"),
        ({"layers": "-1"}, "0 or more"),
        ({"config": "x.json", "layers": "3"}, "either in its config"),
        ({"online": "0.1", "top": "8"}, "with online the target changes"),
        ({"loss": "l1"}, "l1"),
    ],
)
def test_options_that_make_no_sense_are_refused(told: dict[str, str], what: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=what):
        msgspec.convert(told, Settings, strict=False)


def test_options_are_read_from_words() -> None:
    told = {"teachers": ["a", "b"], "shares": ["2", "1", "1"], "frozen": "true", "loss": "mse"}
    made = msgspec.convert(told, Settings, strict=False)
    assert (made.teachers, made.shares, made.frozen, made.loss) == (("a", "b"), (2.0, 1.0, 1.0), True, "mse")
    assert msgspec.convert({"teachers": "a"}, Settings, strict=False).teachers == "a"


@pytest.mark.train
@pytest.mark.thorough  # Medusa's is the quick one
@pytest.mark.parametrize(
    "options",
    [{}, {"top": 8, "loss": "mse"}, {"own": 0.3, "own_tokens": 12}, {"width": 24, "match": 0.3}],
    ids=["laws", "labels", "own", "narrow"],
)
def test_a_toy_is_learnt_and_read_back_by_the_plugin(teacher: Teacher, tmp_path: Path, options: dict[str, Any]) -> None:
    texts = pupils.answers(teacher, 120, 40)
    trainee = fresh(teacher, layers=3, **options)
    states = States(teacher, texts[:100], trainee.states, None, trainee)
    schedule = Schedule(steps=80, tokens=256, rate=4e-3)

    def accepted() -> float:
        trainee.save(tmp_path / "draft", whole=False)
        rider = registry.load("draft_model", teacher.target, {"weights": str(tmp_path / "draft")}, pytest.fail)
        return measure_acceptance(rider, teacher, texts[100:], 3).per_pass

    before = accepted()
    Loop(trainee, states, schedule, tmp_path).run(quiet, lambda: False)
    after = accepted()
    assert after > max(1.5, before + 0.2), (before, after)
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
