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
from outrider.core.drafting import (
    ChainSampler,
    Committed,
    Context,
    DeviceContext,
    Draft,
    DraftState,
    Needs,
    Shape,
    Target,
)
from outrider.core.drafting.state import Scratch, Window
from outrider.core.formats.pickled import read_pickled
from outrider.core.formats.renamed import TensorCheckpoint
from outrider.core.formats.safetensors import read_file
from outrider.core.model.blocks.block import Block
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, KVCache
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, LayerSpec, TargetSpec
from outrider.core.model.load import tables

from .layout import META, read_settings

AGAIN = "Download the heads again, whole."


class Heads:
    """Follows one conversation; every head sees the same states."""

    block = True

    def __init__(self, target: Target, blocks: Sequence[Block], spec: TargetSpec, made: Tables) -> None:
        self._target, self._blocks, self._spec = target, tuple(blocks), spec
        self.needs = Needs(hidden=(target.info.layers - 1,))
        self.shape = Shape(nodes=len(blocks), depth=len(blocks))
        mixers = [block.mixer for block in blocks]
        self._state = DraftState(target, mixers, made, lambda states: states[:, 0], self._run)
        self.device = self._state.captured

    def reset(self) -> None:
        """Forget the conversation."""
        self._state.clear()

    def advance(self, step: Committed) -> None:
        """Keep the states before the target's last layer."""
        self._state.advance(step)

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true."""
        self._state.rewind(length)

    def fork(self) -> Heads:
        """Same weights, a copy of the rows."""
        other = copy.copy(self)
        other._state = self._state.fork()
        return other

    def close(self) -> None:
        """Forget the conversation; memory goes with the last reference."""
        self.reset()

    def propose(self, context: Context) -> Draft | None:
        """One token of each head, with `probs` [n, V] if they are wanted; None while no state is known."""
        if not self._state.ready(len(context.tokens)):
            return None
        picks = ChainSampler(replace(context, worth_drafting=None), len(self._blocks), weighs=not self._state.captured)
        for row in self.logits(self._state.feed())[: context.nodes]:  # made in one pass: to stop would save nothing
            if not picks.add(row):
                break
        return picks.draft()

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`."""
        count, choose = min(context.nodes, len(self._blocks)), context.choose

        def work(made: Tensor, scratch: Scratch, window: Window) -> Tensor:
            return choose(self.logits(made[:count]), torch.arange(count, device=made.device))

        tokens = self._state.draft_ahead(context, count, work, rows=0)
        return None if tokens is None else Draft(tokens)

    def logits(self, states: Tensor) -> Tensor:
        """Outputs of the heads [heads, d] -> [heads, V]."""
        return self._target.head(self._target.norm(states))

    def _run(
        self, memory: Sequence[KVCache], ids: Tensor, hidden: Tensor, where: PassLayout, newest: Tensor | slice
    ) -> Tensor:
        """As `DraftState` runs it: what each head makes of the newest row, [heads, d]."""
        pairs = zip(self._blocks, memory, strict=True)
        return torch.cat([block.run(hidden, where, rows, self._spec)[newest] for block, rows in pairs])


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
    return _build(target, TensorCheckpoint(path, tensors), spec)


@torch.inference_mode()
def _build(target: Target, checkpoint: TensorCheckpoint, spec: TargetSpec) -> Heads:
    build = Builder(checkpoint, spec, target.form)
    blocks = [build.block(index) for index in range(len(spec.layers))]
    return Heads(target, blocks, spec, tables(spec, target.context + MAX_DRAFT_ROWS, target.dtype, target.device))


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
