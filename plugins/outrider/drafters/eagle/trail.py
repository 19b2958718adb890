"""What an EAGLE draft remembers of one conversation: a row of keys and values for every token whose state is known.

The row of a token is made from its embedding and the target's state that produced it, and stands at that state's position.
A token without a known state (the first one, and those heard after a hot switch) has no row; positions stay true, so that
later rows see the others at their right distance. Rows behind the true ones are scratch: what a draft writes there is made from
fed-back states and never kept.

Letters: `S` rows, `T` scratch rows, `n` states read, `D` width of the target, `d` of the draft.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import Step
from outrider.core.target.state import Room, Rows
from outrider.core.target.where import Tree, Where

from .layer import Layer

CHUNK = 512  # rows of one pass; fewer wait until a draft is asked for


@dataclass(frozen=True, slots=True)
class Heard:
    """Tokens in a row whose states are known, not yet in the layer's memory."""

    position: int  # of the first token
    tokens: Tensor  # [S]
    states: Tensor  # [S, n, D]

    def cut(self, length: int) -> Heard:
        """Without tokens at and beyond `length`."""
        keep = max(0, length - self.position)
        return Heard(self.position, self.tokens[:keep], self.states[:keep])


class Trail:
    """Rows of one conversation, `capacity` with scratch."""

    def __init__(self, layer: Layer, room: Room) -> None:
        self._layer, self._room = layer, room
        made = layer.attention.new_state(room)
        assert isinstance(made, Rows)
        self._rows = made
        self.clear()

    def clear(self) -> None:
        """Forget the conversation."""
        self._positions: list[int] = []  # of the true rows, ascending
        self._waiting: list[Heard] = []
        self._feature: Tensor | None = None  # [1, d] output of the newest row
        self.wipe()

    def wipe(self) -> None:
        """Zero all that is not a true row: what is no number would spread from there, masked or not."""
        for part in self._rows.parts:
            part[len(self._positions) :] = 0

    def fork(self) -> Trail:
        """A copy that goes its own way."""
        copy = Trail(self._layer, self._room)
        for ours, theirs in zip(self._rows.parts, copy._rows.parts, strict=True):
            theirs.copy_(ours)
        copy._positions, copy._waiting = list(self._positions), list(self._waiting)
        copy._feature = self._feature
        return copy

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._rows.nbytes

    def hear(self, step: Step) -> None:
        """Take up the tokens of `step` that have a state."""
        known = 0 if step.hidden is None else step.hidden.shape[0]
        if step.hidden is None or not known:
            return
        first = step.start + step.tokens.shape[0] - known
        self._waiting.append(Heard(first, step.tokens[-known:], step.hidden))
        if sum(some.tokens.shape[0] for some in self._waiting) >= CHUNK:
            self._catch_up()

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        self._waiting = [some.cut(length) for some in self._waiting if some.position < length]
        rows = bisect_left(self._positions, length - 1)  # the row of a token stands one before it
        if rows < len(self._positions):
            del self._positions[rows:]
            self._feature = None
            self.wipe()

    def feature(self, length: int) -> Tensor | None:
        """Output [1, d] of the newest of `length` tokens; None where its state is not known."""
        self._catch_up()
        if not self._positions or self._positions[-1] != length - 2:
            return None
        return self._feature

    def scratch(self, ids: Tensor, states: Tensor, depths: Tensor, seen: Tensor) -> Tensor:
        """Features [S, d] of guessed tokens [S] with states [S, d], written behind the scratch rows of this draft.

        `depths` [T]: how far below the newest token each scratch row stands, the last S being these; `seen` [S, T].
        """
        positions = depths.to(self._room.device) + self._positions[-1]
        return self._pass(ids, states, positions, seen)

    def _pass(self, ids: Tensor, states: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        device, base = self._room.device, len(self._positions)
        rows, loose = seen.shape
        tree = Tree(base, positions, seen.to(device))
        where = Where(base + loose - rows, rows, self._layer.tables, self._room.dtype, device, tree)
        return self._layer(ids, states, where, self._rows)

    @torch.inference_mode()
    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        device = self._room.device
        at = [some.position + index - 1 for some in waiting for index in range(some.tokens.shape[0])]
        ids = torch.cat([some.tokens for some in waiting]).to(device)
        states = torch.cat([some.states for some in waiting]).to(device, self._room.dtype)
        seen = torch.ones(len(at), len(at), dtype=torch.bool, device=device).tril()
        made = self._pass(ids, self._layer.entry.fuse(states), torch.tensor(at, device=device), seen)
        self._positions += at
        self._feature = made[-1:]
