"""What a conversation leaves in each layer, and how it is rolled back.

Keys, values and latents are rows by position: rolling back moves a length. Recurrent and convolution states cannot be cut,
so they keep one state for every token of the last pass and are committed by index; further back only snapshots reach.

Letters: `C` capacity in tokens, `K` key/value heads, `h` head size, `S` tokens of a pass.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

SPAN = 64  # a pass looks at a multiple of this many rows
SNAPSHOTS = 6  # kept for each conversation, newest and longest-lived first to stay


def span(length: int) -> int:
    """Rows that a pass reads for `length` tokens, the rest masked.

    Sums over a row of scores are split by its length; with a length that only grows in steps, and masked entries that add
    exact zeros, a token's result does not depend on how many tokens share its pass.
    """
    return -(-length // SPAN) * SPAN


class State(Protocol):
    """One layer's memory of a conversation."""

    cut: bool  # can be rolled back to any earlier length

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        ...

    def commit(self, length: int) -> bool:
        """The first `length` tokens are true; False if that state is no longer known."""
        ...

    def snapshot(self) -> object:
        """What `restore` needs to come back to the committed length."""
        ...

    def restore(self, kept: object, length: int) -> None:
        """Back to a snapshot taken at `length`."""
        ...


class Rows:
    """Rows by position, [span(C), ...]: keys, values, latents. Those at and beyond the length are scratch."""

    cut = True

    def __init__(self, capacity: int, *shapes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.parts = [torch.zeros((span(capacity), *shape), dtype=dtype, device=device) for shape in shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    def write(self, positions: Tensor, *rows: Tensor) -> None:
        """Put rows [S, ...] at `positions` [S]."""
        for part, new in zip(self.parts, rows, strict=True):
            part.index_copy_(0, positions, new)

    def commit(self, length: int) -> bool:
        """Any length will do."""
        return True

    def snapshot(self) -> None:
        """Nothing: rows stay where they are."""

    def restore(self, kept: object, length: int) -> None:
        """Nothing to do."""


class Recurrent:
    """A state that is overwritten, [...]: after a pass there is one for each of its tokens, `commit` picks one."""

    cut = False

    def __init__(self, *parts: tuple[tuple[int, ...], torch.dtype], device: torch.device) -> None:
        self.now = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in parts]
        self.length = 0
        self._base = 0
        self._states = [self.now]  # before the last pass, then after each of its tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the committed state."""
        return sum(part.nbytes for part in self.now)

    def passed(self, after: list[list[Tensor]]) -> None:
        """The states after each token of a pass that began at the committed length."""
        self._base, self._states = self.length, [self.now, *after]

    def commit(self, length: int) -> bool:
        """Pick the state after `length` tokens, if the last pass went through it."""
        if length == self.length:
            return True
        index = length - self._base
        if 0 <= index < len(self._states):
            self.now, self.length = self._states[index], length
            return True
        return False

    def snapshot(self) -> list[Tensor]:
        """The committed state; tensors are never written in place, so no copy is needed."""
        return list(self.now)

    def restore(self, kept: object, length: int) -> None:
        """Back to a snapshot."""
        assert isinstance(kept, list)
        self.now, self.length, self._base = list(kept), length, length
        self._states = [self.now]


class Cache:
    """The states of all layers; a layer that reads another's has None."""

    def __init__(self, states: list[State | None], capacity: int) -> None:
        self.states = states
        self.capacity = capacity
        self.length = 0
        self._recurrent = [state for state in states if state is not None and not state.cut]
        self._kept: dict[int, list[object]] = {0: [state.snapshot() for state in self._recurrent]}

    @property
    def cut(self) -> bool:
        """Whether every state can be rolled back to any length."""
        return not self._recurrent

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(state.nbytes for state in self.states if state is not None)

    def commit(self, length: int) -> None:
        """The first `length` tokens of what the last pass saw are true. Raises ValueError where no state is known."""
        if not 0 <= length <= self.capacity:
            raise ValueError(f"length {length} outside a cache of {self.capacity}")
        for state in self._recurrent:
            if not state.commit(length):
                raise ValueError(f"no state is known after {length} tokens")
        self.length = length

    def keep(self) -> None:
        """Take a snapshot at the committed length, for later rewinds."""
        if self._recurrent:
            self._kept[self.length] = [state.snapshot() for state in self._recurrent]
            for old in sorted(self._kept)[1 : -SNAPSHOTS + 1]:
                del self._kept[old]

    def rewind(self, length: int) -> int:
        """Back to `length`, or to the nearest earlier length whose state is known; returns which."""
        if all(state.commit(length) for state in self._recurrent):
            reached = length
        else:
            reached = max(at for at in self._kept if at <= length)
            for state, kept in zip(self._recurrent, self._kept[reached], strict=True):
                state.restore(kept, reached)
        for later in [at for at in self._kept if at > reached]:
            del self._kept[later]
        self.length = reached
        return reached
