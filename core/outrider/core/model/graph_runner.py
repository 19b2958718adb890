"""The graph runner of one conversation: passes of a few fixed widths whose start only the device knows, each captured once.

A draft is filled up to the next width of the ladder; what follows it is scratch. The host tells the runner where the
conversation stands (`seek`) only when the two have come apart.

Letters: `W` rows of a pass, `V` vocabulary, `d` width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core.model.cache.layout import DeviceStart, Tree, TreeLayout, layout_of, padded
from outrider.core.model.cache.states import Cache, Recurrent

from .capture import Capture, Job
from .decoder import Decoder, Pass

WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 64)
LEAST_END = 1024  # rows that a pass reads at least, where that is fixed


@dataclass(slots=True)
class DraftInputs:
    """What the host writes for one pass, and how the device reads it: [4, W] tokens, depths, parents, ancestors as bits."""

    rows: Tensor
    line: bool  # chains only: the first row is all there is

    @staticmethod
    def on(width: int, device: torch.device, *, line: bool) -> DraftInputs:
        """An empty chain."""
        inputs = DraftInputs(torch.zeros(4, width, dtype=torch.int64, device=device), line)
        inputs.write([0], None)
        return inputs

    @torch.inference_mode()
    def write(self, tokens: Sequence[int], parents: Sequence[int] | None) -> None:
        """The root, then a draft: a chain, or a tree by the node above each, -1 the root. Missing nodes have id -1."""
        width = self.rows.shape[1]
        rows = torch.full((4, width), -1, dtype=torch.int64, pin_memory=self.rows.is_cuda)
        rows[0, : len(tokens)] = torch.tensor(tokens)
        if not self.line:
            given = list(range(-1, len(tokens) - 2)) if parents is None else list(parents)
            given += [-1] * (width - 1 - len(given))  # missing nodes are children of the root
            layout = layout_of(tuple(given))
            rows[1], rows[2] = layout.depth, layout.parents
            rows[3] = (layout.seen.to(torch.int64) << torch.arange(width)).sum(1)
        self.rows.copy_(rows, non_blocking=True)

    @torch.inference_mode()
    def place(self, tokens: Tensor, parents: Tensor | None) -> None:
        """A draft [n] whose tokens only the device knows, as `write`; `parents` [n] may be on either side."""
        count = tokens.shape[0]
        self.rows[0].fill_(-1)
        self.rows[0, 1 : 1 + count] = tokens
        if self.line:
            return
        up = torch.zeros(
            self.rows.shape[1], dtype=torch.int64, device=self.rows.device
        )  # missing nodes are children of the root
        if parents is not None:
            up[1 : 1 + count] = 1 + parents.to(up.device, non_blocking=True)
        self.rows[2] = up
        seen = torch.eye(up.shape[0], dtype=torch.bool, device=up.device)
        for _ in range(up.shape[0].bit_length()):  # each time twice as far up
            seen |= seen[up]
            up = up[up]
        self.rows[1] = seen.sum(1) - 1
        self.rows[3] = (seen.to(torch.int64) << torch.arange(seen.shape[0], device=seen.device)).sum(1)

    @property
    def tokens(self) -> Tensor:
        """The draft [W - 1], -1 where there is no node."""
        return self.rows[0, 1:]

    @property
    def layout(self) -> TreeLayout | None:
        """None for chains."""
        if self.line:
            return None
        bits = self.rows[3, :, None] >> torch.arange(self.rows.shape[1], device=self.rows.device)
        return TreeLayout(self.rows[1], self.rows[2], (bits & 1).bool())


@dataclass(slots=True)
class CapturedPass:
    """One pass of the runner: what it reads, what it left."""

    inputs: DraftInputs
    run: Job = lambda: None
    logits: Tensor | None = None  # [W, V]
    hidden: Tensor | None = None  # [W, states asked for, d]
    afters: Sequence[tuple[Recurrent, Callable[..., list[Tensor]]]] = ()
    fresh: bool = True  # has not run yet: the first time pays for the capture


def reach(stop: int, whole: int) -> int:
    """Rows that a pass up to row `stop` reads, of `whole`: the next of a few, since each is captured apart."""
    end = LEAST_END
    while end < stop:
        end *= 2
    return min(end, whole)


class GraphRunner:
    """Fixed passes over the states of one conversation; `lines`: none of them ever holds a tree.

    `fixed`: all have so many rows and read the whole buffer, for exact mode.
    """

    def __init__(
        self, decoder: Decoder, cache: Cache, capture: Capture, *, lines: bool = False, fixed: int = 0
    ) -> None:
        self.decoder, self.cache, self.capture = decoder, cache, capture
        self.lines = lines or not cache.trees
        self.fixed = fixed
        device = decoder.device
        self.base = torch.zeros(1, dtype=torch.int64, device=device)  # committed tokens
        self.root = torch.zeros(1, dtype=torch.int64, device=device)  # the newest token, which has no row yet
        self.shared: dict[str, Any] = {}  # what captured work reads beside these, by name
        self._stands: tuple[int, int] | None = None  # what the two hold, if the host knows
        self._passes: dict[tuple[object, ...], CapturedPass] = {}
        self._early: dict[tuple[int, ...], Callable[..., Tensor]] = {}

    @staticmethod
    def width(rows: int) -> int:
        """The next width of the ladder. Raises ValueError beyond the last."""
        for width in WIDTHS:
            if width >= rows:
                return width
        raise ValueError(f"no pass has {rows} rows")

    def wide(self, rows: int) -> int:
        """The width of a pass of so many rows here."""
        return self.fixed or self.width(rows)

    def end(self, length: int, width: int) -> int:
        """Rows that full attention reads at a length: all of them where that costs nothing, else the next of a few."""
        whole = padded(self.cache.capacity)
        return whole if self.fixed or self.decoder.reads_what_is_there else reach(length + width, whole)

    @torch.inference_mode()
    def seek(self, length: int, root: int) -> None:
        """Move to `length` committed tokens, and the newest one."""
        if self._stands != (length, root):
            self.base.fill_(length)
            self.root.fill_(root)
            self._stands = length, root
        self.cache.pin()  # other passes may have put states elsewhere since

    def advanced(self, to: tuple[int, int] | None) -> None:
        """The device has moved on by itself, to a place that the host knows by now, or not yet."""
        self._stands = to

    def captured(self, key: tuple[object, ...], build: Callable[[], CapturedPass]) -> CapturedPass:
        """The pass of a key, captured when it is first asked for."""
        if key not in self._passes:
            captured_pass = build()
            captured_pass.run = self.capture.job(captured_pass.run, (self.base, self.root, *self.cache.pinned))
            self._passes[key] = captured_pass
        return self._passes[key]

    def body(self, captured_pass: CapturedPass, end: int, states: Sequence[int]) -> Pass:
        """The part of a captured job that runs the decoder over the root and the draft."""
        inputs, layout = captured_pass.inputs, captured_pass.inputs.layout
        ids = torch.cat((self.root, inputs.tokens.clamp(0, self.decoder.spec.vocab - 1)))
        tree = None if layout is None else Tree(self.base, self.base + layout.depth, layout.seen)
        result = self.decoder.still(ids, self.cache, DeviceStart(self.base, end), states=states, tree=tree)
        captured_pass.logits, captured_pass.hidden, captured_pass.afters = (
            result.logits,
            result.hidden,
            self.cache.afters(),
        )
        return result

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], parents: Sequence[int] | None, states: tuple[int, ...]) -> Pass:
        """As `TargetModel.forward` from the committed length on; the results are good until the next pass."""
        width, length = self.wide(len(ids)), self.cache.length
        end = self.end(length, width)

        def build() -> CapturedPass:
            captured_pass = CapturedPass(DraftInputs.on(width, self.decoder.device, line=self.lines))

            def work() -> None:
                self.body(captured_pass, end, states)

            captured_pass.run = work
            return captured_pass

        self.seek(length, ids[0])
        captured_pass = self.captured(("pass", width, end, states), build)
        captured_pass.inputs.write(ids, parents)
        captured_pass.run()
        self.cache.replayed(captured_pass.afters, width)
        assert captured_pass.logits is not None
        hidden = None if captured_pass.hidden is None else captured_pass.hidden[: len(ids)]
        return Pass(captured_pass.logits[: len(ids)], hidden)

    def early(self, ids: Tensor, start: int, layers: int) -> Tensor:
        """As `TargetModel.early`, on states that are not overwritten; the result is good until the next call."""
        rows = ids.shape[0]
        end = self.end(start, rows)
        key = rows, layers, end

        def work(ids: Tensor, start: Tensor) -> Tensor:
            return self.decoder.early(ids, self.cache, DeviceStart(start, end), layers)[layers]

        at = torch.tensor([start], device=self.decoder.device)
        if key not in self._early:
            self._early[key] = self.capture.function(work, (ids, at))
        result = self._early[key](ids, at)
        self.cache.replayed((), start + rows - self.cache.length)
        return result
