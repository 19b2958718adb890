"""Training DFlash: blocks see what they may, the loss is the formula's, the trained network is the one that drafts."""

from __future__ import annotations

import math
from pathlib import Path

import pupils
import pytest
import torch
from torch import Tensor, nn

from outrider.core.drafting import registry
from outrider.core.train.answers import Kept
from outrider.core.train.loop import Loop, Schedule
from outrider.core.train.offline_acceptance import measure_acceptance
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher
from outrider.drafters.dflash.training import DFlashRecipe, DFlashTrainee, Layer, Settings


def fresh(teacher: Teacher, texts: list[Kept], **options: object) -> DFlashTrainee:
    settings = Settings(**{"words": 40, "block": 4, "states": 3, **options})
    return DFlashRecipe().trainee(teacher, settings, pupils.counts(texts), torch.Generator().manual_seed(3))


def turned(x: Tensor, position: int) -> Tensor:
    angle = position / 10000.0 ** (torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    low, high = x.chunk(2, -1)
    return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1)


def plainly(trainee: DFlashTrainee, states: Tensor, ids: list[int], anchor: int) -> Tensor:
    """States of one block, head by head: slots see all slots and the context before the anchor."""
    block = trainee.settings.block
    context = trainee.hidden_norm(trainee.fc(states[:anchor, :-1].flatten(1).double()))
    x = torch.stack([trainee.embedding[ids[anchor] if not slot else trainee.mask] for slot in range(block)])
    for layer in trainee.layers:
        assert isinstance(layer, Layer)
        attention = layer.self_attn
        assert attention.q_norm is not None and attention.k_norm is not None
        u = layer.input_layernorm(x)
        rows = torch.cat((context, u))
        keys = attention.k_norm(attention.k_proj(rows).view(-1, 2, 8))
        values = attention.v_proj(rows).view(-1, 2, 8)
        queries = attention.q_norm(attention.q_proj(u).view(-1, 4, 8))
        out = []
        for slot in range(block):
            mixed = []
            for head in range(4):
                q = turned(queries[slot, head], anchor + slot)
                k = torch.stack([turned(key[head // 2], position) for position, key in enumerate(keys)])
                mixed.append((k @ q * 8**-0.5).softmax(0) @ values[:, head // 2])
            out.append(torch.cat(mixed))
        x = x + attention.o_proj(torch.stack(out))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return trainee.norm(x)


def dspark(trainee: DFlashTrainee, x: Tensor, before: int, law: Tensor) -> Tensor:
    """Loss of one slot."""
    markov, confidence = trainee.markov_head, trainee.confidence_head
    assert markov is not None and confidence is not None
    row = markov.markov_w1.weight[before]
    logits = trainee.head.rows @ x + markov.markov_w2.weight @ row
    apart = (logits.softmax(0) - law).abs().sum()
    sure = torch.sigmoid(confidence.proj.weight[0] @ torch.cat((x, row)) + confidence.proj.bias[0])
    stays = 1 - apart.detach() / 2
    doubt = -(stays * sure.log() + (1 - stays) * (1 - sure).log())
    return -0.1 * (law * logits.log_softmax(0)).sum() + 0.9 * apart + doubt


@pytest.mark.parametrize(("kind", "first"), [("dflash", 1), ("dflash", 0), ("dspark", 0), ("dspark", 1)])
def test_the_loss_and_its_gradients_are_those_of_the_formula(kind: str, first: int) -> None:
    """`first`: slot that drafts first."""
    teacher = pupils.teacher()
    texts = pupils.texts(teacher, 2, length=14)
    trainee = fresh(teacher, texts, kind=kind, rank=6, from_anchor=not first).double()
    if trainee.markov_head is not None and trainee.confidence_head is not None:
        luck = torch.Generator().manual_seed(2)
        for part in (trainee.markov_head.markov_w2, trainee.confidence_head.proj):
            nn.init.normal_(part.weight, 0, 0.3, generator=luck)
    batch = pupils.batch(teacher, texts, trainee.states)
    text, own = batch.texts[1], texts[1]
    anchors = torch.tensor([text.answer - 1, text.answer + 3, text.end - 2])
    loss, _ = trainee.loss(batch, text, anchors)
    loss.backward()
    found = {name: part.grad.clone() for name, part in trainee.named_parameters() if part.grad is not None}
    trainee.zero_grad()
    states = teacher.read(own.ids, trainee.states)
    whole = teacher.norm(states[:, -1]).double() @ trainee.head.output.t()
    total, weights = torch.zeros((), dtype=torch.float64), 0.0
    for anchor in (anchors - text.start).tolist():
        x = plainly(trainee, states, own.ids, anchor)
        for slot in range(first, 4):
            place = anchor + slot - first
            if place > len(own.ids) - 2 or not bool(trainee.head.known[whole[place].argmax()]):
                continue
            weight = math.exp(-(slot - first) / 4.0)
            law = whole[place][trainee.head.words].softmax(0)
            if kind == "dspark":
                total = total + weight * dspark(trainee, x[slot], own.ids[place], law)
            else:
                total = total - weight * (law * (trainee.head.rows @ x[slot]).log_softmax(0)).sum()
            weights += weight
    wanted = total / weights
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for name, part in trainee.named_parameters():
        torch.testing.assert_close(found[name], part.grad, rtol=1e-4, atol=1e-7)


def test_anchors_are_of_the_answer_and_have_something_behind_them() -> None:
    teacher = pupils.teacher()
    texts = [Kept(0, 3, list(range(12))), Kept(1, 1, [1, 2]), Kept(2, 1, [4, 5, 6, 7])]
    trainee = fresh(teacher, texts, every=1)
    batch = pupils.batch(teacher, texts, trainee.states)
    found = [trainee._anchors(text, torch.Generator()).tolist() for text in batch.texts]
    assert found == [list(range(2, 11)), [], [15, 16]]


def test_a_block_is_longer_than_nothing() -> None:
    with pytest.raises(ValueError, match="block"):
        Settings(block=1)


@pytest.mark.train
@pytest.mark.thorough  # Medusa's is the quick one
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_toy_is_learnt_and_read_back_by_the_plugin(tmp_path: Path, kind: str) -> None:
    teacher = pupils.teacher()
    texts = pupils.texts(teacher, 120)
    trainee = fresh(teacher, texts, words=40, every=2, layers=1, kind=kind, rank=16)
    assert isinstance(trainee, nn.Module)
    states = States(teacher, texts[:100], trainee.states, None)
    schedule = Schedule(steps=120, tokens=256, rate=5e-3)
    Loop(trainee, states, schedule, tmp_path).run(lambda step, figures: None, lambda: False)
    for whole in (False, True):
        folder = tmp_path / f"draft-{whole}"
        trainee.save(folder, whole=whole)
        rider = registry.load("dflash", teacher.target, {"weights": str(folder)}, pytest.fail)
        made = measure_acceptance(rider, teacher, texts[100:], 3)
        assert made.per_pass > 1.3, made
