"""One round: propose, verify, accept, commit, update the drafter. `Rounds.run` is all of it, on a CPU and on a GPU.

On a CPU the pass runs at once (`_verify_here`). On a GPU pass, acceptance and commit are one captured piece (`async_rounds`),
and the next round is launched before this one is read wherever it is known beforehand to need nothing of the host. Both call
`accept.accept`.

Letters: `n` draft nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from outrider.core.drafting.active import ActiveDrafter, GuardedDrafter
from outrider.core.drafting.contract import Committed, Context
from outrider.core.drafting.read_only import Tokens
from outrider.core.model.decoder import Pass
from outrider.core.model.model import TargetModel
from outrider.core.sampling.accept import NO_DRAFT, accept
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.sample import Sampler

from .async_rounds import AsyncRounds
from .round_result import RoundResult


class Rounds:
    """The rounds of one answer. `tokens` is the conversation, shared with the engine; the last one is the root.

    `ahead`: whether a round may be launched before the last one is read.
    """

    def __init__(self, target: TargetModel, tokens: list[int], sampler: Sampler, *, ahead: bool = True) -> None:
        self.target = target
        self.tokens = tokens
        self.sampler = sampler
        self.worth_drafting: Callable[[int, float], bool] | None = (
            None  # as `Context.worth_drafting`, of the rounds to come
        )
        self.worth_extending: Callable[[int], bool] | None = None  # as `Context.worth_extending`
        self.next_round: Callable[[], tuple[str, int] | None] | None = None
        """Who drafts in the round behind the one at hand and how many tokens, 0 for a plain one; None: that is not known yet."""
        self._seen = Tokens(tokens)  # by drafters
        self._ahead = ahead
        self._async = AsyncRounds.of(target.graph_runner, sampler)
        self._on_host = set[str]()  # whose drafts of the device are trees, which this target does not take
        self._broken = False  # whether the last draft of the device was no numbers, so that the host is to look into it

    def run(self, drafter: ActiveDrafter | None, budget: int) -> RoundResult:
        """One round with at most `budget` draft tokens; 0 or no drafter is a plain pass.

        One that is in flight already is plain, or was drafted on the device; it is read whatever the budget is.
        """
        began = time.perf_counter()
        drafter = None if drafter is None or drafter.failed else drafter
        budget = min(budget, self.target.most - 1)
        draft, launched = NO_DRAFT, bool(self._async)
        on_device = not launched and self._launch_drafted(drafter, budget)
        if not launched and not on_device:
            draft = self.propose(drafter, budget)
        drafted = time.perf_counter()
        done = self.verify_draft(drafter, draft, ahead=self._ahead)
        if not launched and not on_device:
            done.draft_s += drafted - began
        done.total_s = done.draft_s + done.verify_s + done.advance_s
        done.asked, done.ahead = len(done.draft) if launched else budget, launched
        return done

    @property
    def in_flight(self) -> tuple[str, int] | None:
        """Who drafted the round that was launched already, and how many tokens; "none", 0 for a plain one."""
        if not self._async:
            return None
        launched = self._async.oldest
        return launched.author.name if launched.author is not None else "none", len(launched.draft)

    def propose(self, drafter: ActiveDrafter | None, budget: int) -> DraftTree:
        """What is to be verified: of a tree that the target cannot take, the line of its first children."""
        if drafter is None or budget <= 0:
            return NO_DRAFT
        context = self.draft_context(drafter, budget)
        return drafter.propose(context, self.target.vocab, trees=self.target.trees) or NO_DRAFT

    def verify_draft(self, drafter: ActiveDrafter | None, draft: DraftTree, *, ahead: bool = False) -> RoundResult:
        """The round that is in flight, or one with that draft, whoever made it.

        `ahead`: launch another one before this is read, if it is known to need nothing of the host.
        """
        rounds = self._async
        if rounds is None:
            return self._verify_here(drafter, draft)
        began = time.perf_counter()
        if not rounds:
            rounds.launch(self.tokens, draft, drafter)
        if ahead:
            self._launch_next(rounds, drafter)
        launched = rounds.oldest
        own, author = launched.listener is drafter, launched.author
        done = rounds.wait()
        if author is not None:
            self._broken = launched.broken
            if own and drafter is not None:
                drafter.drafted_by(author)
        if done is None:  # the host has to choose
            rounds.forget()
            return self._verify_here(drafter, launched.draft if own else NO_DRAFT)
        if author is None and len(draft):
            done.verify_s = time.perf_counter() - began
        if len(done.draft) and launched.listener is not None:
            done.drafter = (author or launched.listener).active
        done.on_device = author is not None
        self._commit(drafter, done, known=own)
        return done

    def accept(
        self, drafter: ActiveDrafter | None, draft: DraftTree, result: Pass, chosen: Sequence[int] | None = None
    ) -> RoundResult:
        """Accept and commit what the target made of the root and a draft: `result` has the states that the drafter needs.

        `chosen`: the target's choice at every row, where it is known already.
        """
        wanted = drafter is not None and drafter.needs.choices
        taken = accept(result.logits, draft, self.sampler, len(self.tokens), choices=wanted, chosen=chosen)
        rows = taken.path.tolist()
        self.target.commit(len(self.tokens) - 1 + len(rows), rows)
        hidden = None if result.hidden is None else result.hidden[rows]
        path = [row - 1 for row in rows[1:]]
        tokens, exited = taken.tokens.tolist(), result.from_exit
        done = RoundResult(tokens, path, draft, result.logits, hidden, taken.choices, from_exit=exited)
        if drafter is not None and len(draft):
            done.drafter = drafter.active
        self._commit(drafter, done)
        return done

    def close(self) -> None:
        """Nothing more is wanted: what the device did beyond the last round is forgotten."""
        if self._async is not None:
            self._async.forget()

    def draft_context(self, drafter: ActiveDrafter, budget: int) -> Context:
        """What a drafter sees of this round."""
        return Context(
            self._seen,
            min(budget, drafter.shape.nodes),
            self.sampler.rule == "rejection" and drafter.trusted,
            self.sampler.chain,
            self.sampler.distribution,
            partial(self.sampler.noise.draft_stream, root=len(self.tokens) - 1),
            self.worth_drafting,
            self.worth_extending,
        )

    def _verify_here(self, drafter: ActiveDrafter | None, draft: DraftTree) -> RoundResult:
        """The round at once, with the host's own acceptance."""
        began = time.perf_counter()
        states = drafter.needs.hidden if drafter is not None else ()
        parents = None if draft.chain else draft.above
        result = self.target.forward([self.tokens[-1], *draft.ids], states=states, parents=parents)
        done = self.accept(drafter, draft, result)
        done.verify_s = time.perf_counter() - began - done.advance_s
        return done

    def _launch_drafted(self, drafter: ActiveDrafter | None, budget: int) -> bool:
        """Whether a round could be launched whose draft the device makes; nothing is in flight."""
        author = None if drafter is None or budget <= 0 or self._broken else drafter.on_device()
        self._broken = False
        if self._async is None or drafter is None or author is None:
            return False
        return self._launch(self._async, drafter, author, budget)

    def _launch_next(self, rounds: AsyncRounds, drafter: ActiveDrafter | None) -> None:
        """Launch the round after the newest one, if nothing of it is left to the host."""
        next_round = ("none", 0) if drafter is None else self.next_round and self.next_round()
        if not next_round:
            return
        name, nodes = next_round
        author = None if drafter is None or not nodes else drafter.on_device(name)
        if drafter is not None and author is not None and not self._broken:
            self._launch(rounds, drafter, author, nodes)
        elif not nodes and rounds.fits(0, self.target.context):
            rounds.launch(self.tokens, NO_DRAFT, drafter)

    def _launch(self, rounds: AsyncRounds, drafter: ActiveDrafter, author: GuardedDrafter, nodes: int) -> bool:
        """Launch a round that `author` drafts on the device, if it can and there is room."""
        nodes = min(nodes, author.shape.nodes, self.target.most - 1)
        if author.name in self._on_host or (rounds and not rounds.fits(nodes, self.target.context)):
            return False
        draft = rounds.draft(self._seen, drafter, author, nodes)
        if draft is not None and draft.parents is not None and not self.target.trees:
            self._on_host.add(author.name)
            return False
        if draft is not None:
            rounds.launch_drafted(draft, drafter, author)
        return draft is not None

    def _commit(self, drafter: ActiveDrafter | None, done: RoundResult, *, known: bool = True) -> None:
        """The round's tokens become part of the conversation, and the drafter gets them; `known`: it was its own round."""
        start = len(self.tokens)
        self.tokens.extend(done.tokens)
        if drafter is None:
            return
        began = time.perf_counter()
        path = torch.tensor(done.path if known else [], dtype=torch.int64)
        choices = done.choices if known and drafter.needs.choices else None
        drafter.advance(Committed(start, torch.tensor(done.tokens), path, done.hidden if known else None, choices))
        done.advance_s = time.perf_counter() - began
