"""What tests of training share: texts with a rule that a toy target knows, batches of them, and a loss from first principles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import torch
import toys
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.train.answers import Kept
from outrider.core.train.recipe import Batch
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher

VOCAB = 48
CONTEXT = 256


def teacher(seed: int = 0, layers: int = 6) -> Teacher:
    """A toy target that says the same things over and over; greedy, its answers are its law."""
    return Teacher(toys.target(seed, VOCAB, layers=layers, sharp=4.0))


def texts(of: Teacher, count: int, length: int = 40, prompt: int = 6) -> list[Kept]:
    """Greedy answers of a toy target to random prompts."""
    return list(_texts(of.info.name, of.info.layers, count, length, prompt))


@cache
def _texts(name: str, layers: int, count: int, length: int, prompt: int) -> tuple[Kept, ...]:
    return tuple(answers(teacher(int(name.rpartition("-")[2]), layers), count, length, prompt))


def answers(of: Teacher, count: int, length: int, prompt: int = 6) -> list[Kept]:
    """Greedy answers of any target to random prompts."""
    return list(_answers(of, count, length, prompt))


@lru_cache(4)
def _answers(of: Teacher, count: int, length: int, prompt: int) -> tuple[Kept, ...]:
    target = of.target
    luck = random.Random(7)
    made: list[Kept] = []
    for number in range(count):
        ids = [luck.randrange(VOCAB) for _ in range(prompt)]
        target.rewind(0)
        fresh = ids
        while len(ids) < length:
            logits = target.forward(torch.tensor(fresh), last=True).logits
            target.commit(len(ids))
            fresh = [int(logits[0].argmax())]
            ids = ids + fresh
        made.append(Kept(number, prompt, ids))
    return tuple(made)


def from_disk(folder: Path) -> Teacher:
    """The toy target that lies in a folder."""
    checkpoint = open_checkpoint(folder)
    try:
        decoder = load_decoder(checkpoint, WeightFormat(torch.float32, torch.device("cpu")), CONTEXT + MAX_DRAFT_ROWS)
        return Teacher(TargetModel(decoder, info(checkpoint), CONTEXT))
    finally:
        checkpoint.close()


def batch(of: Teacher, texts: Sequence[Kept], states: Sequence[int]) -> Batch:
    """All of them."""
    return States(of, texts, states, None).batch(range(len(texts)))


def counts(texts: Sequence[Kept], vocab: int = VOCAB) -> Tensor:
    """[V] how often tokens are there."""
    return torch.bincount(torch.tensor([token for text in texts for token in text.ids]), minlength=vocab)


def on_disk(folder: Path, layers: int = 6) -> Teacher:
    """A toy target as a model in a folder, as sure of what it says."""
    toys.checkpoint(folder, layers=layers)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * 4.0
    save_file(tensors, folder / "model.safetensors")
    return from_disk(folder)
