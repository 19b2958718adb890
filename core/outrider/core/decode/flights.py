"""Rounds that the device does alone: pass, choice, acceptance and commit in one captured piece, read by the host afterwards.

Where nothing hangs on the host (plain decoding, drafters in the device form), the next round is launched before the last one is
read, so that reading, writing text and telling the user cost no device time. What was launched beyond the end is forgotten:
the length stays, and the drafter is rewound.

Letters: `W` rows of a pass.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.core.drafting.registry import Rider
from outrider.core.model.lane import Captured, Lane, Sheet
from outrider.core.sampling.accept import Guess
from outrider.core.sampling.device import Kept, Kind, Knobs, choose, keep, kind_of
from outrider.core.sampling.sample import Sampler


@dataclass(slots=True)
class Landed:
    """What the host has read of a round."""

    tokens: list[int]  # the new ones
    path: list[int]  # accepted nodes, in order
    choices: list[int]  # the target's, at the root and every node
    guess: Guess
    logits: Tensor  # [W, V], good until the next launch
    hidden: Tensor | None  # [new tokens, states asked for, d]
    drafter: Rider | None  # of the device form, which has heard of it already
    draft_s: float
    total_s: float  # since the last one was read
    fresh: bool  # its pass was captured just now, so that the time says nothing


@dataclass(slots=True)
class _Round(Captured):
    """A captured round, and what it tells the host: tokens, path, choices and draft, each [W], rows taken, all sure."""

    kept: Kept | None = None
    told: Tensor | None = None  # [4 W + 2]


@dataclass(slots=True)
class _Flight:
    """A launched round."""

    made: _Round
    told: Tensor  # on the host, once all marks are passed
    guess: Guess | None  # None: a draft of the device form
    asked: int
    drafter: Rider | None
    stop: int  # rows written at most
    fresh: bool
    marks: list[_Mark] = field(default_factory=list)  # begun, drafted, done


class _Mark:
    """A point in the device's work."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Until the device is past it."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, other: _Mark) -> float:
        """Seconds between two marks that are past."""
        if self._event is None or other._event is None:
            return self._time - other._time
        return other._event.elapsed_time(self._event) / 1e3


