"""What an EAGLE draft remembers of one conversation: a row of keys and values for every token whose state is known.

The row of a token is made from its embedding and the target's state that produced it, and stands at that state's position.
A token without a known state (the first one, and those heard after a hot switch) has no row; positions stay true, so that
later rows see the others at their right distance. Rows behind the true ones are scratch: what a draft writes there is made from
fed-back states and never kept.

P-EAGLE drafts from one pass: behind the rows of tokens go masked ones, which stand for tokens that nobody knows yet.

Where there are graphs, short passes are filled up to a fixed width `W` and captured; what fills them is scratch.

Letters: `S` rows, `T` scratch rows, `n` states read, `D` width of the target, `d` of the draft.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import Step
from outrider.core.model.cache.layout import LOOSE, Still, Tree, Where
from outrider.core.model.cache.states import Room, Rows
from outrider.core.model.capture import Capture
from outrider.core.model.lane import Lane
from outrider.core.model.steps import Steps, filled

from .network import Network

CHUNK = 512  # rows of one pass; fewer wait until a draft is asked for
MOST = 64  # rows of a captured pass, and scratch rows that it may fill

Scratch = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # as `Trail.scratch`


@dataclass(frozen=True, slots=True)
class Heard:
    """Tokens in a row whose states are known, not yet in the layers' memory."""

    position: int  # of the first token
    tokens: Tensor  # [S]
    states: Tensor  # [S, n, D]

    def cut(self, length: int) -> Heard:
        """Without tokens at and beyond `length`."""
        keep = max(0, length - self.position)
        return Heard(self.position, self.tokens[:keep], self.states[:keep])


