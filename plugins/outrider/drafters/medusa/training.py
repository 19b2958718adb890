"""Training Medusa heads (arXiv 2401.10774): each head learns a token further ahead, on the target as it is (Medusa-1), or
while that learns as well (Medusa-2).

Head k, from 0, reads the normed last state of row i and is asked for what the target said at i + 1 + k. It begins as the
target's own output layer with a residual block of zeros. Heads are gone through one after another, forwards and backwards, so
that the logits of one alone are in memory.

Letters: `R` rows, `d` width, `n` words that the loss looks at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.nn.functional as F
from msgspec import structs
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.base.errors import ModelError
from outrider.core.train import lean, warm_start
from outrider.core.train.chunked_loss import ask
from outrider.core.train.draft_vocabulary import SLOW, Sayings, Words, frequent
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Joint

from .format import MedusaFiles, open_heads
from .names import OWN
from .tree import RANKS

if TYPE_CHECKING:
    from outrider.core.model.model import TargetModel

FILE, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    heads: int = 4
    words: int = 16384  # that the loss looks at, and heads without rows of their own know; 0: all
    decay: float = 0.8  # of the weight of each further head
    head: bool = False  # output rows are trained too, of every head its own
    joint: bool = False  # the target learns as well (Medusa-2)
    share: float = 0.2  # of the heads' loss beside the target's own, jointly
    warm: float = 0.2  # share of the steps in which that grows
    rate: float = 0.05  # of the rate, for the target's own weights

    def __post_init__(self) -> None:
        if self.share <= 0 or self.rate <= 0 or not 0 <= self.warm <= 1:
            raise ValueError("share and rate must be above 0, warm from 0 to 1")
        if not 1 <= self.heads <= 16 or not 0 < self.decay <= 1 or not (self.words == 0 or self.words >= RANKS):
            raise ValueError(f"heads must be from 1 to 16, decay between 0 and 1, words 0 (all) or at least {RANKS}")


class MedusaTrainee(nn.Module):
    """The residual blocks of all heads, on a target that stays as it is."""

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

    def groups(self) -> list[Group]:
        """All alike; output rows slowly."""
        rows = [Group(list(self.rows), SLOW)] if len(self.rows) else []
        return [Group(list(self.blocks.parameters()), fresh=True), *rows]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`, a head at a time."""
        figures: dict[str, float] = {"loss": 0.0}
        shares = [self.settings.decay**head for head in range(self.settings.heads)]
        sayings = Sayings(batch, self.head, batch.states[:, 0])
        for head, share in enumerate(shares):
            said = sayings.ahead(1 + head)
            if not len(said.rows):
                continue
            z = self._teacher.norm(batch.states[said.rows, 0]).to(next(self.parameters()).dtype)  # [R, d]
            rows = self.rows[head][self.head.words] if len(self.rows) else self.head.rows
            asked = ask(self._block(head, z), rows, said.law, said.law.weights, self._teacher.spec.logit_cap)
            loss = asked.loss * share / sum(shares)
            loss.backward()
            figures["loss"] += float(loss.detach())
            figures[f"right_{head + 1}"] = float(asked.right.float().mean())
        return figures

    def save(self, folder: Path, *, whole: bool) -> None:
        """As Medusa's authors name things, in bf16; without `whole` output matrices that are the target's are left out.

        With it the same tensors are written once more, as the pickle that their own code reads.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors(whole=whole)
        save_file(tensors, folder / FILE, metadata={"format": "pt"})
        if whole:
            with (folder / PICKLE).open("wb") as file:  # by name a full disk would be no OSError
                torch.save(tensors, file)
        config = self.config(whole=whole) | {
            "hidden_size": self._teacher.info.width,
            "vocab_size": self._teacher.info.vocab,
            "base_model_name_or_path": self._teacher.info.name,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def tensors(self, *, whole: bool) -> dict[str, Tensor]:
        """All that is written, by name."""
        tensors: dict[str, Tensor] = {}
        for head, block in enumerate(self.blocks):
            assert isinstance(block, nn.Linear)
            tensors[f"{head}.0.linear.weight"] = _kept(block.weight)
            tensors[f"{head}.0.linear.bias"] = _kept(block.bias)
            if len(self.rows):
                tensors[f"{head}.1.weight"] = _kept(self.rows[head])
            elif whole:
                tensors[f"{head}.1.weight"] = _kept(self.output())
        return tensors if whole or len(self.rows) else tensors | self.head.tables(whole=False)

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        files = open_heads(folder)
        try:
            if not isinstance(files, MedusaFiles) or files.layers != 1:
                raise warm_start.refused(folder.name, "heads of another kind than Medusa's with one layer")
            problem = files.misfit(self._teacher.info)
            if problem is not None:
                raise ModelError(f"{folder.name}: {problem}.", "Name another drafter to go on from.")
            self._become(files)
            for head, block in enumerate(self.blocks):
                at = f"{files.block(head, 0)}.linear."
                warm_start.put(folder.name, {at + name: part for name, part in block.named_parameters()}, files.load)
            if not files.tied:
                warm_start.put(
                    folder.name, {f"{files.out(head)}.weight": part for head, part in enumerate(self.rows)}, files.load
                )
        finally:
            files.close()

    def _become(self, files: MedusaFiles) -> None:
        """As many heads, with rows of their own where those are not the target's."""
        d, every = self._teacher.info.width, torch.arange(self._teacher.info.vocab)
        own = self.settings.head or not (
            files.tied
            or all(
                warm_start.tied(self._teacher, every, files.load(f"{files.out(head)}.weight"))
                for head in range(files.heads)
            )
        )
        self.settings = structs.replace(self.settings, heads=files.heads, head=own)
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(files.heads))
        rows = [nn.Parameter(self.head.output.float().clone()) for _ in range(files.heads if own else 0)]
        self.rows = nn.ParameterList(rows)

    def output(self) -> Tensor:
        """Rows [V, d] of the target's output layer."""
        return self.head.output

    def config(self, *, whole: bool) -> dict[str, object]:
        """What a config says of the heads."""
        config: dict[str, object] = {"medusa_num_heads": self.settings.heads, "medusa_num_layers": 1}
        if whole or len(self.rows):
            return config
        cap = self._teacher.spec.logit_cap
        return config | {"tied_to_target": True} | ({} if cap is None else {"final_logit_softcapping": cap})

    def _block(self, head: int, z: Tensor) -> Tensor:
        return z + F.silu(self.blocks[head](z))

    def _logits(self, head: int, z: Tensor) -> Tensor:
        x = self._block(head, z)
        if len(self.rows):
            return self._teacher.capped(x @ self.rows[head][self.head.words].to(x.dtype).t())
        return self._tied(x)

    def _tied(self, x: Tensor) -> Tensor:
        """[R, d] -> [R, n], by the target's own rows."""
        return self.head(x)


