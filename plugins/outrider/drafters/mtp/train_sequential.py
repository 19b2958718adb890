"""Sequential prediction layers under training.

Layer k, from 0, reads the token at p + 1 + k beside the state that layer k - 1 made of row p, the target's normed state for
the first, and is asked for what the target said at p + 1 + k. Several layers: the first learns alone, then the others begin as
copies of it, as MiMo's did (arXiv 2505.07608), and all learn together. Their container is that of DeepSeek-V3: further layers
of the model.

Letters: `N` rows of a batch, `R` some of them, `d` width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider.core.base.errors import ModelError
from outrider.core.drafting.files import further_layers, open_draft
from outrider.core.model.families.spec import TargetSpec
from outrider.core.train import export, lean, warm_start
from outrider.core.train.decoder import Along, Layer, obstacle
from outrider.core.train.draft_vocabulary import Said, Sayings
from outrider.core.train.parts import Norm, start
from outrider.core.train.recipe import Batch, Text
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Frozen, Joint

from .layout import find
from .learning import Learner, Losses, Settings

PREFIX = "model."


class Depth(nn.Module):
    """One layer; a block of the target's own family between its norms and projection."""

    def __init__(self, spec: TargetSpec, index: int) -> None:
        super().__init__()
        d, plus = spec.width, spec.norm_plus_one
        self.enorm = Norm(d, spec.eps, plus_one=plus)
        self.hnorm = Norm(d, spec.eps, plus_one=plus)
        self.eh_proj = nn.Linear(2 * d, d, bias=False)
        self.block = Layer(spec, index)
        self.norm = Norm(d, spec.eps, plus_one=plus)

    def forward(self, embedded: Tensor, state: Tensor, along: Along) -> Tensor:
        """Embeddings of tokens and states [R, d] -> normed states [R, d]."""
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(state)), -1))
        return self.norm(self.block(x, along))


