"""Hydra++: one layer of a llama runs over the target's states, so that what the heads read knows all that came before.

`s_i = norm(layer(x_0 … x_i))`, where `x_i` is the state at position i as plain Hydra heads read it. The layer keeps a row of
keys and values for every state that it got. A state that is not known (those of what was said before a hot switch) has no
row; positions stay true, so that later rows see the others at their right distance.

Letters: `S` rows of a pass, `d` width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from outrider.core.drafting import DraftState, Target
from outrider.core.drafting.layers import DraftLayers, Layout, Part, Rows, WeightReader, load_layers

from .format import PREFIX, HydraFiles


@dataclass(frozen=True, slots=True)
class Prefix:
    """The layer. Immutable, so that forks share it."""

    read: Callable[[Tensor], Tensor]  # states as the target gives them -> as the layer wants them
    layers: DraftLayers  # one
    norm: Part

    def new_state(self, target: Target) -> DraftState:
        """Of a new conversation; a pass gives what heads read after the newest row, [1, d]."""
        layers = self.layers
        return DraftState(target, layers.mixers, layers.tables, lambda states: self.read(states[:, 0]), self._run)

    def _run(self, memory: Rows, ids: Tensor, states: Tensor, where: Layout, newest: Tensor | slice) -> Tensor:
        return self.norm(self.layers(states, where, memory)[newest])


def read_prefix(files: HydraFiles, target: Target, read: Callable[[Tensor], Tensor]) -> Prefix:
    """The layer of a set that has one, which fits the target. Raises ModelError, BrokenFileError for weights that are none."""
    weights = WeightReader(files.source.below(PREFIX), files.spec(target.info), target, prefix="")
    return Prefix(read, load_layers(weights), weights.final_norm())