class Flights:
    """The rounds of one answer on the lane of its target. `of` gives none where the host has to choose tokens."""

    def __init__(self, lane: Lane, sampler: Sampler, kind: Kind) -> None:
        self._lane = lane
        self._kind: Kind = kind
        self._device = lane.decoder.device
        self._knobs = lane.shared.setdefault("knobs", Knobs.on(self._device))
        self._knobs.turn(sampler.settings, sampler.noise)
        self._air: deque[_Flight] = deque()
        self._read: float | None = None  # the clock when the last round was read, while others are in the air

    @staticmethod
    def of(lane: Lane | None, sampler: Sampler, rule: str) -> Flights | None:
        """For the answers of one sampler."""
        kind = kind_of(sampler.settings)
        return Flights(lane, sampler, kind) if lane is not None and kind is not None and rule == "match" else None

    def __bool__(self) -> bool:
        """Whether anything is in the air."""
        return bool(self._air)

    @property
    def rider(self) -> Rider | None:
        """Who drafted what was launched last."""
        return self._air[-1].drafter

    def fits(self, asked: int, context: int) -> bool:
        """Whether one more round may follow those in the air: its tokens fit, and nothing would have to be taken back."""
        cache = self._lane.cache
        at = self._air[-1].stop if self._air else cache.length
        return not cache.forgets and at + self._lane.wide(1 + asked) <= context

    @torch.inference_mode()
    def drafted(self, tokens: Sequence[int], guess: Guess, listener: Rider | None) -> None:
        """Launch a round with the host's own draft for the conversation `tokens`; `listener` wants states."""
        began = _Mark(self._device)
        if not self._air:  # before anything is captured, which writes behind the place where the lane stands
            self._lane.stand(len(tokens) - 1, tokens[-1])
        made = self._round(1 + len(guess), listener, line=guess.line)
        if len(guess):
            made.sheet.write([0, *guess.tokens], None if guess.line else guess.parents)
        self._launch(_Flight(made, _empty(made, self._device), guess, len(guess), None, 0, made.fresh, [began, began]))

    @torch.inference_mode()
    def device(self, tokens: Sequence[int], drafter: Rider, nodes: int) -> bool:
        """Launch a round of a drafter in the device form; False where that proposes nothing more."""
        began = _Mark(self._device)
        if not self._air:
            self._lane.stand(len(tokens) - 1, tokens[-1])
        proposal = drafter.propose_device(nodes)  # [n]
        if proposal is None:
            return False
        made = self._round(1 + nodes, drafter, line=True)
        made.sheet.draft.fill_(-1)
        made.sheet.draft[:nodes] = proposal
        flight = _Flight(
            made, _empty(made, self._device), None, nodes, drafter, 0, made.fresh, [began, _Mark(self._device)]
        )
        self._launch(flight)
        kept, hidden = made.kept, made.hidden
        assert kept is not None
        rows = nodes + 1
        if hidden is None:
            hidden = kept.tokens.new_empty((rows, 0, self._lane.decoder.spec.width), dtype=self._lane.decoder.dtype)
        drafter.known = max(drafter.known, flight.stop + 1)  # at most; what it really knows is read later
        drafter.advance_device(kept.tokens[:rows], kept.taken[0], hidden[:rows])
        return True

    @torch.inference_mode()
    def land(self) -> Landed | None:
        """Read the oldest round. None if the host has to choose in it: then nothing is in the air any more."""
        flight = self._air.popleft()
        flight.marks[-1].wait()
        told, width = flight.told.tolist(), flight.told.shape[0] // 4
        tokens, path, choices, draft = (told[part * width : (part + 1) * width] for part in range(4))
        taken, sure = told[-2:]
        if not sure:
            self._air.appendleft(flight)
            return None
        began, drafted, done = flight.marks
        now = time.perf_counter()
        total = done.since(began) if self._read is None else now - self._read
        self._read = now if self._air else None
        length = self._lane.cache.length + taken
        self._lane.cache.stood(length, flight.stop)
        if not self._air:
            self._lane.moved((length, tokens[taken - 1]))
        guess = flight.guess or Guess(draft[1 : flight.asked + 1])
        made = flight.made
        assert made.logits is not None
        rows = 1 + len(guess)
        hidden = None if made.hidden is None or flight.drafter is not None else made.hidden[torch.tensor(path[:taken])]
        return Landed(
            tokens[:taken],
            [row - 1 for row in path[1:taken]],
            choices[:rows],
            guess,
            made.logits[:rows],
            hidden,
            flight.drafter,
            drafted.since(began),
            total,
            flight.fresh,
        )

    def forget(self, length: int) -> None:
        """What is in the air did not happen: the conversation has `length` tokens."""
        if self._air:
            riders = [flight.drafter for flight in self._air if flight.drafter is not None]
            self._air.clear()
            self._lane.moved(None)
            for rider in riders[:1]:
                rider.rewind(length)
        self._read = None

    def _launch(self, flight: _Flight) -> None:
        made, lane = flight.made, self._lane
        made.run()
        made.fresh = False
        lane.moved(None)
        assert made.told is not None
        flight.told.copy_(made.told, non_blocking=True)
        flight.marks.append(_Mark(self._device))
        width = made.sheet.rows.shape[1]
        flight.stop = (self._air[-1].stop if self._air else lane.cache.length) + width
        self._air.append(flight)

    def _round(self, rows: int, listener: Rider | None, *, line: bool) -> _Round:
        """The captured round of the next width."""
        lane: Lane = self._lane
        kind: Kind = self._kind
        states = listener.needs.hidden if listener is not None and not listener.failed else ()
        width = lane.wide(rows)
        length = self._air[-1].stop if self._air else lane.cache.length
        end = lane.end(length, width)
        sure = not line or lane.cache.forgets  # else what is not sure is cut off by the length

        def build() -> _Round:
            made = _Round(Sheet.on(width, self._device, line=line))

            def work() -> None:
                result = lane.body(made, end, states)
                form = made.sheet.form
                rows = torch.arange(width, device=self._device)
                positions = lane.base + 1 + (rows if form is None else form.depth)
                choice, known = choose(result.logits, positions, self._knobs, kind, sure=sure)
                kept = keep(made.sheet.draft, choice, form)
                lane.cache.settle(lane.base, kept.taken, None if form is None else kept.path)
                fine = (known[kept.path] | (rows >= kept.taken)).all()[None]
                told = torch.cat((kept.tokens, kept.path, choice, made.sheet.rows[0], kept.taken, fine.to(torch.int64)))
                lane.base.add_(kept.taken)
                lane.root.copy_(kept.tokens[kept.taken - 1])
                made.kept, made.told = kept, told

            made.run = work
            return made

        key = ("round", kind, width, end, states, line)
        found = lane.captured(key, build)
        assert isinstance(found, _Round)
        return found


def _empty(made: _Round, device: torch.device) -> Tensor:
    width = made.sheet.rows.shape[1]
    return torch.empty(4 * width + 2, dtype=torch.int64, pin_memory=device.type == "cuda")