class SequentialTrainee(Learner):
    """All layers. Those behind the first are zeros until they become copies of it."""

    def __init__(self, teacher: Teacher, settings: Settings, ground: Frozen | Joint, luck: torch.Generator) -> None:
        super().__init__(settings, ground)
        self._teacher = teacher
        first, count = teacher.info.layers, settings.depths
        spec = further_layers(teacher.spec, first, count)
        found = obstacle(spec)
        if found is not None:
            raise ModelError(
                f"{teacher.info.name} has {found}, and its prediction layers would too; those are not trained here.",
                "Train medusa instead, or mtp with --option kind=parallel.",
            )
        self.depths = [Depth(spec, first + index) for index in range(count)]
        self.held = nn.ModuleList(self.depths)
        start(self.held, luck, count)
        if settings.first:
            for part in [part for depth in self.depths[1:] for part in depth.parameters()]:
                nn.init.zeros_(part)

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`: all states first, then the loss of one depth after another."""
        count = self._count(batch.done)
        read = self.ground.read(batch)
        losses = Losses(self.settings, self.ground, count)
        sayings = Sayings(batch, self.ground.words, batch.states[:, -1])
        found = list(self._through(batch, self.ground.normed(read.last), sayings, count))

        def each(states: list[Tensor]) -> Iterator[Tensor]:
            depths = ((depth, said, x) for depth, ((said, _), x) in enumerate(zip(found, states[1:], strict=True)))
            return losses.each(batch, states[0], depths)

        return losses.report(lean.backward([read.last, *(x for _, x in found)], each))

    def _count(self, done: float) -> int:
        """Layers that learn now; those that begin to become copies of the first."""
        if done < self.settings.first and not bool(self.depths[-1].eh_proj.weight.any()):
            return 1
        for depth in self.depths[1:]:
            if not bool(depth.eh_proj.weight.any()):
                depth.load_state_dict(self.depths[0].state_dict())
        return len(self.depths)

    def _through(self, batch: Batch, state: Tensor, sayings: Sayings, count: int) -> Iterator[tuple[Said, Tensor]]:
        """Of each layer the rows that are asked, and their states [R, d]."""
        ids, rows = batch.ids, torch.arange(len(batch.ids), device=batch.ids.device)
        for depth, layer in enumerate(self.depths[:count]):
            spans = [(text.start, text.end - 1 - depth) for text in batch.texts if text.end - 1 - depth > text.start]
            if not spans:
                return
            place = torch.full_like(ids, -1).index_put((rows,), torch.arange(len(rows), device=ids.device))
            rows = torch.cat([torch.arange(first, end, device=ids.device) for first, end in spans])
            along = Along(_texts([end - first for first, end in spans]), ids.device)
            state = layer(self.ground.embed(ids[rows + 1 + depth]), state[place[rows]], along)
            said = sayings.ahead(1 + depth)
            if not len(said.rows):
                return
            here = torch.full_like(ids, -1).index_put((rows,), torch.arange(len(rows), device=ids.device))
            yield said, state[here[said.rows]]

    def load(self, folder: Path) -> None:
        """As `Continuing`; layers that are not there begin as copies of the first."""
        with open_draft(folder) as files:
            first = self._teacher.info.layers
            layout = find(files.holds, first)
            if layout is None or "eh_proj" not in layout.mix:
                raise warm_start.refused(folder.name, "no prediction layer in the layout of DeepSeek")
            if layout.count > len(self.depths):
                warm_start.same(folder.name, {"depths": (layout.count, len(self.depths))})
            for index, depth in enumerate(self.depths[: layout.count]):
                at = f"{layout.prefix}layers.{first + index}."
                parts = {at + published(name): part for name, part in depth.state_dict().items()}
                warm_start.put(folder.name, parts, lambda name: files.load(name) if name in files.holds else None)
            for depth in self.depths[layout.count :]:
                depth.load_state_dict(self.depths[0].state_dict())

    def save(self, folder: Path, *, whole: bool) -> None:
        """As further layers of the model: beside its config and tokenizer, jointly in the model itself.

        `whole`: with their own copies of the target's embedding and output layer, as DeepSeek's have.
        """
        config = {"num_nextn_predict_layers": len(self.depths)}
        tensors = self.tensors()
        if whole:
            for index in range(len(self.depths)):
                at = f"{PREFIX}layers.{self._teacher.info.layers + index}."
                tensors[f"{at}embed_tokens.weight"], tensors[f"{at}shared_head.head.weight"] = self._rows()
        if isinstance(self.ground, Joint):
            self.ground.save(folder, tensors, config)
            return
        info = self._teacher.info
        export.write(folder, tensors, {**info.config, **config}, torch.bfloat16)
        export.copy_text(Path(info.path), folder)

    def tensors(self) -> dict[str, Tensor]:
        """All weights under their published names."""
        tensors: dict[str, Tensor] = {}
        for index, depth in enumerate(self.depths):
            known = depth if bool(depth.eh_proj.weight.any()) else self.depths[0]
            at = f"{PREFIX}layers.{self._teacher.info.layers + index}."
            tensors |= {at + published(name): part for name, part in known.state_dict().items()}
        return tensors

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Embedding and output layer, [V, d] each."""
        if isinstance(self.ground, Joint):
            return self.ground.decoder.model.embed_tokens.weight, self.ground.decoder.table
        ids = torch.arange(self._teacher.info.vocab, device=self._teacher.device)
        return self._teacher.target.embed_raw(ids), self._teacher.output()


def published(name: str) -> str:
    """DeepSeek's name of a layer's tensor."""
    return name.removeprefix("block.") if name != "norm.weight" else "shared_head.norm.weight"


def _texts(lengths: list[int]) -> list[Text]:
    """Texts of these lengths, one after another."""
    texts, at = list[Text](), 0
    for length in lengths:
        texts.append(Text(at, at, at + length))
        at += length
    return texts