class Trail:
    """Rows of one conversation, `capacity` with scratch."""

    def __init__(self, network: Network, room: Room, graphs: Capture | None = None) -> None:
        self._network, self._room, self._graphs = network, room, graphs
        mixers = [block.attention for block in network.blocks]
        made = [mixer.new_state(room) for mixer in mixers]
        self._rows = [rows for rows in made if isinstance(rows, Rows)]  # all of them
        self._steps = None if graphs is None else Steps(graphs, self._rows[0].parts[0], mixers)
        self.clear()

    def clear(self) -> None:
        """Forget the conversation."""
        self._positions: list[int] = []  # of the true rows, ascending
        self._before = 0  # true rows before the last pass
        self._waiting: list[Heard] = []
        self._feature: Tensor | None = None  # [1, d] output of the newest row
        self.wipe()

    def undo(self) -> None:
        """Forget the tokens of the last pass: what is no number in a masked row has spread to them."""
        if self._before < len(self._positions):
            del self._positions[self._before :]
            self._feature = None
        self.wipe()

    def wipe(self) -> None:
        """Zero all that is not a true row: what is no number would spread from there, masked or not."""
        for rows in self._rows:
            rows.wipe(len(self._positions))

    def _parts(self) -> list[Tensor]:
        return [part for rows in self._rows for part in rows.parts]

    def fork(self) -> Trail:
        """A copy that goes its own way."""
        copy = Trail(self._network, self._room, self._graphs)
        for ours, theirs in zip(self._parts(), copy._parts(), strict=True):
            theirs.copy_(ours)
        copy._positions, copy._waiting = list(self._positions), list(self._waiting)
        copy._feature, copy._before = self._feature, self._before
        return copy

    @property
    def captured(self) -> bool:
        """Whether short passes are."""
        return self._steps is not None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(rows.nbytes for rows in self._rows)

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

    def ahead(self, length: int, masked: int) -> Tensor | None:
        """Features [1 + masked, d] of the newest of `length` tokens and of masked rows behind it, from one pass.

        None where the newest token's state is not known. Masked rows are scratch.
        """
        made = self._catch_up(masked)
        newest = self.feature(length)
        if newest is None or made is None or not masked:
            return newest
        return torch.cat((newest, made[-masked:]))

    def follow(self, token: int, feature: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Feature [1, d] and logits [1, Vd] behind a token that was guessed from `feature` [1, d].

        It stands `depth` places below the newest token, in the scratch row behind those of the guesses before it.
        """
        network = self._network
        if self._steps is None:
            ids, depths = torch.tensor([token], device=feature.device), torch.arange(1, depth + 1)
            made = self.scratch(ids, network.fed_back(feature), depths, torch.ones(1, depth, dtype=torch.bool))
            return made, network.logits(made)
        base = len(self._positions) + depth - 1
        end = self._steps.end(base + 1, self._rows[0])

        def work(sheet: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            made = self._still(sheet, end, network.fed_back(state))
            return made, network.logits(made)

        sheet = self._steps.told([token, self._positions[-1] + depth, base])
        return self._steps(("step", end), work, sheet, feature)

    def grown(
        self, grow: Callable[[Tensor, Scratch], tuple[Tensor, ...]], feature: Tensor, most: int
    ) -> tuple[Tensor, ...]:
        """What `grow` makes of the newest feature [1, d] and up to `most` scratch rows; it asks the device for no value."""
        if self._steps is None:
            return grow(feature, self.scratch)
        base = len(self._positions)
        end = self._steps.end(base + most, self._rows[0], masked=most > LOOSE)

        def work(sheet: Tensor, feature: Tensor) -> tuple[Tensor, ...]:
            base, newest = sheet.split(1)

            def scratch(ids: Tensor, states: Tensor, depths: Tensor, seen: Tensor) -> Tensor:
                rows, loose = seen.shape
                where = self._where(Still(base + (loose - rows), end), rows, Tree(base, depths + newest, seen))
                return self._network(ids, states, where, self._rows)

            return grow(feature, scratch)

        return self._steps(("tree", end), work, self._steps.told([base, self._positions[-1]]), feature)

    def scratch(self, ids: Tensor, states: Tensor, depths: Tensor, seen: Tensor) -> Tensor:
        """Features [S, d] of guessed tokens [S] with states [S, d], written behind the scratch rows of this draft.

        `depths` [T]: how far below the newest token each scratch row stands, the last S being these; `seen` [S, T].
        """
        positions = depths.to(self._room.device) + self._positions[-1]
        return self._pass(ids, states, positions, seen)

    def _pass(self, ids: Tensor, states: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        device, base = self._room.device, len(self._positions)
        rows, loose = seen.shape
        where = self._where(base + loose - rows, rows, Tree(base, positions, seen.to(device)))
        return self._network(ids, states, where, self._rows)

    def _where(self, start: int | Still, rows: int, tree: Tree) -> Where:
        return Where(start, rows, self._network.tables, self._room.dtype, self._room.device, tree)

    @torch.inference_mode()
    def _catch_up(self, masked: int = 0) -> Tensor | None:
        """One pass over the tokens that wait and so many masked rows behind the newest; features [S, d], None without rows."""
        waiting, self._waiting = self._waiting, []
        at = [some.position + index - 1 for some in waiting for index in range(some.tokens.shape[0])]
        known = len(at)
        if not known and not (masked and self._positions):
            return None
        network, device, dtype = self._network, self._room.device, self._room.dtype
        ids = [token for some in waiting for token in some.tokens.tolist()]
        states = [network.entry.fuse(some.states.to(device, dtype)) for some in waiting]
        if masked and network.mask is not None:
            newest = (at or self._positions)[-1]
            at += range(newest + 1, newest + 1 + masked)
            ids += [network.mask.token] * masked
            states.append(network.mask.state.expand(masked, -1))
        made = self._line(ids, torch.cat(states), at)
        self._before = len(self._positions)
        self._positions += at[:known]
        if known:
            self._feature = made[known - 1 : known].clone()
        return made

    def _line(self, ids: list[int], states: Tensor, at: list[int]) -> Tensor:
        """Features [S, d] of tokens at ascending positions, which do not see those behind them."""
        device, base, steps = self._room.device, len(self._positions), self._steps
        if steps is None or len(ids) > MOST:
            seen = torch.ones(len(ids), len(ids), dtype=torch.bool, device=device).tril()
            return self._pass(torch.tensor(ids, device=device), states, torch.tensor(at, device=device), seen)
        width = Lane.width(len(ids))
        end, more = steps.end(base + width, self._rows[0]), width - len(ids)
        sheet = steps.told([*ids, *ids[-1:] * more, *at, *at[-1:] * more, base])

        def work(sheet: Tensor, states: Tensor) -> Tensor:
            return self._still(sheet, end, states)

        return steps(("line", width, end), work, sheet, filled(states, width))[: len(ids)]

    def _still(self, sheet: Tensor, end: int, states: Tensor) -> Tensor:
        """As `_line` from a row on that only the device knows; `sheet` [2 W + 1]: tokens, positions, and that row."""
        rows = states.shape[0]
        ids, positions, base = sheet.split((rows, rows, 1))
        tree = Tree(base, positions, torch.ones(rows, rows, dtype=torch.bool, device=sheet.device).tril())
        return self._network(ids, states, self._where(Still(base, end), rows, tree), self._rows)
