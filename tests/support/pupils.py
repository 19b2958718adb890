"""What tests of training share: texts with a rule that a toy target knows, batches of them, and a loss from first principles."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import toys
from torch import Tensor

from outrider.core.target.model import TargetModel
from outrider.core.train.answers import Kept
from outrider.core.train.recipe import Batch
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher

VOCAB = 48


def teacher(seed: int = 0, layers: int = 6) -> Teacher:
    """A toy target that says the same things over and over; greedy, its answers are its law."""
    return Teacher(toys.target(seed, VOCAB, layers=layers, sharp=4.0))


def texts(of: Teacher, count: int, length: int = 40, prompt: int = 6) -> list[Kept]:
    """Greedy answers of the toy target to random prompts."""
    luck, target = random.Random(7), of.target
    made: list[Kept] = []
    for number in range(count):
        ids = [luck.randrange(VOCAB) for _ in range(prompt)]
        while len(ids) < length:
            ids.append(_next(target, ids))
        made.append(Kept(number, prompt, ids))
    return made


def _next(target: TargetModel, ids: Sequence[int]) -> int:
    target.rewind(0)
    return int(target.forward(torch.tensor(list(ids)), last=True).logits[0].argmax())


def batch(of: Teacher, texts: Sequence[Kept], states: Sequence[int]) -> Batch:
    """All of them."""
    return States(of, texts, states, None).batch(range(len(texts)))


def counts(texts: Sequence[Kept]) -> Tensor:
    """[V] how often tokens are there."""
    return torch.bincount(torch.tensor([token for text in texts for token in text.ids]), minlength=VOCAB)
