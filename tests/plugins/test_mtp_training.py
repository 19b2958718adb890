"""Training prediction layers: losses are the papers' formulas, whatever is in memory at a time; what is written is read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import layers
import pupils
import pytest
import torch
from torch import Tensor, nn

from outrider.core.drafting import registry
from outrider.core.train.answers import Kept
from outrider.core.train.draft_vocabulary import Sayings
from outrider.core.train.loop import Loop, Schedule
from outrider.core.train.offline_acceptance import measure_acceptance
from outrider.core.train.recipe import Changing
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Joint
from outrider.drafters.mtp import Mtp
from outrider.drafters.mtp.train_parallel import ParallelTrainee, halves, neighbours
from outrider.drafters.mtp.train_sequential import SequentialTrainee
from outrider.drafters.mtp.training import MtpRecipe, Settings

DECAY = 0.5


def fresh(teacher: Teacher, texts: Sequence[Kept], **options: object) -> SequentialTrainee | ParallelTrainee:
    settings = Settings(**{"words": 12, "depths": 3, "decay": DECAY, "first": 0.0, **options})
    counts = pupils.counts(texts, teacher.info.vocab)
    return MtpRecipe().trainee(teacher, settings, counts, torch.Generator().manual_seed(3))


def block(parts: nn.Module) -> dict[str, Tensor]:
    return dict(parts.named_parameters())


def summed(trainee: SequentialTrainee | ParallelTrainee, found: list[list[Tensor]]) -> Tensor:
    weights = [DECAY**depth for depth in range(len(found))]
    means = [torch.stack(each).mean() for each in found]
    return torch.stack([weight * mean for weight, mean in zip(weights, means, strict=True)]).sum() / sum(weights)


def asked(
    trainee: SequentialTrainee | ParallelTrainee, teacher: Teacher, text: Kept, read: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Losses of each depth, from what its head reads of each row [rows, d]."""
    words = trainee.ground.words
    whole = teacher.norm(teacher.read(text.ids, trainee.states)[:, -1]).double() @ words.output.t()
    found: list[list[Tensor]] = []
    for depth, states in enumerate(read):
        found.append([])
        for row, state in enumerate(states):
            place = row + 1 + depth
            if text.first - 1 <= place < len(text.ids) - 1 and bool(words.known[whole[place].argmax()]):
                law = whole[place][words.words].softmax(0)
                found[-1].append(-(law * (words.rows @ state).log_softmax(0)).sum())
    return found


def same(trainee: SequentialTrainee | ParallelTrainee, teacher: Teacher, texts: Sequence[Kept], wanted: Tensor) -> None:
    """Loss and gradients of `learn` against those of `wanted`."""
    wanted.backward()
    plain = {name: part.grad.clone() for name, part in trainee.named_parameters() if part.grad is not None}
    trainee.zero_grad()
    figures = trainee.learn(pupils.batch(teacher, texts, trainee.states), torch.Generator())
    assert figures["loss"] == pytest.approx(wanted.item(), rel=1e-6)
    assert plain.keys() == dict(trainee.named_parameters()).keys()
    for name, part in trainee.named_parameters():
        torch.testing.assert_close(part.grad, plain[name], rtol=1e-4, atol=1e-7)


def several(teacher: Teacher) -> list[Kept]:
    texts = pupils.texts(teacher, 3, length=14)
    texts[1] = Kept(1, 1, texts[1].ids)  # begins with its answer
    return [*texts, Kept(3, 1, [5, 6])]


