"""What a drafter with layers of its own knows of one conversation, and the passes through those layers.

A conversation is a list of positions. The token of each is known. The target's state of position p, which produced token p + 1,
is known, comes later, or is missing for good (the drafter was switched on late). A *row* holds the keys and values that the
layers make of a position whose state is known and whose next token is known:

- Rows below `count` are true. Rows from there on are provisional: a draft writes them, and the next one writes over them.
- A known state without a row waits until a draft is asked for, or until many wait.
- The newest states stay when their rows are written: where the last tokens are cut, others may follow the same state.
- A position without a state has no row. Positions are counted from the first row on; after a gap they run ahead of the rows,
  so that all stand at their true distance.

Where passes are captured, they find their rows by numbers on the device, so that one graph serves every length.

Letters: `S` rows of a pass, `W` the same filled up to a fixed width, `T` provisional rows, `n` states read, `D` width of the
target, `d` of the draft, `k` newest rows whose output is wanted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from outrider.core.model.cache.layout import LOOSE, DeviceStart, PassLayout, Tables, Tree
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, CacheConfig, KVCache, State
from outrider.core.model.graph_runner import GraphRunner
from outrider.core.model.steps import SHORT, Steps, filled

from .contract import Committed, DeviceContext, InFlight, Target

CHUNK = 512  # rows of one pass; fewer wait until a draft is asked for
TAIL = 64  # newest states that stay when their rows are written

Run = Callable[[Sequence[KVCache], Tensor, Tensor, PassLayout, "Tensor | slice"], Any]
"""`run(rows, ids [S], x [S, d], layout, newest)` writes the rows of a pass and gives, as tensors, what the drafter wants of its
rows `newest` [k]. Row i stands for the state `x[i]` and the token after it, `ids[i]`."""


Work = Callable[[Any, "Scratch", "Window"], Any]
"""`work(made, scratch, window)`: from what `run` gave for the newest row, or without layers `read` of it, to a draft."""


class Window(NamedTuple):
    """The newest tokens, as only the device knows them."""

    tokens: Tensor  # [W]
    taken: Tensor  # [1] how many of them are true

    @property
    def root(self) -> Tensor:
        """The newest one, [1]."""
        return self.tokens[self.taken - 1]


class Layer(Protocol):
    """What makes rows: a token mixer, or `Outputs`."""

    def new_state(self, room: CacheConfig) -> State | None:
        """Rows for a new conversation."""
        ...


class Outputs(NamedTuple):
    """Rows of what one layer makes for the next one, `width` numbers each."""

    width: int

    def new_state(self, room: CacheConfig) -> State:
        """[capacity, width]."""
        return KVCache(room.capacity, ((self.width,),), 0, room)


class Known(NamedTuple):
    """The states of positions that follow each other."""

    position: int  # of the first
    states: Tensor  # [S, n, D]

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.position + self.states.shape[0]


class Scratch(NamedTuple):
    """The provisional rows of a draft, for work that may be captured: it asks the device for no value."""

    base: int | Tensor  # [1] true rows
    shift: int | Tensor  # [1] position of a row less its number
    end: int  # rows that a captured pass reads
    tables: Tables
    like: Tensor
    shifted: bool = True  # False: `shift` is 0

    def line(self, rows: int, past: int = 0) -> PassLayout:
        """Of a pass of so many rows after `past` provisional ones, of which none sees those after it."""
        if not self.shifted:
            return self.layout(rows, None, past)
        start, device = self.base + past, self.like.device
        seen = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
        return self.layout(rows, Tree(start, torch.arange(rows, device=device) + (start + self.shift), seen), past)

    def layout(self, rows: int, tree: Tree | None = None, past: int = 0) -> PassLayout:
        """Of a pass of so many rows after `past` provisional ones."""
        start = self.base + past
        place = DeviceStart(start, self.end) if isinstance(start, Tensor) else start
        return PassLayout(place, rows, self.tables, self.like.dtype, self.like.device, tree)

    def tree(self, depths: Tensor, seen: Tensor) -> PassLayout:
        """Of the last S of T provisional rows: `seen` [S, T] is whom each of them sees, `depths` [T] where each stands below the
        first."""
        rows, loose = seen.shape
        return self.layout(rows, Tree(self.base, depths + (self.base + self.shift), seen), loose - rows)


class DraftState:
    """One conversation of one drafter.

    `layers` make its rows, which `run` gets in the same order; a drafter that reads the newest state alone has none. `read`
    turns states of the target [S, n, D] into what `run` takes, [S, d]. `scratch`: most provisional rows. Where a layer
    slides, rows begin anew after a gap: its window would be cut at the wrong place.
    """

    def __init__(
        self,
        target: Target,
        layers: Sequence[Layer],
        tables: Tables,
        read: Callable[[Tensor], Tensor],
        run: Run | None = None,
        *,
        scratch: int = MAX_DRAFT_ROWS,
    ) -> None:
        self._target, self._layers, self._tables, self._read, self._run = target, layers, tables, read, run
        self._room = CacheConfig(target.context + scratch, target.dtype, target.device, rings=inf)  # cut to any length
        self._like = torch.empty(0, dtype=target.dtype, device=target.device)
        self._new_rows()
        self._gaps = not any(rows.window for rows in self.rows)
        self._forget()

    def _new_rows(self) -> None:
        states = [layer.new_state(self._room) for layer in self._layers]
        self.rows = [state for state in states if isinstance(state, KVCache)]
        assert len(self.rows) == len(states)
        graphs = self._target.graphs
        self._steps = None if graphs is None else Steps(graphs, self._like, self._layers)  # type: ignore[arg-type]

    def _forget(self) -> None:
        self.tokens: list[int] = []
        self.count = 0  # true rows
        self._written = 0  # of them by the last pass
        self._spans: list[tuple[int, int]] = []  # rows that follow each other: number and position of the first
        self._known: list[Known] = []  # ascending, those of the newest rows among them
        self._ahead: InFlight | None = None  # whose rows stand after the true ones

    # ------------------------------------------------------------------ what became true

    def clear(self) -> None:
        """Forget the conversation."""
        self._forget()
        self.wipe()

    def advance(self, step: Committed) -> None:
        """Take in tokens, and the states that came with them."""
        ahead, self._ahead = self._ahead, None
        if step.start < len(self.tokens):
            self.rewind(step.start)
        self.tokens += step.tokens.tolist()
        if step.hidden is None or not step.hidden.shape[0]:
            return
        first = len(self.tokens) - 1 - step.hidden.shape[0]
        if first < self._stop:  # some come again
            self._keep(first)
        self._known.append(Known(first, step.hidden))
        if self.rows and ahead is not None and ahead.start == step.start and self._next == first == step.start - 1:
            self.count, self._written = (
                self.count + ahead.taken,
                ahead.taken,
            )  # written when the next round was launched
        done = self._next if self.rows else self._stop
        while len(self._known) > 1 and self._known[1].position <= done - TAIL:
            del self._known[0]
        if self.rows and self._stop - self._next >= CHUNK:
            self.feed(again=False)

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true, and the states that they led to."""
        self._ahead = None
        del self.tokens[length:]
        count = self.count
        self._keep(length)
        self._cut(length - 1)
        if self.count < count:
            self.wipe()

    def _keep(self, stop: int) -> None:
        """Only states of positions below `stop` stay, and their rows."""
        self._known = [Known(at, states[: stop - at]) for at, states in self._known if at < stop]
        self._cut(stop)

    def undo(self) -> None:
        """The rows of the last pass must be written again: NaN in a masked row has spread to them."""
        self._cut(self._next - self._written)
        self.wipe()

    def _cut(self, stop: int) -> None:
        """Only rows of positions below `stop` stay."""
        while self._spans and self._spans[-1][1] >= stop:
            self.count, _ = self._spans.pop()
        if self._spans:
            row, position = self._spans[-1]
            self.count = min(self.count, row + stop - position)

    def wipe(self) -> None:
        """Zero the provisional rows: what is no number would spread from there, masked or not."""
        for rows in self.rows:
            rows.wipe(self.count)

    def fork(self) -> Self:
        """A copy that goes its own way; states are never written, so they are shared."""
        other = copy.copy(self)
        other.tokens, other._spans, other._known = list(self.tokens), list(self._spans), list(self._known)
        other._ahead = None  # whose rows are not among those that are copied
        other._new_rows()
        for ours, theirs in zip(self.rows, other.rows, strict=True):
            for source, part in zip(ours.parts, theirs.parts, strict=True):
                part[: self.count] = source[: self.count]
        return other

    # ------------------------------------------------------------------ what is known

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(rows.nbytes for rows in self.rows)

    @property
    def captured(self) -> bool:
        """Whether passes are, so that to ask the device for a value costs more than it may save."""
        return self._steps is not None

    def ready(self, length: int) -> bool:
        """Whether it got all of `length` tokens, and knows the state that produced the last."""
        known = any(some.position < length - 1 <= some.stop for some in self._known[-2:])
        return known and len(self.tokens) == length

    @property
    def origin(self) -> int:
        """Position of the first row."""
        return self._spans[0][1] if self._spans else 0

    @property
    def _next(self) -> int:
        """Position of the next row."""
        return self._spans[-1][1] + self.count - self._spans[-1][0] if self._spans else 0

    @property
    def _stop(self) -> int:
        """The position after the last known state."""
        return max(self._next, self._known[-1].stop) if self._known else self._next

    def _shift(self, row: int) -> int:
        """Position of a row, less the first one's and its number."""
        first, position = next(span for span in reversed(self._spans) if span[0] <= row)
        return position - first - self.origin

    def passes(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """True rows from `first` to `stop` as passes: number of the first row, its position, how many."""
        ends = [*(row for row, _ in self._spans[1:]), self.count]
        for (row, position), end in zip(self._spans, ends, strict=False):
            for at in range(max(first, row), min(stop, end), CHUNK):
                yield at, position + at - row, min(CHUNK, min(stop, end) - at)

    # ------------------------------------------------------------------ passes

    @torch.inference_mode()
    def feed(self, behind: tuple[Sequence[int], Tensor] | None = None, *, again: bool = True) -> Any:
        """Write the rows that wait; what `run` gives for the newest one, and for rows `behind` it of the same pass.

        These have ids [m] and x [m, d], and stay provisional. `again`: the state has to be `ready`; if no row waits, the newest
        one is written anew, since its output is wanted. Without layers it is what `read` makes of the newest state.
        """
        if not self.rows:
            newest = len(self.tokens) - 2
            some = next(some for some in reversed(self._known) if some.position <= newest)
            return self._read(some.states[newest - some.position, None])
        end = min(self._stop, len(self.tokens) - 1)
        if again:
            self._cut(min(self._next, end - 1))
        return self._write(end, behind)

    def _write(self, end: int, behind: tuple[Sequence[int], Tensor] | None = None) -> Any:
        """The rows below position `end` that wait; as `feed`."""
        output = None
        while self.rows and any(some.stop > self._next < end > some.position for some in self._known):
            states = self._waiting(self._next)[: end - self._next]
            position, count = self._next, states.shape[0]
            ids, x = self.tokens[position + 1 : position + 1 + count], self._read(states)
            newest = 1
            if behind is not None and position + count == end:
                ids, x, newest = [*ids, *behind[0]], torch.cat((x, behind[1])), 1 + len(behind[0])
            output = self.run(ids, x, self.count, newest=newest)
            self.count, self._written = self.count + count, count
        return output

    def _waiting(self, position: int) -> Tensor:
        """States [S, n, D] from a position on, up to a gap or a chunk; begins a new span where the first is missing."""
        index = len(self._known)
        while index and self._known[index - 1].stop > position:
            index -= 1
        if not self._spans or self._known[index].position > position:
            position = self._known[index].position
            self._open(position)
        parts, at = list[Tensor](), position
        for some in self._known[index:]:
            if some.position > at or at - position >= CHUNK:
                break
            parts.append(some.states[at - some.position :])
            at = some.stop
        states = parts[0] if len(parts) == 1 else torch.cat(parts)
        return states[:CHUNK].to(self._room.device, self._room.dtype)

    def _open(self, position: int) -> None:
        """The next row stands for `position`: where that does not follow the last one, a new span begins."""
        if self._spans and self._next == position:
            return
        if not self._gaps:
            self.count, self._spans = 0, []
        self._spans.append((self.count, position))

    def follow(self, token: int, x: Tensor, depth: int) -> Any:
        """What `run` gives for a guessed token, after `depth` - 1 other guesses, from a fed back state [1, d]."""
        return self.run([token], x, self.count + depth - 1)

    @torch.inference_mode()
    def run(
        self, ids: Sequence[int], x: Tensor, row: int, *, newest: int = 1, key: Hashable = None, run: Run | None = None
    ) -> Any:
        """One pass over rows in a line from `row` on, with `run` in place of the drafter's own, another for each `key`.

        Captured results are good until the next pass of the same key.
        """
        run, steps, count = run or self._run, self._steps, len(ids)
        shift = self._shift(row)
        assert run is not None
        if steps is None or count - newest >= SHORT:
            layout = self._scratch(row, shift).line(count)
            return run(self.rows, torch.tensor(ids, device=self._room.device), x, layout, slice(count - newest, count))
        width = GraphRunner.width(count)
        end = steps.end(row + width, self.rows[0])

        def work(sheet: Tensor, x: Tensor) -> Any:
            ids, base, ahead, last = sheet.split((width, 1, 1, 1))
            layout = self._scratch(base, ahead, end, shifted=shift > 0).line(width)
            return run(self.rows, ids, x, layout, last + torch.arange(newest, device=x.device))

        sheet = steps.pinned([*ids, *[0] * (width - count), row, shift, count - newest])
        return steps((key, width, end, newest, shift > 0), work, sheet, filled(x, width))

    @torch.inference_mode()
    def draft(
        self,
        key: Hashable,
        work: Callable[..., Any],
        numbers: Sequence[int],
        *tensors: Tensor,
        rows: int,
        masked: bool = False,
    ) -> Any:
        """What `work(scratch, numbers [m], *tensors)` makes with up to `rows` provisional rows; it may be captured, one `work`
        for each `key`.

        `masked`: no kernel takes its layouts, as is the case where they hold more than `LOOSE` rows.
        """
        steps, count = self._steps, self.count
        shift = self._shift(count)
        if steps is None:
            scratch = self._scratch(count, shift)
            return work(scratch, torch.tensor(numbers, device=self._room.device), *tensors)
        end = steps.end(count + rows, self.rows[0], masked=masked or rows > LOOSE)

        def captured(sheet: Tensor, *tensors: Tensor) -> Any:
            return work(self._scratch(sheet[:1], sheet[1:2], end), sheet[2:], *tensors)

        return steps((key, end), captured, steps.pinned([count, shift, *numbers]), *tensors)

    def _scratch(
        self, base: int | Tensor, shift: int | Tensor, end: int = 0, *, shifted: bool | None = None
    ) -> Scratch:
        moved = isinstance(shift, Tensor) or shift > 0 if shifted is None else shifted
        return Scratch(base, shift, end, self._tables, self._like, moved)

    @torch.inference_mode()
    def draft_ahead(self, context: DeviceContext, key: Hashable, work: Work, *, rows: int, masked: bool = False) -> Any:
        """What `work` makes with up to `rows` provisional rows after all that will be committed, the round in flight included.

        None where that is not known, or has no room: the drafter has to be asked on the host. That round's rows become true with
        it, without another pass. `key` and `masked` as in `draft`; nothing is asked of the device.
        """
        steps, flying, length = self._steps, context.in_flight, len(context.tokens)
        if steps is None or not self.ready(length) or (flying is not None and flying.hidden is None):
            return None
        if flying is None:  # the newest row alone, whether it is written or not
            newest = length - 2
            self._write(newest)
            self._cut(newest)
            known = next(some for some in reversed(self._known) if some.position <= newest)
            tokens, count = torch.tensor(self.tokens[-1:]), torch.ones(1, dtype=torch.int64)
            hidden = known.states[newest - known.position, None]
        else:
            self._write(length - 1)
            tokens, count, hidden = flying.tokens, flying.count, flying.hidden
        assert hidden is not None
        position, width = length - 1 - (flying is None), tokens.shape[0]
        if self.rows:
            self._open(position)
        base, shift = self.count, self._shift(self.count) if self.rows else 0
        whole = self.rows[0].parts[0].shape[0] if self.rows else base + width + rows
        if base + width + rows > whole:
            return None
        end = steps.end(base + width + rows, self.rows[0], masked=masked or rows > LOOSE) if self.rows else 0

        def captured(sheet: Tensor, tokens: Tensor, count: Tensor, hidden: Tensor) -> Any:
            base, ahead, last = sheet[:1], sheet[1:], count - 1
            x, result = self._read(hidden), None
            if self.rows:
                assert self._run is not None
                window = self._scratch(base, ahead, end, shifted=shift > 0).line(width)
                result = self._run(self.rows, tokens, x, window, last)
            else:
                result = x[last]
            return work(result, self._scratch(base + count, ahead, end, shifted=shift > 0), Window(tokens, count))

        result = steps(
            (key, context.key, width, end, shift > 0), captured, steps.pinned([base, shift]), tokens, count, hidden
        )
        if flying is None and self.rows:
            self.count, self._written = base + 1, 1
        self._ahead = flying
        return result


class StateDrafter:
    """What all drafters with a `DraftState` do alike; a subclass sets `_state` and proposes."""

    _state: DraftState

    def reset(self) -> None:
        """Forget the conversation."""
        self._state.clear()

    def advance(self, step: Committed) -> None:
        """Take in what became true; layers run over it when a draft is asked for."""
        self._state.advance(step)

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        self._state.rewind(length)

    def fork(self) -> Self:
        """Same weights, a copy of the conversation."""
        other = copy.copy(self)
        other._state = self._state.fork()
        return other

    def close(self) -> None:
        """Forget the conversation; memory goes with the last reference."""
        self.reset()
