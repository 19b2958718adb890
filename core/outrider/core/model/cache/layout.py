"""Where a pass stands: positions, rope rows and masks, made once and shared by all layers.

Letters: `S` tokens of the pass, `C` visible rows, `G` query heads for each key head, `h` head size, `R` rows of a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.model.families.spec import RopeSpec

FOLD_ROWS = 32  # up to here query groups are folded into rows, so that keys and values are read without expanding them

LOOSE = 64  # rows that a `TreeMask` can tell apart
SPAN = 64  # a pass looks at a multiple of this many rows
SCORES = 1 << 26  # scores that are computed at once where they have to be written down

Tables = dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]]  # by rope and head size: cos and signed sin [C, h]


def padded(length: int) -> int:
    """Rows that a pass reads for `length` tokens, the rest masked.

    Sums over a row of scores are split by its length; with a length that only grows in steps, and masked entries that add
    exact zeros, a token's result does not depend on how many tokens share its pass.
    """
    return -(-length // SPAN) * SPAN


def fitting(each: int) -> int:
    """Rows whose scores, `each` of them for a row, may be written down together."""
    return max(1, SCORES // each)


class TreeMask(NamedTuple):
    """Whom each row of a pass sees, without a mask: all rows below `base`, and loose rows from there on by bits.

    A window further hides whatever is `window` positions or more before a row's own; below `base` the row number is the
    position.
    """

    base: Tensor  # [1] int64
    positions: Tensor  # [S] int64, of the pass's rows
    loose: Tensor  # [T] int64, positions of the rows from `base` on
    bits: Tensor  # [S] int64: bit t tells whether loose row t is seen


class KVSlots(NamedTuple):
    """Where the rows of a pass stand in one layer."""

    slots: Tensor  # [S] int64: where their keys and values go, of the C rows held
    ring: int  # row r is held in slot r mod ring; 0: in slot r
    cos: Tensor | None  # [S, h]; None: no rope
    sin: Tensor | None  # [S, h], signed as in `rope.table`
    sight: TreeMask


class DeviceStart(NamedTuple):
    """The start of a still pass."""

    base: Tensor  # [1] int64, on the device
    end: int  # rows that full attention reads at whatever length


class PaddedStart(NamedTuple):
    """The start of a pass whose shapes depend on nothing that changes, so that no row's result does: exact mode on the host."""

    start: int
    end: int  # as in `DeviceStart`
    real: int  # rows that count; the others fill up the width


class Tree(NamedTuple):
    """Who sees whom where tokens do not stand in one line.

    Rows below `base` are seen by all. From there on are T rows that nobody has committed; the last S are the pass's own.
    """

    base: int | Tensor  # [1] in a still pass
    positions: Tensor  # [T] of these rows
    seen: Tensor  # [S, T] bool: which of them each row of the pass sees


def tree_of(parents: Sequence[int], base: int, device: torch.device) -> Tree:
    """The tree of a draft: row 0 is the root, row 1 + i node i, whose parent is node `parents[i]`, -1 the root."""
    layout = layout_of(tuple(parents))
    return Tree(base, (layout.depth + base).to(device), layout.seen.to(device))


