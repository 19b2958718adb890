"""Parallel heads: further last layers, each of which predicts one token further ahead from the same state.

Source: Gloeckle et al. (arXiv 2404.19737). The trunk's state before the target's last layer goes through each head, a layer with
keys and values of its own, then through the target's own norm and output projection. Row p of head k predicts token
p + 2 + k; the target's last layer itself predicts token p + 1.

Letters: `S` rows of a pass, `d` width, `V` vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Context, Draft, Needs, Shape, Step, Target
from outrider.core.drafting.chain import Picks
from outrider.core.formats.pickled import read_pickled
from outrider.core.formats.safetensors import read_file
from outrider.core.formats.stored import as_weights
from outrider.core.model.blocks.block import Block
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import Still, Tables, Where
from outrider.core.model.cache.states import SLACK, Room, Rows
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, LayerSpec, TargetSpec
from outrider.core.model.lane import Lane
from outrider.core.model.load import tables
from outrider.core.model.steps import SHORT, Steps, filled

from .layout import META, read_settings
from .memory import CHUNK, Memory, still

AGAIN = "Download the heads again, whole."


class Heads:
    """Follows one conversation; every head sees the same states."""

    block = True

    def __init__(self, target: Target, blocks: Sequence[Block], spec: TargetSpec, made: Tables) -> None:
        self._target, self._blocks, self._spec, self._tables = target, tuple(blocks), spec, made
        self.needs = Needs(hidden=(target.info.layers - 1,))
        self.shape = Shape(nodes=len(blocks), depth=len(blocks))
        room = Room(target.context + SLACK, target.dtype, target.device)
        self._states = [block.mixer.new_state(room) for block in blocks]
        self._memory = Memory()
        self._steps = self._new_steps()

    def _new_steps(self) -> Steps | None:
        """For these rows; None where nothing is captured."""
        graphs, mixers = self._target.graphs, [block.mixer for block in self._blocks]
        if graphs is None or not all(isinstance(state, Rows) for state in self._states):
            return None
        return Steps(graphs, torch.zeros(0, dtype=self._target.dtype, device=self._target.device), mixers)

    def reset(self) -> None:
        """Forget the conversation."""
        self._memory.clear()

    def advance(self, step: Step) -> None:
        """Keep the states before the target's last layer."""
        if self._memory.breaks(step):
            self._feed()
        self._memory.hear(step, None if step.hidden is None else step.hidden[:, 0])
        if self._memory.waiting >= CHUNK:
            self._feed()

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true."""
        self._memory.rewind(length)

    def fork(self) -> Heads:
        """Same weights, a copy of the rows."""
        other = copy.copy(self)
        other._memory, other._states = self._memory.copy(), copy.deepcopy(self._states)
        other._steps = other._new_steps()
        return other

    def close(self) -> None:
        """Let go of weights and rows."""
        self._blocks, self._states, self._steps = (), [], None
        self._memory.clear()

    def propose(self, context: Context) -> Draft | None:
        """One token of each head, with `probs` [n, V] if they are wanted; None while no state is known."""
        if not self._memory.known():
            return None
        self._memory.again()
        picks = Picks(replace(context, go_on=None), len(self._blocks), weighs=self._target.graphs is None)
        for row in self.logits(self._feed())[: context.nodes]:  # made in one pass: to stop would save nothing
            if not picks.add(row):
                break
        return picks.draft()

    def logits(self, states: Tensor) -> Tensor:
        """Outputs of the heads [heads, d] -> [heads, V]."""
        return self._target.head(self._target.norm(states))

    @torch.inference_mode()
    def _feed(self) -> Tensor:
        """Feed the rows that wait to all heads; what each made of the last [heads, d]."""
        memory, last = self._memory, torch.empty(0)
        while memory.waiting:
            first, hidden = memory.fed, memory.take(min(CHUNK, memory.waiting))
            if self._steps is not None and hidden.shape[0] <= SHORT:
                last = self._still(self._steps, first, hidden)
            else:
                where = memory.where(first, hidden.shape[0], self._tables, hidden)
                last = torch.cat([made[-1:] for made in self._through(hidden, where)])
        return last

    def _still(self, steps: Steps, first: int, hidden: Tensor) -> Tensor:
        """What the heads make of the last of states [S, d] from row `first` on, [heads, d], captured."""
        rows, count = self._states[0], hidden.shape[0]
        assert isinstance(rows, Rows)
        width = Lane.width(count)
        end = steps.end(first + width, rows, masked=bool(self._memory.holes))
        there = self._memory.there(end)

        def work(sheet: Tensor, hidden: Tensor, there: Tensor | None = None) -> Tensor:
            base, last = sheet.split(1)
            where = still(Still(base, end), width, self._tables, hidden, there)
            return torch.cat([made[last] for made in self._through(hidden, where)])

        holed, sheet = () if there is None else (there,), steps.told([first, count - 1])
        return steps((width, end, len(holed)), work, sheet, filled(hidden, width), *holed)

    def _through(self, hidden: Tensor, where: Where) -> list[Tensor]:
        """[S, d] of each head."""
        pairs = zip(self._blocks, self._states, strict=True)
        return [block.run(hidden, where, state, self._spec) for block, state in pairs]


class _Meta:
    """The heads of a folder under the names of a llama's layers, as a checkpoint."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path, self._tensors = path, tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return as_weights(self._tensors[name], dtype, f"{self.path}: {name}")

    def layout(self, name: str) -> None:
        return None


