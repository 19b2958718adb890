"""Parallel heads: further last layers, each of which predicts one token further ahead from the same state.

Source: Gloeckle et al. (arXiv 2404.19737). The trunk's state before the target's last layer goes through each head, a layer with
keys and values of its own, then through the target's own norm and output projection. Row p of head k predicts token
p + 2 + k; the target's last layer itself predicts token p + 1.

Letters: `S` rows of a pass, `d` width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import (
    ChainSampler,
    Context,
    DeviceContext,
    Draft,
    DraftState,
    Needs,
    Shape,
    Target,
)
from outrider.core.drafting.files import DraftConfig, DraftFiles, DraftSpec, open_draft
from outrider.core.drafting.layers import DraftLayers, Layout, Rows, WeightReader, load_layers
from outrider.core.drafting.state import Scratch, StateDrafter, Window

from .layout import HEADS, META, read_settings

AGAIN = "Download the heads again, whole."


class ParallelDrafter(StateDrafter):
    """Follows one conversation; every head sees the same states."""

    block = True

    def __init__(self, target: Target, layers: DraftLayers) -> None:
        self._target, self._layers, self._blocks = target, layers, layers.blocks
        self.needs = Needs(hidden=(target.info.layers - 1,))
        self.shape = Shape(nodes=len(layers.blocks), depth=len(layers.blocks))
        self._state = DraftState(target, layers.mixers, layers.tables, lambda states: states[:, 0], self._run)
        self.device = self._state.captured

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

    def _run(self, memory: Rows, ids: Tensor, hidden: Tensor, where: Layout, newest: Tensor | slice) -> Tensor:
        """As `DraftState` runs it: what each head makes of the newest row, [heads, d]."""
        return torch.cat([made[newest] for made in self._layers.each(hidden, where, memory)])


def load(target: Target, path: Path) -> ParallelDrafter:
    """The heads of the folder at `path`. Raises ModelError, BrokenFileError."""
    settings = read_settings(path)
    with open_heads(path) as files:
        count = len({name.split(".")[2] for name in files.holds})
        if not count or count != settings["n_future_tokens"] - 1:
            raise ModelError(
                f"{path.name} has {count} heads, its params.json says {settings['n_future_tokens'] - 1}.", AGAIN
            )
        inner = (*files.size("model.layers.0.mlp.gate_proj.weight"), 1)[0]
        spec = _spec(settings, target.info.vocab, count, inner)
        return ParallelDrafter(target, load_layers(WeightReader(files, spec, target, form=target.form)))


def open_heads(path: Path) -> DraftFiles:
    """All heads under a llama's names; of a pickle only where there are no safetensors. Raises ModelError."""
    found = sorted(path.glob("*.safetensors")) or sorted(path.glob("consolidated*.pth"))
    if len(found) != 1:
        raise ModelError(f"{path.name} holds {len(found)} files of weights where one is read.", AGAIN)

    def named(name: str) -> str | None:
        if not name.startswith(HEADS):
            return None
        _, index, part = name.split(".", 2)
        if part not in META:
            raise ModelError(f"{path.name}: nothing is known of its tensor {name}.", "Take another drafter.")
        return f"model.layers.{index}.{META[part]}"

    return open_draft(path, found[0].name, names=named)


def _spec(settings: Mapping[str, Any], vocab: int, count: int, inner: int) -> DraftSpec:
    """Layers of a llama whose rope pairs neighbours, as its authors stored it."""
    config = {
        "hidden_size": settings["dim"],
        "vocab_size": vocab,
        "num_attention_heads": settings["n_heads"],
        "num_key_value_heads": settings.get("n_kv_heads"),
        "intermediate_size": inner,
        "rms_norm_eps": settings.get("norm_eps", 1e-5),
        "rope_theta": settings.get("rope_theta", 10000.0),
    }
    return DraftConfig(config, "params.json", AGAIN).layers([0] * count, interleaved=True)
