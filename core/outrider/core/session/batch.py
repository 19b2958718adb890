"""Several answers at once: one pass of the target verifies the drafts of all, each accepts its own number of tokens.

An answer has states, drafter, sampler and limits of its own and gives the text that it would give alone. A finished one leaves
between two rounds, and the next that waits takes its place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import Done, Event, Notice, Report
from outrider.core.base.trouble import out_of_memory
from outrider.core.decode.rounds import Rounds
from outrider.core.drafting.active import ActiveDrafter
from outrider.core.library import memory
from outrider.core.model.batched import Batched, SequencePass, state_bytes
from outrider.core.model.cache.states import Cache
from outrider.core.model.decoder import Pass
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.batch_policy import BatchPolicy
from outrider.core.policy.decisions import Share, SharedRound
from outrider.core.policy.policy import LADDER, Policy
from outrider.core.sampling.accept import NO_DRAFT
from outrider.core.sampling.device import SamplingTensors, kind_of
from outrider.core.sampling.sample import greedy_rows, not_a_number

from .answer import Answer, AnswerRequest, Control, check_room
from .chat_cache import ChatCache

MOST = 64  # answers at once, where nothing is said
SHARE = 0.8  # of the free memory, that the states of all answers may take

Say = Callable[[Event], None]


class _BatchedAnswer(Answer):
    """One answer among others. `decode_s` is the time since its first token, whoever was worked for in it.

    `draft_s` and `verify_s` are its own: of a pass, the share of its rows.
    """

    def __init__(
        self, order: AnswerRequest, drafter: ActiveDrafter | None, target: TargetModel, policy: Policy, say: Say
    ) -> None:
        super().__init__(replace(order, stable=0), ChatCache(target), policy, lambda _: drafter, say)
        self._home, self._tell = drafter, say
        self.drafter: ActiveDrafter | None = None  # a fork of the one at home
        self.kv: Cache | None = None  # while it is in the batch
        self.draft = NO_DRAFT
        self._target = target
        self._rounds: Rounds | None = None
        self._asked, self._draft_s, self._since = 0, 0.0, 0.0

    def sit(self, control: Control) -> None:
        """Get states and a drafter, and read the prompt."""
        target, order = self._target, self.order
        if self._home is not None and not self._home.failed:
            self.drafter = self._home.fork(lambda text: self._tell(Notice(text, order.request)))
        self.kv = target.decoder.new_cache(room(order, target) + MAX_DRAFT_ROWS)
        with target.using(self.kv):
            self._prefill(self.drafter, control)
            self._rounds = Rounds(target, self.cache.tokens, self.sampler)
        self._since = time.perf_counter()
        self._close_full()

    @property
    def who(self) -> str:
        """Who drafts for it; of several drafters the one that drafted last."""
        if self.drafter is None:
            return ""
        return self.drafter.name if self.drafter.active == "none" else self.drafter.active

    def most(self) -> int:
        """Draft tokens that are of use in the next round."""
        if self.drafter is None or self.drafter.failed:
            return 0
        most = min(
            self.emitter.left(self._target.context - len(self.cache.tokens)) - 1,
            self.drafter.shape.nodes,
            MAX_DRAFT_ROWS - 1,
        )
        pinned = self.order.drafter.tokens
        return max(0, min(most, LADDER[-1] if pinned is None else pinned))

    @property
    def free(self) -> bool:
        """Whether its drafts cost next to nothing and may be cut: the round then takes what pays of them."""
        pinned = self.order.drafter.tokens is not None or self.order.rule == "rejection"
        return self.drafter is not None and self.drafter.free and not self.drafter.failed and not pinned

    def propose(self, length: int) -> None:
        """Ask for at most so many draft tokens, unless the user has fixed how many."""
        assert self.kv is not None and self._rounds is not None
        began = time.perf_counter()
        fixed = self.free or self.order.drafter.tokens is not None
        self._asked = min(self.most(), MAX_DRAFT_ROWS if fixed else length)
        with self._target.using(self.kv):
            self.draft = self._rounds.propose(self.drafter, self._asked)
        self._draft_s = time.perf_counter() - began

    def cut(self, length: int) -> None:
        """Keep so much of the draft."""
        self.draft = self.draft.first(length)

    def share(self) -> SequencePass:
        """What it wants verified."""
        assert self.kv is not None
        draft = self.draft
        listening = self.drafter is not None and not self.drafter.failed
        states = self.drafter.needs.hidden if self.drafter is not None and listening else ()
        return SequencePass([self.cache.tokens[-1], *draft.ids], self.kv, None if draft.chain else draft.above, states)

    def accept(self, result: Pass, verify_s: float, chosen: list[int] | None) -> list[Share]:
        """Accept and report; `verify_s`: its share of the pass; `chosen`: the target's choice at every row, if it is known.

        Returns what the policy may learn of its draft: nothing where none was asked for, or all of a free one was cut.
        """
        assert self.kv is not None and self._rounds is not None
        began, phase, who = time.perf_counter(), self._phase, self.who
        with self._target.using(self.kv):
            done = self._rounds.accept(self.drafter, self.draft, result, chosen)
        done.draft_s = self._draft_s
        done.verify_s = verify_s + time.perf_counter() - began - done.advance_s
        self._count(done)
        self._emit(done, self._since)
        self._since = time.perf_counter()
        self._close_full()
        if not self._asked or (self.free and not done.proposed):
            return []
        return [Share(phase, self._asked, replace(self._outcome(done, 0.0), drafter=who))]

    def leave(self) -> None:
        """Release states and drafter."""
        if self.drafter is not None:
            self.drafter.close()
        self.kv = self._rounds = self.drafter = None

    def _close_full(self) -> None:
        if self._target.context <= len(self.cache.tokens):
            self.emitter.close("length")


class Batch:
    """Answers to `orders`, each with the drafter that it forks, None for none."""

    def __init__(
        self,
        target: TargetModel,
        policy: Policy,
        orders: Sequence[tuple[AnswerRequest, ActiveDrafter | None]],
        say: Say,
    ) -> None:
        self._target, self._say = target, say
        self._seats = [_BatchedAnswer(order, drafter, target, policy, say) for order, drafter in orders]
        self._decoder = Batched(target.decoder)
        self._policy, self._batch_policy = policy, BatchPolicy(policy)

    def run(self, control: Control, batch: int | None = None) -> list[Report]:
        """Reports in the order of `orders`; `say` gets every `Step`, and `Done` when one ends.

        `batch`: how many run at once. Raises UsageError if a prompt does not fit, ModelError if memory is short, both before
        any answer.
        """
        if self._target.exact:
            raise UsageError("Exact mode makes one answer at a time.", "Leave --exact out.")
        for seat in self._seats:
            check_room(seat.order.ids, self._target.context)
        places = self._places(batch)
        waiting, live, before = deque(self._seats), list[_BatchedAnswer](), self._policy.drafters()
        try:
            while (waiting or live) and not control.cancelled():
                if waiting and len(live) < places:
                    live.append(waiting.popleft())
                    live[-1].sit(control)
                else:
                    self._round(live)
                live = [seat for seat in live if not self._left(seat)]
            for seat in (*live, *waiting):
                seat.emitter.close("cancelled")
                self._left(seat)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise _short(f"{places} answers at once do not fit into the memory of {self._target.device}.") from error
        finally:
            for seat in live:
                seat.leave()
        reports = [seat.report() for seat in self._seats]
        if any(report.loops for report in reports):  # whose rounds say nothing of others
            self._policy.forget(before)
        return reports

    def _places(self, batch: int | None) -> int:
        """How many answers run at once."""
        if batch is not None and batch < 1:
            raise UsageError(f"{batch} answers at once are none.", "Ask for one or more.")
        needs = sorted(
            (state_bytes(self._target.decoder, room(seat.order, self._target)) for seat in self._seats), reverse=True
        )
        free = memory.free(str(self._target.device))
        places = min(batch or MOST, len(needs))
        if free is None:
            return places
        while batch is None and places > 1 and sum(needs[:places]) > SHARE * free:
            places -= 1
        if sum(needs[:places]) > SHARE * free:
            raise _short(
                f"{places} answers at once need {sum(needs[:places]) / 1e9:.1f} GB for their states, "
                f"and of {free / 1e9:.1f} GB that are free {SHARE:.0%} may be used."
            )
        return places

    def _round(self, live: Sequence[_BatchedAnswer]) -> None:
        length = self._batch_policy.length([(seat.who, seat.most()) for seat in live if not seat.free])
        for seat in live:
            seat.propose(length)
        self._cut([seat for seat in live if seat.free], live)
        shares = [seat.share() for seat in live]
        began = time.perf_counter()
        passes = self._decoder.together(shares)
        spent, rows = time.perf_counter() - began, sum(len(share.ids) for share in shares)
        chosen, learnt = _chosen(live, passes), list[Share]()
        for seat, share, result in zip(live, shares, passes, strict=True):
            learnt += seat.accept(result, spent * len(share.ids) / rows, chosen.get(seat))
        self._policy.learn(SharedRound(rows, spent, learnt))

    def _cut(self, free: Sequence[_BatchedAnswer], live: Sequence[_BatchedAnswer]) -> None:
        """Of drafts that cost nothing, what pays is verified."""
        drafts = [(seat.who, seat.draft) for seat in free]
        rows = len(live) + sum(len(seat.draft) for seat in live) - sum(len(draft) for _, draft in drafts)
        for seat, length in zip(free, self._batch_policy.kept(rows, drafts), strict=True):
            seat.cut(length)

    def _left(self, seat: _BatchedAnswer) -> bool:
        """Whether an answer has ended; then its place is free and its end is reported."""
        if seat.emitter.finish is None:
            return False
        seat.leave()
        report = seat.report()
        self._say(Done(request=seat.order.request, finish=report.finish, report=report))
        return True


def _chosen(live: Sequence[_BatchedAnswer], passes: Sequence[Pass]) -> dict[_BatchedAnswer, list[int]]:
    """The target's choices at every row, for the answers where all rows can be chosen at once for next to nothing.

    Those are greedy ones, and those without a draft that keep the likeliest ids alone. Raises ModelError for logits that are
    not finite.
    """
    alike: dict[str, list[tuple[_BatchedAnswer, Tensor]]] = {"greedy": [], "top_k": []}
    for seat, result in zip(live, passes, strict=True):
        kind = kind_of(seat.order.settings) if seat.order.rule == "match" else None
        if kind == "greedy" or (kind == "top_k" and not len(seat.draft)):
            alike[kind].append((seat, result.logits))
    chosen: dict[_BatchedAnswer, list[int]] = {}
    if alike["greedy"]:
        ids = greedy_rows(torch.cat([logits for _, logits in alike["greedy"]])).tolist()
        for seat, logits in alike["greedy"]:
            chosen[seat], ids = ids[: len(logits)], ids[len(logits) :]
    if alike["top_k"]:
        seats, rows = zip(*alike["top_k"], strict=True)
        logits = torch.cat(rows)  # [R, V]
        sampling = SamplingTensors.of([seat.sampler for seat in seats], "top_k", logits.device)
        ids, sure = sampling.choose(
            logits, torch.tensor([len(seat.cache.tokens) for seat in seats], device=logits.device)
        )
        if not bool(sure.all()):
            raise not_a_number()
        chosen |= {seat: [token] for seat, token in zip(seats, ids.tolist(), strict=True)}
    return chosen


def room(order: AnswerRequest, target: TargetModel) -> int:
    """Tokens that an answer may come to, its prompt included."""
    return target.context if order.limit is None else min(target.context, len(order.ids) + order.limit)


def _short(what: str) -> ModelError:
    return ModelError(what, "Ask for fewer at once, or set --max-tokens lower.")