def load(target: Target, path: Path) -> Heads:
    """The heads of the folder at `path`. Raises ModelError, BrokenFileError."""
    settings = read_settings(path)
    tensors = read_heads(path)
    count = len({name.split(".")[2] for name in tensors})
    if not tensors or count != settings["n_future_tokens"] - 1:
        raise ModelError(
            f"{path.name} has {count} heads, its params.json says {settings['n_future_tokens'] - 1}.", AGAIN
        )
    spec = _spec(settings, target, count, tensors)
    return _build(target, _Meta(path, tensors), spec)


@torch.inference_mode()
def _build(target: Target, checkpoint: Any, spec: TargetSpec) -> Heads:
    build = Builder(checkpoint, spec, target.form)
    blocks = [build.block(index) for index in range(len(spec.layers))]
    return Heads(target, blocks, spec, tables(spec, target.context + SLACK, target.dtype, target.device))


def read_heads(path: Path) -> dict[str, Tensor]:
    """The tensors of all heads under a llama's names; of a pickle only where there are no safetensors. Raises ModelError."""
    found = sorted(path.glob("*.safetensors")) or sorted(path.glob("consolidated*.pth"))
    if len(found) != 1:
        raise ModelError(f"{path.name} holds {len(found)} files of weights where one is read.", AGAIN)
    stored = _stored(found[0])
    tensors = {}
    for name, tensor in stored.items():
        if not name.startswith("extra_heads."):
            continue
        _, index, part = name.split(".", 2)
        if part not in META:
            raise ModelError(f"{path.name}: nothing is known of its tensor {name}.", "Take another drafter.")
        tensors[f"model.layers.{index}.{META[part]}"] = tensor
    return tensors


def _stored(file: Path) -> Mapping[str, Tensor]:
    """What a file of weights holds. Raises ModelError, BrokenFileError."""
    if file.suffix != ".safetensors":
        return read_pickled(file)
    return read_file(file)


def _spec(settings: Mapping[str, Any], target: Target, count: int, tensors: Mapping[str, Tensor]) -> TargetSpec:
    """A llama of so many layers whose rope pairs neighbours, as its authors stored it."""
    inner = tensors.get("model.layers.0.mlp.gate_proj.weight")
    config = {
        "model_type": "llama",
        "hidden_size": settings["dim"],
        "vocab_size": target.info.vocab,
        "num_hidden_layers": count,
        "num_attention_heads": settings["n_heads"],
        "num_key_value_heads": settings.get("n_kv_heads"),
        "intermediate_size": inner.shape[0] if inner is not None and inner.ndim else 1,
        "rms_norm_eps": settings.get("norm_eps", 1e-5),
        "rope_theta": settings.get("rope_theta", 10000.0),
    }
    spec = read_spec(config)
    layer = spec.layers[0]
    assert isinstance(layer.mixer, AttentionSpec) and layer.mixer.rope is not None
    mixer = replace(layer.mixer, rope=replace(layer.mixer.rope, interleaved=True))
    return replace(spec, layers=(LayerSpec(mixer, layer.channel),) * count)