class JointTrainee(MedusaTrainee):
    """Medusa-2: the target learns with the heads. Loss: the target's own and a share of the heads', which grows at first."""

    joint = True

    def __init__(self, teacher: Teacher, settings: Settings, words: Tensor) -> None:
        super().__init__(teacher, settings, words)
        self.ground = Joint(teacher, self.head)

    def groups(self) -> list[Group]:
        """The heads, and the target's weights at a rate of their own."""
        return [*super().groups(), Group(list(self.ground.parameters()), self.settings.rate)]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`: the target's own loss, then a head at a time."""
        figures: dict[str, float] = {}
        last = self.ground.read(batch).last
        sayings = Sayings(batch, self.head, batch.states[:, 0])
        shares = [self.settings.decay**head for head in range(self.settings.heads)]
        grown = min(1.0, batch.done / self.settings.warm) if self.settings.warm else 1.0

        def each(states: list[Tensor]) -> Iterator[Tensor]:
            own = self.ground.loss(batch, states[0])
            figures["loss_target"] = float(own.detach())
            yield own
            for head, share in enumerate(shares):
                said = sayings.ahead(1 + head)
                if not len(said.rows):
                    continue
                logits = self._logits(head, self.ground.normed(states[0][said.rows]))
                figures[f"right_{head + 1}"] = said.right(logits)
                yield said.loss(logits) * (self.settings.share * grown * share / sum(shares))

        return {"loss": lean.backward([last], each)} | figures

    def output(self) -> Tensor:
        """Rows [V, d] of the output layer as it is now."""
        return self.ground.decoder.table

    def _tied(self, x: Tensor) -> Tensor:
        return self.ground.logits(x)

    def target_now(self) -> TargetModel:
        """The target with what it has learnt."""
        return self.ground.now()

    def save(self, folder: Path, *, whole: bool) -> None:
        """The model with its heads in one file, as Medusa-2's authors publish it."""
        tensors = {OWN + name: part for name, part in self.tensors(whole=whole).items()}
        self.ground.save(folder, tensors, self.config(whole=whole))


class MedusaRecipe:
    """Makes Medusa heads. Only jointly do gradients pass the target."""

    settings = Settings
    gradients = False

    def trainee(self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator) -> MedusaTrainee:
        """Heads that say what the target says. As `Recipe`."""
        make = JointTrainee if settings.joint else MedusaTrainee
        return make(teacher, settings, frequent(counts, settings.words))


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.bfloat16).clone().contiguous()
