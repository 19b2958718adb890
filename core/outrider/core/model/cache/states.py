"""What a conversation leaves in each layer, and how it is rolled back.

Keys, values and latents are rows by position: rolling back moves a length. A sliding layer with much room keeps a ring of its
newest rows and can be cut back by its slack. Recurrent and convolution states cannot be cut: they keep what leads from the
state before the last pass to the one after any of its tokens. Further back only snapshots reach.

Letters: `C` rows read, `K` key/value heads, `h` head size, `S` tokens of a pass, `R` rows of a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .early_exit import EarlyStates
from .layout import PassLayout, padded

Count = int | Tensor  # tokens; [1] where only the device knows
MAX_DRAFT_ROWS = 64  # rows of the widest draft; wider passes are prefill, which is committed whole
RINGS = 2.0  # a sliding layer keeps a ring where the capacity is more than so many times its rows
SNAPSHOTS = 6  # kept for each conversation, newest and longest-lived first to stay


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What every layer makes its state of a new conversation from."""

    capacity: int  # tokens
    dtype: torch.dtype
    device: torch.device
    slack: int = MAX_DRAFT_ROWS
    rings: float = RINGS


class State(Protocol):
    """One layer's memory of a conversation."""

    cut: bool  # can be rolled back to any earlier length, with no snapshot

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        ...

    def commit(self, length: int) -> bool:
        """The first `length` tokens are true; False if that state is no longer known."""
        ...

    def snapshot(self, length: int) -> object:
        """What `restore` needs to come back to the committed `length`."""
        ...

    def restore(self, snapshot: object, length: int) -> None:
        """Back to a snapshot taken at `length`."""
        ...


