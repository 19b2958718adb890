"""Rounds that the device does alone: pass, acceptance and commit in one captured piece, read by the host afterwards.

Where nothing depends on the host (plain passes, drafts that are made on the device), the next round is launched before the last
one is read, so that reading, writing text and telling the user cost no device time. A drafter then sees the round in flight as
tensors, and gets it as of any other once it is read. What was launched beyond the end is forgotten: the length stays.

Letters: `W` rows of a pass.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from outrider.core.drafting.active import ActiveDrafter, GuardedDrafter
from outrider.core.drafting.contract import Choose, DeviceContext, InFlight
from outrider.core.drafting.read_only import Tokens
from outrider.core.model.graph_runner import CapturedPass, DraftInputs, GraphRunner
from outrider.core.sampling.accept import Accepted, accept
from outrider.core.sampling.device import Kind, SamplingTensors, kind_of
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.sample import Sampler

from .round_result import RoundResult

PARTS = 5  # of a report: tokens, path, choices, draft, rows of the parents


@dataclass(slots=True)
class _CapturedRound(CapturedPass):
    """A captured round, and what the host reads of it: its parts, each [W], nodes accepted, all sure."""

    accepted: Accepted | None = None
    report: Tensor | None = None  # [PARTS W + 2]


@dataclass(slots=True)
class Launched:
    """A round that was launched and not yet read."""

    captured: _CapturedRound
    report: Tensor  # on the host, once all marks are passed
    draft: DraftTree  # tokens may be on the device
    listener: ActiveDrafter | None
    author: GuardedDrafter | None  # who drafted on the device
    hidden: Tensor | None  # [W, states asked for, d], row by row of the path
    fresh: bool
    stop: int = 0  # rows written at most
    in_flight: InFlight | None = None  # as the drafter of the next round saw it
    broken: bool = False  # whether its draft, made on the device, was no numbers
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
    """The rounds of one answer on the graph runner of its target. `of` gives none where the host has to choose tokens."""

    def __init__(self, runner: GraphRunner, sampler: Sampler, kind: Kind) -> None:
        self._runner = runner
        self._kind: Kind = kind
        self._device = runner.decoder.device
        self._sampling = runner.shared.setdefault("sampling", SamplingTensors.on(self._device))
        self._sampling.set(sampler.settings, sampler.noise)
        quick = self._sampling.like(kind, sure=False)  # drafters capture this, and keep it beyond the answer
        self._choose: Choose = runner.shared.setdefault(f"choose {kind}", partial(_choose, runner.base, quick))
        self._in_flight: deque[Launched] = deque()
        self._began = _Mark(self._device)  # the newest draft of the device
        self._read: float | None = None  # the clock when the last round was read, while others are in flight

    @staticmethod
    def of(runner: GraphRunner | None, sampler: Sampler) -> AsyncRounds | None:
        """For the answers of one sampler."""
        kind = kind_of(sampler.settings)
        if runner is None or kind is None or sampler.rule != "match":
            return None
        return AsyncRounds(runner, sampler, kind)

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._in_flight)

    @property
    def newest(self) -> Launched:
        """The round that was launched last."""
        return self._in_flight[-1]

    @property
    def oldest(self) -> Launched:
        """The round that is read next."""
        return self._in_flight[0]

    def fits(self, asked: int, context: int) -> bool:
        """Whether one more round may follow those in flight: its tokens fit, and nothing would have to be taken back."""
        return not self._runner.cache.forgets and self._stop + self._runner.wide(1 + asked) <= context

    @torch.inference_mode()
    def launch(self, tokens: Sequence[int], draft: DraftTree, listener: ActiveDrafter | None) -> None:
        """Launch a round with the host's own draft for the conversation `tokens`; `listener` wants states."""
        began = _Mark(self._device)
        self._seek(tokens)
        captured = self._captured(1 + len(draft), listener, line=draft.chain)
        if len(draft):
            captured.inputs.write([0, *draft.ids], None if draft.chain else draft.above)
        self._run(captured, draft, listener, None, [began, began])

    @torch.inference_mode()
    def draft(self, tokens: Tokens, listener: ActiveDrafter, author: GuardedDrafter, nodes: int) -> DraftTree | None:
        """What `author`, of `listener`, drafts on the device for the next round; None where it has to be asked on the host."""
        self._began = _Mark(self._device)
        self._seek(tokens)
        flying = self._seen_by(listener, author, len(tokens))
        return author.propose_device(DeviceContext(tokens, nodes, flying, self._choose, self._kind))

    @torch.inference_mode()
    def launch_drafted(self, draft: DraftTree, listener: ActiveDrafter, author: GuardedDrafter) -> None:
        """Launch the round of what `draft` gave."""
        captured = self._captured(1 + len(draft), listener, line=draft.parents is None)
        captured.inputs.place(draft.tokens, draft.parents)
        self._run(captured, draft, listener, author, [self._began, _Mark(self._device)])

    def _seen_by(self, listener: ActiveDrafter, author: GuardedDrafter, length: int) -> InFlight | None:
        """What will become true behind `length` tokens, as the drafter of the next round sees it; None: nothing is in flight."""
        if not self._in_flight:
            return None
        launched = self.newest
        accepted = launched.captured.accepted
        assert accepted is not None
        hidden = listener.states_of(author, launched.hidden) if launched.listener is listener else None
        launched.in_flight = InFlight(length, accepted.tokens, 1 + accepted.count, hidden)
        return launched.in_flight

    @torch.inference_mode()
    def wait(self) -> RoundResult | None:
        """Read the oldest round. None if the host has to choose in it; it stays in flight, to be forgotten."""
        launched = self._in_flight[0]
        launched.marks[-1].wait()
        report, width = launched.report.tolist(), launched.report.shape[0] // PARTS
        tokens, path, choices, draft, parents = (report[part * width : (part + 1) * width] for part in range(PARTS))
        taken, sure, rows = 1 + report[-2], report[-1], 1 + len(launched.draft)
        if launched.author is not None:
            launched.draft, launched.broken = _read(launched.draft, draft[1:rows], parents[1:rows]), -1 in draft[1:rows]
        if not sure:
            return None
        self._in_flight.popleft()
        began, drafted, done = launched.marks
        now = time.perf_counter()
        total = done.since(began) if self._read is None else now - self._read
        self._read = now if self._in_flight else None
        length = self._runner.cache.length + taken
        self._runner.cache.advanced(length, launched.stop)
        if not self._in_flight:
            self._runner.advanced((length, tokens[taken - 1]))
        if launched.in_flight is not None:
            launched.in_flight.taken = taken
        logits, draft_s = launched.captured.logits, drafted.since(began)
        assert logits is not None
        return RoundResult(
            tokens[:taken],
            [row - 1 for row in path[1:taken]],
            launched.draft,
            logits[: 1 + len(launched.draft)],
            None if launched.hidden is None else launched.hidden[:taken],
            torch.tensor(choices[: 1 + len(launched.draft)]),
            draft_s=draft_s,
            verify_s=max(0.0, total - draft_s),
            fresh=launched.fresh,
        )

    def forget(self) -> None:
        """What is in flight did not happen."""
        if self._in_flight:
            self._in_flight.clear()
            self._runner.advanced(None)
        self._read = None

    @property
    def _stop(self) -> int:
        """Rows that what is in flight writes at most."""
        return self._in_flight[-1].stop if self._in_flight else self._runner.cache.length

    def _seek(self, tokens: Sequence[int]) -> None:
        """Before anything is captured, which writes after the runner's position."""
        if not self._in_flight:
            self._runner.seek(len(tokens) - 1, tokens[-1])

    def _run(
        self,
        captured: _CapturedRound,
        draft: DraftTree,
        listener: ActiveDrafter | None,
        author: GuardedDrafter | None,
        marks: list[_Mark],
    ) -> None:
        fresh = captured.fresh
        captured.run()
        captured.fresh = False
        self._runner.advanced(None)
        accepted, hidden = captured.accepted, captured.hidden
        assert captured.report is not None and accepted is not None
        report = torch.empty(captured.report.shape, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        report.copy_(captured.report, non_blocking=True)
        if hidden is not None:  # the next round may be launched before these are read
            hidden = hidden.clone() if captured.inputs.line else hidden[accepted.path]
        launched = Launched(captured, report, draft, listener, author, hidden, fresh, marks=marks)
        marks.append(_Mark(self._device))
        launched.stop = self._stop + captured.inputs.rows.shape[1]
        self._in_flight.append(launched)

    def _captured(self, rows: int, listener: ActiveDrafter | None, *, line: bool) -> _CapturedRound:
        """The captured round of the next width."""
        runner: GraphRunner = self._runner
        states = listener.needs.hidden if listener is not None and not listener.failed else ()
        width = runner.wide(rows)
        end = runner.end(self._stop, width)
        sampling = self._sampling.like(self._kind, sure=not line or runner.cache.forgets)  # else the length cuts off

        def build() -> _CapturedRound:
            captured_round = _CapturedRound(DraftInputs.on(width, self._device, line=line))

            def work() -> None:
                logits = runner.body(captured_round, end, states).logits
                taken = accept(logits, captured_round.inputs, sampling, runner.base + 1)
                assert taken.choices is not None and taken.sure is not None
                runner.cache.settle(runner.base, 1 + taken.count, None if line else taken.path)
                runner.base.add_(1 + taken.count)
                runner.root.copy_(taken.tokens[taken.count])
                rows = captured_round.inputs.rows
                parts = (taken.tokens, taken.path, taken.choices, rows[0], rows[2], taken.count, taken.sure.long())
                captured_round.accepted, captured_round.report = taken, torch.cat(parts)

            captured_round.run = work
            return captured_round

        key = ("round", self._kind, width, end, states, line)
        captured = runner.captured(key, build)
        assert isinstance(captured, _CapturedRound)
        return captured


def _choose(base: Tensor, sampling: SamplingTensors, logits: Tensor, depths: Tensor | int) -> Tensor:
    """As `DeviceContext.choose`, behind `base` [1] committed tokens and the newest one."""
    ids, _ = sampling.choose(logits, base + 1 + depths)
    return torch.where(logits.amax(-1).isfinite(), ids, -1)


def _read(draft: DraftTree, tokens: list[int], parents: list[int]) -> DraftTree:
    """A draft of the device by what the host has read of it: `parents` are rows. A chain ends where a node is missing."""
    if draft.parents is not None:
        return DraftTree(torch.tensor(tokens), torch.tensor([row - 1 for row in parents]))
    count = next((node for node, token in enumerate(tokens) if token < 0), len(tokens))
    return DraftTree(torch.tensor(tokens[:count], dtype=torch.int64))