def test_the_loss_of_sequential_layers_and_its_gradients_are_those_of_the_formula() -> None:
    teacher = pupils.teacher()
    texts = several(teacher)
    trainee = fresh(teacher, texts).double()
    assert isinstance(trainee, SequentialTrainee)
    found: list[list[Tensor]] = [[], [], []]
    for text in texts:
        state = teacher.norm(teacher.read(text.ids, trainee.states)[:, -1]).double()
        read = []
        for depth, layer in enumerate(trainee.depths[: len(text.ids) - 1]):
            rows = len(text.ids) - 1 - depth
            embedded = trainee.ground.embed(torch.tensor(text.ids[1 + depth :]))
            pair = layers.norm(embedded, layer.enorm.weight), layers.norm(state[:rows], layer.hnorm.weight)
            y = layers.run(torch.cat(pair, -1) @ layer.eh_proj.weight.t(), block(layer.block))
            state = layers.norm(y, layer.norm.weight)
            read.append(state)
        for depth, losses in enumerate(asked(trainee, teacher, text, read)):
            found[depth] += losses
    same(trainee, teacher, texts, summed(trainee, found))


def test_gradients_of_heads_that_are_gone_through_one_by_one_are_those_of_all_at_once() -> None:
    teacher = pupils.teacher()
    weight = teacher.target.decoder.weights.norm.weight
    assert weight is not None
    weight.copy_(torch.rand(len(weight), generator=torch.Generator().manual_seed(1)) + 0.5)
    texts = several(teacher)
    trainee = fresh(teacher, texts, kind="parallel").double()
    held = trainee.ground.words.law(teacher.read(texts[0].ids, (6,))[:, 0].double()).held
    assert 0 < int(held.sum()) < len(held)
    assert isinstance(trainee, ParallelTrainee)
    found: list[list[Tensor]] = [[], [], []]
    for text in texts:
        trunk = teacher.read(text.ids, trainee.states)[:, 0].double()
        read = [layers.norm(layers.run(trunk, block(head)), weight) for head in trainee.heads]
        for depth, losses in enumerate(asked(trainee, teacher, text, read)):
            found[depth] += losses
    same(trainee, teacher, texts, summed(trainee, found))


def test_layers_behind_the_first_wait_and_then_begin_as_copies_of_it() -> None:
    teacher = pupils.teacher()
    texts = pupils.texts(teacher, 2, length=14)
    trainee = fresh(teacher, texts, first=0.5)
    assert isinstance(trainee, SequentialTrainee)
    batch = pupils.batch(teacher, texts, trainee.states)
    trainee.learn(replace(batch, done=0.49), torch.Generator())
    assert {name.split(".")[1] for name, part in trainee.named_parameters() if part.grad is not None} == {"0"}
    first, second, _ = trainee.depths
    written = trainee.tensors()
    torch.testing.assert_close(written["model.layers.7.eh_proj.weight"], first.eh_proj.weight)
    trainee.learn(replace(batch, done=0.5), torch.Generator())
    torch.testing.assert_close(second.state_dict(), first.state_dict())
    assert second.eh_proj.weight.grad is not None
    with torch.no_grad():
        second.eh_proj.weight.add_(1.0)
    trainee.learn(replace(batch, done=0.6), torch.Generator())
    assert not torch.equal(second.eh_proj.weight, first.eh_proj.weight)


def test_what_turns_together_stands_together_in_a_file_of_heads() -> None:
    g = torch.Generator().manual_seed(0)
    weights = layers.block(g)
    x = torch.randn(5, layers.WIDTH, generator=g, dtype=torch.float64)
    stored = {name: neighbours(name, part, layers.SIZE) for name, part in weights.items()}
    torch.testing.assert_close(layers.run(x, stored, neighbours=True), layers.run(x, weights))
    back = {name: halves(name, part, layers.SIZE) for name, part in stored.items()}
    assert all(torch.equal(back[name], part) for name, part in weights.items())


def learnt(
    trainee: SequentialTrainee | ParallelTrainee, teacher: Teacher, texts: Sequence[Kept], folder: Path, steps: int
) -> None:
    states = States(teacher, texts, trainee.states, None)
    schedule = Schedule(steps=steps, tokens=256, rate=5e-3)
    Loop(trainee, states, schedule, folder).run(lambda step, figures: None, lambda: False)