class KVCache:
    """Rows by position, [padded(capacity), ...]: keys, values, latents. Those at and beyond the length are scratch."""

    cut = True

    def __init__(self, rows: int, shapes: tuple[tuple[int, ...], ...], window: int, room: CacheConfig) -> None:
        self.window = window
        self.parts = [torch.zeros((rows, *shape), dtype=room.dtype, device=room.device) for shape in shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    def take(self, where: PassLayout, *new: Tensor) -> list[Tensor]:
        """Write the pass's rows [S, ...] of each part, if any come; the rows [C, ...] that the pass reads, as `mask` has them."""
        if new:
            self._put(where.index, new)
        return [part[where.first(self.window) : where.end] for part in self.parts]

    def place(self, where: PassLayout) -> tuple[Tensor, int] | None:
        """For a kernel that writes and reads `parts` itself: the slots of the pass's rows, and `ops.Place.ring`.

        None for a pass that has to go through `take`.
        """
        return where.index, 0

    def takes_parts(self, source: bool) -> bool:
        """Whether a layer may go through a wide pass a few rows at a time; `source`: it reads what another layer has written."""
        return True

    def _put(self, at: Tensor, new: Sequence[Tensor]) -> None:
        for part, rows in zip(self.parts, new, strict=True):
            part.index_copy_(0, at, rows.to(part.device))

    def move(self, old: Tensor, new: Tensor) -> None:
        """Rows of an accepted path take their places; `old` and `new` [m] count rows as passes do."""
        for part in self.parts:
            part[new] = part[old]

    @torch.inference_mode()
    def wipe(self, length: int) -> None:
        """Zero what is no true row; what is no number would spread from there, masked or not. A ring loses all."""
        for part in self.parts:
            part[length:] = 0

    def mask(self, where: PassLayout, groups: int) -> Tensor:
        """The additive mask over the rows that `take` gives."""
        return where.mask(self.window, groups)

    def ordered(self, length: int) -> list[Tensor]:
        """Rows in order of position, C of them: row i is that of position max(0, length - C) + i."""
        return self.parts

    def commit(self, length: int) -> bool:
        """Any length will do."""
        return True

    def snapshot(self, length: int) -> object:
        """Nothing: rows stay where they are."""
        return None

    def restore(self, snapshot: object, length: int) -> None:
        """Nothing to do."""


class SlidingKVCache(KVCache):
    """The newest rows of a sliding layer, [R, ...]: position p is in slot p mod R, R = window - 1 + slack or a little more.

    A pass of at most the slack writes and reads the ring in place: the order of slots depends on the position alone, so sums do
    not depend on the pass's width. A wider pass reads the window before it and its own rows, in order of position as `KVCache`
    do, and leaves its newest rows in the ring.
    """

    cut = False

    def __init__(self, rows: int, shapes: tuple[tuple[int, ...], ...], window: int, room: CacheConfig) -> None:
        super().__init__(rows, shapes, window, room)
        self.rows = rows
        self.slack = rows - (window - 1)
        self._floor = 0  # the least length whose window is still here

    def take(self, where: PassLayout, *new: Tensor) -> list[Tensor]:
        """As `KVCache`."""
        if where.rows > self.slack:
            return self._take_wide(where, new)
        if new:
            self._put(where.slots(self.rows), new)
            self.wrote(where.stop)
        return [part[: min(where.end, self.rows)] for part in self.parts]

    def place(self, where: PassLayout) -> tuple[Tensor, int] | None:
        """As `KVCache`."""
        if where.rows > self.slack:
            return None
        self.wrote(where.stop)
        return where.slots(self.rows), self.rows

    def takes_parts(self, source: bool) -> bool:
        """As `KVCache`: where it was written to the end of the pass, what the first rows see is gone."""
        return self.slack >= MAX_DRAFT_ROWS and not source

    def _take_wide(self, where: PassLayout, new: tuple[Tensor, ...]) -> list[Tensor]:
        if not new:  # layers share with the last one of their kind that writes, so the rows of one ring are enough
            assert where.wide is not None and where.wide[0] is self
            return where.wide[1]
        first = where.first(self.window)
        before = self._slots(first, where.start)
        seen = [part.new_zeros((where.end - first, *part.shape[1:])) for part in self.parts]
        for part, read, rows in zip(self.parts, seen, new, strict=True):
            read[: where.start - first] = part[before]
            read[where.start - first : where.stop - first] = rows
        self._put(where.slots(self.rows)[-self.rows :], [rows[-self.rows :] for rows in new])
        self.wrote(where.stop)
        where.wide = self, seen
        return seen

    def advanced(self, length: int, stop: int) -> None:
        """As `Cache.advanced`."""
        self.wrote(stop)

    def wipe(self, length: int) -> None:
        """As `KVCache`."""
        super().wipe(0)

    def wrote(self, stop: int) -> None:
        """Rows up to `stop` are written."""
        if stop > self.rows:
            self._floor = max(self._floor, stop - self.slack)

    def _slots(self, first: int, stop: int) -> Tensor:
        return torch.arange(first, stop, device=self.parts[0].device) % self.rows

    def move(self, old: Tensor, new: Tensor) -> None:
        """As `KVCache`."""
        super().move(old % self.rows, new % self.rows)

    def mask(self, where: PassLayout, groups: int) -> Tensor:
        """As `KVCache`."""
        return where.mask(self.window, groups, 0 if where.rows > self.slack else self.rows)

    def ordered(self, length: int) -> list[Tensor]:
        """The window - 1 rows below `length`, or all there are: what a token at `length` sees besides itself."""
        slots = self._slots(max(0, length + 1 - self.window), length)
        return [part[slots] for part in self.parts]

    def commit(self, length: int) -> bool:
        """Whether the window before `length` is still here."""
        return length >= self._floor

    def snapshot(self, length: int) -> object:
        """`ordered`, in main memory: a handful of windows could cost a GPU more than the ring saves."""
        return [rows.cpu() for rows in self.ordered(length)]

    def restore(self, snapshot: object, length: int) -> None:
        """Put a snapshot's rows back."""
        assert isinstance(snapshot, list)
        self._put(self._slots(max(0, length + 1 - self.window), length), snapshot)
        self._floor = length if length >= self.window else 0


def new_rows(room: CacheConfig, *shapes: tuple[int, ...], window: int = 0) -> KVCache:
    """The state of a layer that keeps rows of these shapes: a ring where it slides and that saves memory."""
    ring = padded(window - 1 + room.slack)
    if window and room.capacity > room.rings * ring:
        return SlidingKVCache(ring, shapes, window, room)
    return KVCache(padded(room.capacity), shapes, window, room)


class Recurrent:
    """A state that is overwritten, [...]: `commit` picks the one after any token of the last pass, or the one before it.

    Of a pass wider than the slack only the end is kept: a copy for each token would be far too much. Still passes write what
    they settle on into tensors that stay where they are, `pin` puts the state there. Other tensors are never written again,
    but those of a captured pass when it runs again.
    """

    cut = False

    def __init__(self, room: CacheConfig, *parts: tuple[tuple[int, ...], torch.dtype]) -> None:
        self.slack = room.slack
        self.now = [torch.zeros(shape, dtype=dtype, device=room.device) for shape, dtype in parts]
        self._held: list[Tensor] = []
        self.length = 0
        self._begin(range(0), lambda count: self.now)

    def _begin(self, known: range, after: Callable[[Count], list[Tensor]]) -> None:
        self._base, self._before = self.length, self.now
        self._known, self.after = known, after

    @property
    def nbytes(self) -> int:
        """Bytes of the committed state."""
        return sum(part.nbytes for part in self.now)

    def passed(self, count: int, after: Callable[[Count], list[Tensor]]) -> None:
        """A pass of `count` tokens began at the committed length; `after(n)` makes the state behind the first n of them.

        `after` may hold the pass's inputs. In a still pass n is a tensor [1].
        """
        if count <= self.slack:
            self._begin(range(1, count + 1), after)
            return
        end = after(count)
        self._begin(range(count, count + 1), lambda _: end)

    def pin(self) -> None:
        """Put the committed state where still passes find and leave it."""
        if not self._held:
            self._held = [part.clone() for part in self.now]
        elif self.now is not self._held:
            for place, part in zip(self._held, self.now, strict=True):
                place.copy_(part)
        self.now = self._held
        self._begin(range(0), lambda _: self.now)

    def settle(self, count: Tensor) -> None:
        """The first `count` [1] tokens of a still pass are true."""
        for place, part in zip(self._held, self.after(count), strict=True):
            place.copy_(part)

    def advanced(self, length: int, stop: int) -> None:
        """As `Cache.advanced`."""
        self.length = length
        self._begin(range(0), lambda _: self.now)

    @torch.inference_mode()
    def commit(self, length: int) -> bool:
        """Pick the state after `length` tokens, if the last pass went through it."""
        if length == self.length:
            return True
        count = length - self._base
        if count == 0:
            self.now = self._before
        elif count in self._known:
            self.now = self.after(count)
        else:
            return False
        self.length = length
        return True

    def snapshot(self, length: int) -> object:
        """The committed state; a copy where captured passes write the same tensors again and again."""
        return [part.clone() for part in self.now] if self._held else list(self.now)

    def restore(self, snapshot: object, length: int) -> None:
        """Back to a snapshot."""
        assert isinstance(snapshot, list)
        self.now, self.length = list(snapshot), length
        self._begin(range(0), lambda _: self.now)


class Cache:
    """The states of all layers; a layer that reads another's has None."""

    def __init__(self, states: list[State | None], capacity: int) -> None:
        self.states = states
        self.capacity = capacity
        self.length = 0
        self.early_states: EarlyStates | None = None  # of tokens behind the length
        self._bound = [state for state in states if state is not None and not state.cut]
        self.cut = not self._bound
        """Whether every state can be rolled back to any length."""
        self.forgets = any(isinstance(state, Recurrent) for state in self._bound)
        """Whether a state of even the newest tokens is gone once the next pass has begun."""
        self.trees = not self.forgets
        """Whether a pass may hold a tree: a state that is overwritten knows one line of tokens only."""
        self._kept: dict[int, list[object]] = {0: [state.snapshot(0) for state in self._bound]}

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(state.nbytes for state in self.states if state is not None)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """The first `length` tokens of what the last pass saw are true. Raises ValueError where no state is known.

        After a tree, `path` are the rows of the pass that are true, in order, and they are moved one after another.
        """
        if not 0 <= length <= self.capacity:
            raise ValueError(f"length {length} outside a cache of {self.capacity}")
        if path is not None and list(path) != list(range(len(path))):
            old = torch.tensor(path) + self.length
            new = torch.arange(self.length, self.length + len(path))
            for state in self.states:
                if isinstance(state, KVCache):
                    device = state.parts[0].device
                    state.move(old.to(device), new.to(device))
        for state in self._bound:
            if not state.commit(length):
                raise ValueError(f"no state is known after {length} tokens")
        self.length, self.early_states = length, None

    def pin(self) -> None:
        """Get ready for still passes: every state is where it will stay."""
        for state in self._bound:
            if isinstance(state, Recurrent):
                state.pin()

    def settle(self, base: Tensor, count: Tensor, path: Tensor | None = None) -> None:
        """Within a still pass from `base` [1] on: its first `count` [1] tokens are true, or of a tree the rows `path` [S].

        `path` continues with the rows' own numbers after the last true one, so that what is moved there stays the same.
        """
        for state in self.states:
            if isinstance(state, Recurrent):
                state.settle(count)
            elif path is not None and isinstance(state, KVCache):
                state.move(base + path, base + torch.arange(path.shape[0], device=path.device))

    @property
    def pinned(self) -> list[Tensor]:
        """What still passes overwrite that is not scratch."""
        return [part for state in self._bound if isinstance(state, Recurrent) for part in state.now]

    def afters(self) -> list[tuple[Recurrent, Callable[[Count], list[Tensor]]]]:
        """What leads on from the last pass, for `replayed`."""
        return [(state, state.after) for state in self._bound if isinstance(state, Recurrent)]

    def replayed(self, afters: Sequence[tuple[Recurrent, Callable[[Count], list[Tensor]]]], rows: int) -> None:
        """A captured pass of so many rows, whose `afters` these are, has run again from the committed length."""
        for state, after in afters:
            state.passed(rows, after)
        for state in self._bound:
            if isinstance(state, SlidingKVCache):
                state.advanced(self.length, self.length + rows)

    def advanced(self, length: int, stop: int) -> None:
        """Still passes have ended: `length` tokens are true, rows up to `stop` were written."""
        for state in self._bound:
            if isinstance(state, Recurrent | SlidingKVCache):
                state.advanced(length, stop)
        self.length, self.early_states = length, None

    def snapshot(self) -> None:
        """Take a snapshot at the committed length, for later rewinds."""
        if self._bound:
            self._kept[self.length] = [state.snapshot(self.length) for state in self._bound]
            for old in sorted(self._kept)[1 : -SNAPSHOTS + 1]:
                del self._kept[old]

    def rewind(self, length: int) -> int:
        """Back to `length`, or to the nearest earlier length whose state is known; returns which."""
        if all(state.commit(length) for state in self._bound):
            reached = length
        else:
            reached = max(at for at in self._kept if at <= length)
            for state, snapshot in zip(self._bound, self._kept[reached], strict=True):
                state.restore(snapshot, reached)
        for later in [at for at in self._kept if at > reached]:
            del self._kept[later]
        self.length, self.early_states = reached, None
        return reached
