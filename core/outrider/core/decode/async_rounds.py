"""Rounds that the device does alone: pass, acceptance and commit in one captured piece, read by the host afterwards.

Where nothing depends on the host (plain passes, drafters in the device form), the next round is launched before the last one is
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

from outrider.core.drafting.registry import ActiveDrafter
from outrider.core.model.graph_runner import CapturedPass, DraftInputs, GraphRunner
from outrider.core.sampling.accept import Accepted, accept
from outrider.core.sampling.device import Kind, SamplingTensors, kind_of
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.sample import Sampler

from .round_result import RoundResult


@dataclass(slots=True)
class _CapturedRound(CapturedPass):
    """A captured round, and what the host reads of it: tokens, path, choices and draft, each [W], nodes accepted, all sure."""

    accepted: Accepted | None = None
    report: Tensor | None = None  # [4 W + 2]


@dataclass(slots=True)
class Launched:
    """A round in flight."""

    captured: _CapturedRound
    report: Tensor  # on the host, once all marks are passed
    draft: DraftTree | None  # None: a draft of the device form
    asked: int
    listener: ActiveDrafter | None
    hidden: Tensor | None  # [W, states asked for, d]
    fresh: bool
    stop: int = 0  # rows written at most
    marks: list[_Mark] = field(default_factory=list)  # begun, drafted, done


class _Mark:
    """A point in the device's work."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    @torch.inference_mode()
    def wait(self) -> None:
        """Until the device is past it."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, other: _Mark) -> float:
        """Seconds between two marks that are past."""
        if self._event is None or other._event is None:
            return self._time - other._time
        return other._event.elapsed_time(self._event) / 1e3


class AsyncRounds:
    """The rounds of one answer on the lane of its target. `of` gives none where the host has to choose tokens."""

    def __init__(self, lane: GraphRunner, sampler: Sampler, kind: Kind) -> None:
        self._lane = lane
        self._kind: Kind = kind
        self._device = lane.decoder.device
        self._sampling = lane.shared.setdefault("sampling", SamplingTensors.on(self._device))
        self._sampling.set(sampler.settings, sampler.noise)
        self._in_flight: deque[Launched] = deque()
        self._read: float | None = None  # the clock when the last round was read, while others are in flight

    @staticmethod
    def of(lane: GraphRunner | None, sampler: Sampler) -> AsyncRounds | None:
        """For the answers of one sampler."""
        kind = kind_of(sampler.settings)
        if lane is None or kind is None or sampler.rule != "match":
            return None
        return AsyncRounds(lane, sampler, kind)

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._in_flight)

    @property
    def drafter(self) -> ActiveDrafter | None:
        """Who drafted in the device form what was launched last."""
        newest = self._in_flight[-1]
        return newest.listener if newest.draft is None else None

    @property
    def oldest(self) -> Launched:
        """The round that is read next."""
        return self._in_flight[0]

    def fits(self, asked: int, context: int) -> bool:
        """Whether one more round may follow those in flight: its tokens fit, and nothing would have to be taken back."""
        return not self._lane.cache.forgets and self._stop + self._lane.wide(1 + asked) <= context

    @torch.inference_mode()
    def launch(self, tokens: Sequence[int], draft: DraftTree, listener: ActiveDrafter | None) -> None:
        """Launch a round with the host's own draft for the conversation `tokens`; `listener` wants states."""
        began = _Mark(self._device)
        self._seek(tokens)
        captured = self._captured(1 + len(draft), listener, line=draft.chain)
        if len(draft):
            captured.inputs.write([0, *draft.ids], None if draft.chain else draft.above)
        self._run(captured, draft, len(draft), listener, [began, began])

    @torch.inference_mode()
    def launch_on_device(self, tokens: Sequence[int], drafter: ActiveDrafter, nodes: int) -> bool:
        """Launch a round of a drafter in the device form; False where that proposes nothing more."""
        began = _Mark(self._device)
        self._seek(tokens)
        proposal = drafter.propose_device(nodes)  # [n]
        if proposal is None:
            return False
        captured = self._captured(1 + nodes, drafter, line=True)
        captured.inputs.tokens.fill_(-1)
        captured.inputs.tokens[:nodes] = proposal
        launched = self._run(captured, None, nodes, drafter, [began, _Mark(self._device)])
        accepted, hidden, rows = captured.accepted, captured.hidden, nodes + 1
        assert accepted is not None
        if hidden is None:
            hidden = accepted.tokens.new_empty((rows, 0, self._lane.decoder.spec.width), dtype=self._lane.decoder.dtype)
        drafter.known = max(drafter.known, launched.stop + 1)  # at most; what it really knows is read later
        drafter.advance_device(accepted.tokens[:rows], 1 + accepted.count[0], hidden[:rows])
        return True

    @torch.inference_mode()
    def wait(self) -> RoundResult | None:
        """Read the oldest round. None if the host has to choose in it; it stays in flight, to be forgotten."""
        launched = self._in_flight[0]
        launched.marks[-1].wait()
        report, width = launched.report.tolist(), launched.report.shape[0] // 4
        tokens, path, choices, draft = (report[part * width : (part + 1) * width] for part in range(4))
        taken, sure = 1 + report[-2], report[-1]
        if not sure:
            return None
        self._in_flight.popleft()
        began, drafted, done = launched.marks
        now = time.perf_counter()
        total = done.since(began) if self._read is None else now - self._read
        self._read = now if self._in_flight else None
        length = self._lane.cache.length + taken
        self._lane.cache.stood(length, launched.stop)
        if not self._in_flight:
            self._lane.moved((length, tokens[taken - 1]))
        logits, hidden, draft_s = launched.captured.logits, launched.hidden, drafted.since(began)
        assert logits is not None
        return RoundResult(
            tokens[:taken],
            [row - 1 for row in path[1:taken]],
            DraftTree(torch.tensor(draft[1 : launched.asked + 1])) if launched.draft is None else launched.draft,
            logits[: 1 + launched.asked],
            None if hidden is None else hidden[torch.tensor(path[:taken])],
            torch.tensor(choices[: 1 + launched.asked]),
            draft_s=draft_s,
            verify_s=max(0.0, total - draft_s),
            fresh=launched.fresh,
        )

    def forget(self, length: int) -> None:
        """What is in flight did not happen: the conversation has `length` tokens."""
        if self._in_flight:
            drafter = next((one.listener for one in self._in_flight if one.draft is None), None)
            self._in_flight.clear()
            self._lane.moved(None)
            if drafter is not None:
                drafter.rewind(length)
        self._read = None

    @property
    def _stop(self) -> int:
        """Rows that what is in flight writes at most."""
        return self._in_flight[-1].stop if self._in_flight else self._lane.cache.length

    def _seek(self, tokens: Sequence[int]) -> None:
        """Before anything is captured, which writes behind the place where the lane stands."""
        if not self._in_flight:
            self._lane.stand(len(tokens) - 1, tokens[-1])

    def _run(
        self,
        captured: _CapturedRound,
        draft: DraftTree | None,
        asked: int,
        listener: ActiveDrafter | None,
        marks: list[_Mark],
    ) -> Launched:
        fresh = captured.fresh
        captured.run()
        captured.fresh = False
        self._lane.moved(None)
        assert captured.report is not None
        report = torch.empty(captured.report.shape, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        report.copy_(captured.report, non_blocking=True)
        hidden = captured.hidden  # the next round may be launched before these are read
        hidden = None if hidden is None or draft is None else hidden[: 1 + asked].clone()
        launched = Launched(captured, report, draft, asked, listener, hidden, fresh, marks=marks)
        marks.append(_Mark(self._device))
        launched.stop = self._stop + captured.inputs.rows.shape[1]
        self._in_flight.append(launched)
        return launched

    def _captured(self, rows: int, listener: ActiveDrafter | None, *, line: bool) -> _CapturedRound:
        """The captured round of the next width."""
        lane: GraphRunner = self._lane
        states = listener.needs.hidden if listener is not None and not listener.failed else ()
        width = lane.wide(rows)
        end = lane.end(self._stop, width)
        sampling = self._sampling.like(self._kind, sure=not line or lane.cache.forgets)  # else the length cuts off

        def build() -> _CapturedRound:
            made = _CapturedRound(DraftInputs.on(width, self._device, line=line))

            def work() -> None:
                logits = lane.body(made, end, states).logits
                taken = accept(logits, made.inputs, sampling, lane.base + 1)
                assert taken.choices is not None and taken.sure is not None
                lane.cache.settle(lane.base, 1 + taken.count, None if line else taken.path)
                lane.base.add_(1 + taken.count)
                lane.root.copy_(taken.tokens[taken.count])
                parts = (taken.tokens, taken.path, taken.choices, made.inputs.rows[0], taken.count, taken.sure.long())
                made.accepted, made.report = taken, torch.cat(parts)

            made.run = work
            return made

        key = ("round", self._kind, width, end, states, line)
        captured = lane.captured(key, build)
        assert isinstance(captured, _CapturedRound)
        return captured