def depths_of(parents: Sequence[int]) -> list[int]:
    """The depth of each node by its parent; those of the root, -1, have depth 0."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


class TreeLayout(NamedTuple):
    """How the `W` rows of a pass over a tree hang together; one pass serves every layout of a width."""

    depth: Tensor  # [W] int64 below the root
    parents: Tensor  # [W] int64: row of the parent; of the root itself
    seen: Tensor  # [W, W] bool: ancestors and itself


@lru_cache(maxsize=64)
def layout_of(parents: tuple[int, ...]) -> TreeLayout:
    """The layout of a draft by the parent of each node, -1 the root; made once for each topology."""
    depth = torch.tensor([0, *(1 + depth for depth in depths_of(parents))])
    seen = torch.eye(1 + len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        seen[node + 1] |= seen[parent + 1]
    return TreeLayout(depth, torch.tensor([0, *(parent + 1 for parent in parents)]), seen)


def _bits(seen: Tensor) -> Tensor:
    """[S, T <= 64] bool -> [S] with bit t for loose row t."""
    return (seen.to(torch.int64) << torch.arange(seen.shape[1], device=seen.device)).sum(1)


@lru_cache(maxsize=256)
def _line(rows: int, device: torch.device) -> Tensor:
    """`_bits` of rows that stand one after another."""
    return _bits(torch.ones(rows, rows, dtype=torch.bool).tril()).to(device)


class PassLayout:
    """`rows` tokens that are written from row `start` on; without a tree the row is the position.

    A *still* pass has its start on the device, so that one captured graph serves every length: nothing here depends on the
    value, and full attention reads the first `end` rows whatever the length is. So it does in a *fixed* pass.
    """

    def __init__(
        self,
        start: int | DeviceStart | PaddedStart,
        rows: int,
        tables: Tables,
        dtype: torch.dtype,
        device: torch.device,
        tree: Tree | None = None,
    ) -> None:
        self.rows, self.tree = rows, tree
        self.folds = rows <= FOLD_ROWS  # whether query groups go into rows
        self.real = start.real if isinstance(start, PaddedStart) else 0  # 0: all, and no shape is fixed
        if isinstance(start, DeviceStart):
            self.still, self.start, self.base = True, 0, start.base
            self.stop, self.end = 0, start.end
            self.index = start.base + torch.arange(rows, device=device)  # [S] rows that are written
        else:
            self.still, self.start = False, start.start if isinstance(start, PaddedStart) else start
            self.stop = self.start + rows
            self.end = (
                start.end if isinstance(start, PaddedStart) else padded(self.stop)
            )  # rows that full attention reads
            self.index = torch.arange(self.start, self.stop, device=device)
        self.positions = self.index if tree is None else tree.positions[-rows:]  # [S]
        self.wide: tuple[object, list[Tensor]] | None = None  # what the last ring gave to a pass wider than itself
        self._tables, self._dtype, self._device = tables, dtype, device
        self._ropes: dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int, int], Tensor] = {}
        self._slots: dict[int, Tensor] = {}
        self._sight: TreeMask | None = None
        self._parts: list[tuple[slice, PassLayout]] | None = None

    @property
    def sight(self) -> TreeMask | None:
        """Who sees whom, as fused kernels read it; None where there are too many rows for that."""
        if self._sight is None:
            if self.tree is None and self.rows <= LOOSE:
                base = self.base if self.still else torch.full((1,), self.start, device=self._device)
                self._sight = TreeMask(base, self.positions, self.positions, _line(self.rows, self._device))
            elif self.tree is not None and self.tree.positions.shape[0] <= LOOSE:
                base = self.tree.base
                base = base if isinstance(base, Tensor) else torch.full((1,), base, device=self._device)
                self._sight = TreeMask(base, self.positions, self.tree.positions, _bits(self.tree.seen))
        return self._sight

    @property
    def parts(self) -> list[tuple[slice, PassLayout]]:
        """A wide pass as passes that fused kernels take, with the rows of each; none where it is no plain line of tokens."""
        if self._parts is None:
            starts = () if self.tree is not None or self.still or self.real else range(0, self.rows, LOOSE)
            slices = [slice(at, min(at + LOOSE, self.rows)) for at in starts]
            self._parts = [(rows, self._part(rows)) for rows in slices]
        return self._parts

    def _part(self, rows: slice) -> PassLayout:
        return PassLayout(self.start + rows.start, rows.stop - rows.start, self._tables, self._dtype, self._device)

    def first(self, window: int) -> int:
        """First row that a layer of this window reads; a multiple of SPAN, as `end` is."""
        base = self.start if self.tree is None else self.tree.base
        if isinstance(base, Tensor) or self.real:  # a still or fixed pass reads from the beginning
            return 0
        return max(0, base + 1 - window) // SPAN * SPAN if window else 0

    def slots(self, ring: int) -> Tensor:
        """Where these rows are in a ring of so many, [S]."""
        if ring not in self._slots:
            self._slots[ring] = self.index % ring
        return self._slots[ring]

    def rope(self, rope: RopeSpec, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of these positions, each [S, 1, h]."""
        key = (rope, head_dim)
        if key not in self._ropes:
            line = self.tree is None and not self.still
            at = slice(self.start, self.stop) if line else self.positions
            cos, sin = self._tables[key]
            self._ropes[key] = cos[at, None], sin[at, None]
        return self._ropes[key]

    def mask(self, window: int, groups: int, ring: int = 0) -> Tensor:
        """Additive mask [G S, C] (or [S, C] for many rows): causal, and within the window.

        Columns are rows from `first` to `end`, or the slots of a ring of so many rows once the pass has written to it.
        """
        key = (window, groups, ring)
        if key not in self._masks:
            rows = self._held(ring) if ring else torch.arange(self.first(window), self.end, device=self._device)  # [C]
            seen, hidden = rows, rows > self.positions[:, None]  # [C], [S, C]
            if self.tree is not None:
                seen, hidden = self._among(self.tree, rows)
            if window:
                hidden |= seen <= self.positions[:, None] - window
            if ring:
                hidden |= rows < 0
            mask = torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
            self._masks[key] = mask.repeat(groups, 1) if self.folds else mask
        return self._masks[key]

    def _among(self, tree: Tree, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Position of each row [C], and whether it is hidden from each of the pass's rows [S, C]."""
        count = tree.positions.shape[0]
        loose = rows >= tree.base
        there = loose & (rows < tree.base + count)
        which = (rows - tree.base).clamp(0, count - 1)
        hidden = torch.where(there, ~tree.seen[:, which], loose.expand(self.rows, -1))
        return torch.where(there, tree.positions[which], rows), hidden

    def _held(self, ring: int) -> Tensor:
        """The row in each slot that is read, below 0 where there is none yet, [C]."""
        newest = self.index[-1]
        return newest - (newest - torch.arange(min(self.end, ring), device=self._device)) % ring
