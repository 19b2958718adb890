"""Hydra++: one layer of a llama runs over the target's states, so that what the heads read knows all that came before.

`s_i = norm(layer(x_0 … x_i))`, where `x_i` is the state at position i as plain Hydra heads read it. The layer keeps a row of
keys and values for every state that it heard of. A state that is not known (those of what was said before a hot switch) has no
row; positions stay true, so that later rows see the others at their right distance.

Letters: `S` rows of a pass, `d` width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import DraftState, Target
from outrider.core.formats.renamed import TensorCheckpoint
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, KVCache
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.load import tables

from .format import PREFIX, HydraFiles


@dataclass(frozen=True, slots=True)
class Prefix:
    """The layer. Immutable, so that forks share it."""

    read: Callable[[Tensor], Tensor]  # states as the target gives them -> as the layer wants them
    block: Block
    norm: Norm
    spec: TargetSpec
    tables: Tables

    def new_state(self, target: Target) -> DraftState:
        """Of a new conversation; a pass gives what heads read behind the newest row, [1, d]."""
        return DraftState(target, [self.block.mixer], self.tables, lambda states: self.read(states[:, 0]), self._run)

    def _run(
        self, memory: Sequence[KVCache], ids: Tensor, states: Tensor, where: PassLayout, newest: Tensor | slice
    ) -> Tensor:
        return self.norm(self.block.run(states, where, memory[0], self.spec)[newest])


@torch.inference_mode()
def read_prefix(files: HydraFiles, target: Target, read: Callable[[Tensor], Tensor]) -> Prefix:
    """The layer of a set that has one, which fits the target. Raises ModelError, BrokenFileError for weights that are none."""
    spec = files.spec(target.info)
    tensors = {name.replace(PREFIX, "model.", 1): files.load(name) for name in files.layer()}
    build = Builder(TensorCheckpoint(files.where, tensors), spec, target.beside)
    made = tables(spec, target.context + MAX_DRAFT_ROWS, target.dtype, target.device)
    return Prefix(read, build.block(0), build.final_norm(), spec, made)