@pytest.mark.train
@pytest.mark.thorough  # Medusa's is the quick one
@pytest.mark.parametrize(("kind", "least"), [("sequential", 1.35), ("parallel", 1.2)])
def test_a_toy_is_learnt_and_read_back_by_the_plugin(tmp_path: Path, kind: str, least: float) -> None:
    teacher = pupils.on_disk(tmp_path / "target")
    texts = pupils.answers(teacher, 110, length=40)
    trainee = fresh(teacher, texts, kind=kind, words=0, first=0.3, decay=1.0)
    learnt(trainee, teacher, texts[:100], tmp_path, 150)
    for whole in (False, True):
        folder = tmp_path / f"layers-{whole}"
        trainee.save(folder, whole=whole)
        rider = registry.load("mtp", teacher.target, {"weights": str(folder)}, pytest.fail)
        made = measure_acceptance(rider, teacher, texts[100:], 3)
        assert made.per_pass > least, made  # 1.49 and 1.29 when this was written, 1.0 before training


@pytest.mark.parametrize("kind", ["sequential", "parallel"])
def test_gradients_of_joint_training_are_those_of_all_losses_at_once(tmp_path: Path, kind: str) -> None:
    teacher = pupils.on_disk(tmp_path / "target", layers=3)
    texts = pupils.answers(teacher, 2, 12)
    trainee = fresh(teacher, texts, kind=kind, joint=True, share=0.4, depths=2).double()
    ground = trainee.ground
    assert isinstance(ground, Joint)
    batch = pupils.batch(teacher, texts, trainee.states)
    figures = trainee.learn(batch, torch.Generator())
    found = {name: part.grad.clone() for name, part in trainee.named_parameters() if part.grad is not None}
    trainee.zero_grad()
    read = ground.read(batch)
    own = ground.loss(batch, read.last)
    sayings = Sayings(batch, ground.words, batch.states[:, -1])
    if isinstance(trainee, SequentialTrainee):
        heads = list(trainee._through(batch, ground.normed(read.last), sayings, 2))
    else:
        heads = [(said, x) for _, said, x in trainee._heads(batch, read.kept[0], sayings)]
    means = [said.loss(ground.logits(x)) for said, x in heads]
    wanted = own + 0.4 * (means[0] + DECAY * means[1]) / (1 + DECAY)
    wanted.backward()
    assert figures["loss"] == pytest.approx(wanted.item(), rel=1e-9)
    assert len(found) == len(list(trainee.named_parameters()))
    for name, part in trainee.named_parameters():
        torch.testing.assert_close(found[name], part.grad, rtol=1e-6, atol=1e-9)
    assert [group.factor for group in trainee.groups()] == [1.0, 0.1]


@pytest.mark.train
@pytest.mark.thorough  # Medusa's is the quick one
@pytest.mark.parametrize(("kind", "least"), [("sequential", 1.2), ("parallel", 1.1)])
def test_a_target_that_learns_as_well_holds_its_layers(tmp_path: Path, kind: str, least: float) -> None:
    teacher = pupils.on_disk(tmp_path / "target")
    texts = pupils.answers(teacher, 70, 40)
    trainee = fresh(teacher, texts, kind=kind, words=0, decay=1.0, joint=True, share=1.0, rate=0.5)
    learnt(trainee, teacher, texts[:60], tmp_path, 80)
    assert isinstance(trainee, Changing)
    now = trainee.target_now()
    trainee.save(tmp_path / "model", whole=False)
    again = pupils.from_disk(tmp_path / "model")
    assert now is not None and Mtp().matches(again.info).ready
    theirs, ours = (model.read(texts[0].ids, (6,)) for model in (again, Teacher(now)))
    torch.testing.assert_close(theirs, ours, rtol=0.05, atol=0.3)
    rider = registry.load("mtp", again.target, {}, pytest.fail)
    made = measure_acceptance(rider, again, texts[60:], 3)
    assert made.per_pass > least, made  # 1.39 and 1.28 when this was written
