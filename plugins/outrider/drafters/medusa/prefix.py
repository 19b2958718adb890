"""Hydra++: one layer of a llama runs over the target's states, so that what the heads read knows all that came before.

`s_i = norm(layer(x_0 … x_i))`, where `x_i` is the state at position i as plain Hydra heads read it. The layer keeps a row of
keys and values for every state that it heard of. A state that is not known (those of what was said before a hot switch) has no
row; positions stay true, so that later rows see the others at their right distance.

Letters: `S` rows of a pass, `d` width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.drafting import Step, Target
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import Tables, Tree, Where
from outrider.core.model.cache.states import SLACK, Room, Rows
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.load import tables

from .format import PREFIX, HydraFiles

CHUNK = 512  # rows of one pass; fewer wait until a draft is asked for


@dataclass(frozen=True, slots=True)
class Prefix:
    """The layer. Immutable, so that forks share it."""

    read: Callable[[Tensor], Tensor]  # states as the target gives them -> as the layer wants them
    block: Block
    norm: Norm
    spec: TargetSpec
    tables: Tables
    room: Room

    def new_rows(self) -> Rows:
        """Keys and values of a new conversation."""
        rows = self.block.mixer.new_state(self.room)
        assert isinstance(rows, Rows)
        return rows

    def __call__(self, states: Tensor, positions: Sequence[int], base: int, rows: Rows) -> Tensor:
        """States [S, d] at ascending `positions` -> what heads read behind each, [S, d]; rows below `base` are seen by all."""
        device, count = self.room.device, len(positions)
        seen = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        tree = Tree(base, torch.tensor(positions, device=device), seen)
        where = Where(base, count, self.tables, self.room.dtype, device, tree)
        return self.norm(self.block.run(self.read(states), where, rows, self.spec))


class Past:
    """The states of one conversation, as the layer remembers them; a `memory.Memory`."""

    def __init__(self, layer: Prefix) -> None:
        self._layer, self._rows = layer, layer.new_rows()
        self.clear()

    def clear(self) -> None:
        """Forget the conversation."""
        self._positions: list[int] = []  # of the rows, ascending
        self._waiting: list[tuple[int, Tensor]] = []  # states [S, d] with no row yet, and the position of the first
        self._newest: Tensor | None = None  # [1, d] what heads read behind the last row
        self._rows.wipe(0)

    def hear(self, step: Step) -> None:
        """Take up the states of `step`; each stands one position before the token that it led to."""
        if step.hidden is None or not step.hidden.shape[0]:
            return
        first = step.start + step.tokens.shape[0] - step.hidden.shape[0] - 1
        self.rewind(first)  # a state may be told anew
        self._waiting.append((first, step.hidden[:, 0]))
        if sum(states.shape[0] for _, states in self._waiting) >= CHUNK:
            self._catch_up()

    def rewind(self, length: int) -> None:
        """The states of the first `length` tokens stay: none of them hangs on a token behind its own."""
        self._waiting = [(first, states[: length - first]) for first, states in self._waiting if first < length]
        rows = bisect_left(self._positions, length)
        if rows < len(self._positions):
            del self._positions[rows:]
            self._newest = None
            self._rows.wipe(rows)

    def fork(self) -> Past:
        """A copy that goes its own way."""
        copy = Past(self._layer)
        for ours, theirs in zip(self._rows.parts, copy._rows.parts, strict=True):
            theirs.copy_(ours)
        copy._positions, copy._waiting, copy._newest = list(self._positions), list(self._waiting), self._newest
        return copy

    def state(self, length: int) -> Tensor | None:
        """What the heads read behind `length` tokens, [1, d]; None where the state before the last one is not known."""
        self._catch_up()
        return self._newest if self._positions and self._positions[-1] == length - 2 else None

    @torch.inference_mode()
    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        room = self._layer.room
        positions = [first + index for first, states in waiting for index in range(states.shape[0])]
        states = torch.cat([states for _, states in waiting]).to(room.device, room.dtype)
        for start in range(0, len(positions), CHUNK):
            some = positions[start : start + CHUNK]
            made = self._layer(states[start : start + CHUNK], some, len(self._positions), self._rows)
            self._positions += some
            self._newest = made[-1:]


class _Named:
    """The layer's tensors under a llama's names, as a checkpoint."""

    def __init__(self, files: HydraFiles) -> None:
        self.path: Path = files.where
        self._files = files

    def names(self) -> list[str]:
        return [name.replace(PREFIX, "model.", 1) for name in self._files.layer()]

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        tensor = self._files.load(name.replace("model.", PREFIX, 1))
        return tensor if dtype is None else tensor.to(dtype)

    def layout(self, name: str) -> None:
        return None


@torch.inference_mode()
def read_prefix(files: HydraFiles, target: Target, read: Callable[[Tensor], Tensor]) -> Prefix:
    """The layer of a set that has one, which fits the target. Raises ModelError, BrokenFileError for weights that are none."""
    spec = files.spec(target.info)
    named: Any = _Named(files)
    build = Builder(named, spec, target.beside)
    room = Room(target.context + SLACK, target.dtype, target.device)
    made = tables(spec, room.capacity, room.dtype, room.device)
    return Prefix(read, build.block(0), build.final_norm(), spec, made, room)
