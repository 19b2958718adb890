"""Training Medusa heads (arXiv 2401.10774, Medusa-1): the target stays as it is, each head learns a token further ahead.

Head k, from 0, reads the normed last state of row i and is asked for what the target said at i + 1 + k. It begins as the
target's own output layer with a residual block of zeros. Heads are gone through one after another, forwards and backwards, so
that the logits of one alone are in memory.

Letters: `R` rows, `d` width, `n` words that the loss looks at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.train.parts import soft_loss
from outrider.core.train.recipe import Batch
from outrider.core.train.teacher import Teacher
from outrider.core.train.words import Words, frequent

FILE = "medusa_lm_head.safetensors"
SLOW = 0.1  # of the rate, for output rows: they are good already


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    heads: int = 4
    words: int = 16384  # that the loss looks at; 0: all
    decay: float = 0.8  # of the weight of each further head
    head: bool = False  # output rows are trained too, of every head its own

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16 or not 0 < self.decay <= 1 or self.words < 0:
            raise ValueError("heads must be from 1 to 16, decay between 0 and 1, words 0 or more")


class MedusaTrainee(nn.Module):
    """The residual blocks of all heads."""

    def __init__(self, teacher: Teacher, settings: Settings, words: Tensor) -> None:
        super().__init__()
        self.settings, self._teacher = settings, teacher
        self.states = (teacher.info.layers,)
        d = teacher.info.width
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(settings.heads))
        for block in self.blocks:
            for part in block.parameters():
                nn.init.zeros_(part)
        self.head = Words(teacher, words)
        own = [nn.Parameter(self.head.output.float().clone()) for _ in range(settings.heads if settings.head else 0)]
        self.rows = nn.ParameterList(own)  # [V, d] of every head, where they are trained

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """All alike; output rows slowly."""
        return [(list(self.blocks.parameters()), 1.0), *([(list(self.rows), SLOW)] if len(self.rows) else [])]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`, a head at a time."""
        figures: dict[str, float] = {"loss": 0.0}
        shares = [self.settings.decay**head for head in range(self.settings.heads)]
        places = torch.tensor([row for rows in batch.rows() for row in rows], dtype=torch.int64)  # whose law is wanted
        law, held = self.head.law(batch.states[places, 0])
        number = torch.full((batch.ids.shape[0],), -1).index_put((places,), torch.arange(len(places)))
        for head, share in enumerate(shares):
            rows, asked = _ahead(batch, number, head)
            if not len(rows):
                continue
            z = self._teacher.norm(batch.states[rows, 0]).to(next(self.parameters()).dtype)  # [R, d]
            logits = self._logits(head, z)  # [R, n]
            laws, keep = law[asked], held[asked]
            loss = (soft_loss(logits, laws) * keep).sum() / keep.sum().clamp(min=1) * share / sum(shares)
            loss.backward()
            figures["loss"] += float(loss.detach())
            figures[f"right_{head + 1}"] = float(((logits.argmax(-1) == laws.argmax(-1)) & keep).float().mean())
        return figures

    def save(self, folder: Path, *, whole: bool) -> None:
        """As Medusa's authors name things, in bf16; without `whole` output matrices that are the target's are left out."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for head, block in enumerate(self.blocks):
            assert isinstance(block, nn.Linear)
            tensors[f"{head}.0.linear.weight"] = _kept(block.weight)
            tensors[f"{head}.0.linear.bias"] = _kept(block.bias)
            if len(self.rows):
                tensors[f"{head}.1.weight"] = _kept(self.rows[head])
            elif whole:
                tensors[f"{head}.1.weight"] = _kept(self.head.output)
        save_file(tensors, folder / FILE, metadata={"format": "pt"})
        config = {
            "medusa_num_heads": self.settings.heads,
            "medusa_num_layers": 1,
            "hidden_size": self._teacher.info.width,
            "vocab_size": self._teacher.info.vocab,
            "base_model_name_or_path": self._teacher.info.name,
        }
        config |= {} if whole or len(self.rows) else {"tied_to_target": True}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _logits(self, head: int, z: Tensor) -> Tensor:
        x = z + F.silu(self.blocks[head](z))
        if len(self.rows):
            return self._teacher.capped(x @ self.rows[head][self.head.words].to(x.dtype).t())
        return self.head(x)


class MedusaRecipe:
    """Makes Medusa heads."""

    settings = Settings
    gradients = False

    def trainee(self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator) -> MedusaTrainee:
        """Heads that say what the target says. As `Recipe`."""
        return MedusaTrainee(teacher, settings, frequent(counts, settings.words))


def _ahead(batch: Batch, number: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Rows that a head reads, and numbers of the places that it is asked for."""
    found = [(row, row + 1 + head) for text in batch.texts for row in range(text.start, text.end - 2 - head)]
    pairs = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
    asked = number[pairs[:, 1]]
    return pairs[asked >= 0, 0], asked[asked >= 0]


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.bfloat16).clone().contiguous()
