"""Parallel heads under training: further last layers, which all read the same state.

Head k, from 0, is a layer over the target's states before its own last one; behind the target's norm and output layer it is
asked for what the target said one row further and k more. Logits of one head alone are in memory. The container is Meta's: in
it the heads are blocks of a llama whose rope pairs neighbours, so that rows of queries and keys stand in another order.

Letters: `N` rows of a batch, `R` some of them, `d` width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.base.errors import ModelError
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec
from outrider.core.train import lean, warm_start
from outrider.core.train.decoder import Along, Layer
from outrider.core.train.draft_vocabulary import Said, Sayings
from outrider.core.train.parts import start
from outrider.core.train.recipe import Batch
from outrider.core.train.teacher import Teacher
from outrider.core.train.teacher_in_training import Frozen, Joint

from .layout import META, read_settings
from .learning import Learner, Losses, Settings
from .parallel import open_heads

OURS = {ours: theirs for theirs, ours in META.items()}


def shape(teacher: Teacher, settings: Settings) -> TargetSpec:
    """The heads as layers of a llama, with the target's sizes. Raises ModelError where Meta's container has no place for them."""
    spec, d = teacher.spec, teacher.info.width
    mixer = next((layer.mixer for layer in reversed(spec.layers) if isinstance(layer.mixer, AttentionSpec)), None)
    if mixer is None or d % mixer.heads:
        raise ModelError(
            f"{teacher.info.name} has no attention heads whose sizes add up to its width, and parallel heads must have such.",
            "Train medusa instead.",
        )
    inner = [layer.channel.width for layer in spec.layers if isinstance(layer.channel, DenseSpec)]
    size, theta = d // mixer.heads, mixer.rope.theta if mixer.rope is not None else 10000.0
    attention = AttentionSpec(mixer.heads, mixer.kv_heads, size, RopeSpec(theta, size), size**-0.5)
    layer = LayerSpec(attention, DenseSpec(settings.width or (inner[-1] if inner else 3 * d)))
    return TargetSpec("llama", d, spec.vocab, spec.context, spec.eps, (layer,) * settings.depths, tied=False)


class ParallelTrainee(Learner):
    """All heads."""

    def __init__(
        self, teacher: Teacher, settings: Settings, ground: Frozen | Joint, spec: TargetSpec, luck: torch.Generator
    ) -> None:
        super().__init__(settings, ground)
        self._teacher, self._spec = teacher, spec
        self.heads = [Layer(spec, index) for index in range(settings.depths)]
        self.held = nn.ModuleList(self.heads)
        start(self.held, luck, settings.depths)

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`, a head at a time."""
        read = self.ground.read(batch)
        losses = Losses(self.settings, self.ground, len(self.heads))
        sayings = Sayings(batch, self.ground.words, batch.states[:, -1])

        def each(states: list[Tensor]) -> Iterator[Tensor]:
            return losses.each(batch, states[0], self._heads(batch, states[1], sayings))

        return losses.report(lean.backward([read.last, read.kept[0]], each))

    def _heads(self, batch: Batch, state: Tensor, sayings: Sayings) -> Iterator[tuple[int, Said, Tensor]]:
        """Of each head the rows that are asked, and what the output layer reads of them [R, d]."""
        along = Along(batch.texts, state.device)
        for depth, head in enumerate(self.heads):
            said = sayings.ahead(1 + depth)
            if len(said.rows):
                yield depth, said, self.ground.normed(head(state, along)[said.rows])

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        told, own, size = read_settings(folder), self._params(), self._mixer.head_dim
        sizes = ("n_heads", "n_kv_heads", "rope_theta", "norm_eps")
        if {name: told.get(name, own[name]) for name in ("dim", *sizes)} != {
            name: own[name] for name in ("dim", *sizes)
        }:
            raise warm_start.refused(folder.name, "heads of other sizes than fresh ones for this model")
        warm_start.same(folder.name, {"depths": (told["n_future_tokens"] - 1, len(self.heads))})
        with open_heads(folder) as files:
            found = {name: halves(name, files.load(name), size) for name in files.names()}
        for index, head in enumerate(self.heads):
            at = f"model.layers.{index}."
            warm_start.put(folder.name, {at + name: part for name, part in head.state_dict().items()}, found.get)

    def save(self, folder: Path, *, whole: bool) -> None:
        """In Meta's names, the heads alone; jointly beside the model in its own file. `whole`: with a llama's trunk."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "params.json").write_text(json.dumps(self._params(), indent=2) + "\n", encoding="utf-8")
        tensors = self.tensors()
        if isinstance(self.ground, Joint):
            self.ground.save(folder, tensors, {})
            return
        if whole:
            tensors |= trunk(self._teacher)
        kept = {name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in tensors.items()}
        save_file(kept, folder / "consolidated.safetensors", metadata={"format": "pt"})

    def tensors(self) -> dict[str, Tensor]:
        """All weights as Meta names and orders them."""
        size = self._mixer.head_dim
        tensors = {}
        for index, head in enumerate(self.heads):
            for name, part in head.state_dict().items():
                tensors[f"extra_heads.{index}.{OURS[name]}"] = neighbours(name, part, size)
        return tensors

    @property
    def _mixer(self) -> AttentionSpec:
        mixer = self._spec.layers[0].mixer
        assert isinstance(mixer, AttentionSpec)
        return mixer

    def _params(self) -> dict[str, Any]:
        info, mixer, count = self._teacher.info, self._mixer, len(self.heads)
        assert mixer.rope is not None
        return {
            "dim": info.width,
            "n_layers": info.layers + count,
            "n_heads": mixer.heads,
            "n_kv_heads": mixer.kv_heads,
            "n_future_tokens": 1 + count,
            "rope_theta": mixer.rope.theta,
            "norm_eps": self._spec.eps,
            "vocab_size": info.vocab,
        }


def neighbours(name: str, part: Tensor, size: int) -> Tensor:
    """Rows of queries and keys so that those which turn together stand beside each other; everything else as it is."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return part
    return part.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def halves(name: str, part: Tensor, size: int) -> Tensor:
    """Undoes `neighbours`."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return part
    return part.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)


def trunk(teacher: Teacher) -> dict[str, Tensor]:
    """A llama as Meta names and orders it. Raises ModelError for a model that Meta's container has no place for."""
    from outrider.core.train.decoder import read

    decoder = read(Path(teacher.info.path))
    tensors: dict[str, Tensor] = {
        "tok_embeddings.weight": decoder.model.embed_tokens.weight,
        "output.weight": decoder.table,
    }
    tensors["norm.weight"] = decoder.model.norm.weight
    for index, layer in enumerate(decoder.model.layers):
        assert isinstance(layer, Layer)
        spec = layer.self_attn.spec
        for name, part in layer.state_dict().items():
            if name not in OURS or spec.heads * spec.head_dim != teacher.info.width:
                raise ModelError(
                    f"Meta's container has no place for {teacher.info.name}: it holds plain llamas.",
                    "Leave --full out; the heads alone are read beside any model.",
                )
            tensors[f"layers.{index}.{OURS[name]}"] = neighbours(name, part, spec.head_dim)
    return {name: part.clone() for name, part in tensors.items()}
