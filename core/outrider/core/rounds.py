"""One round: propose, verify, accept, commit. The unit of timing, marks, statistics and cancellation.

Letters: `n` draft nodes, `W` = 1 + n rows of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from . import accept
from .accept import Guess
from .drafting import Context, Draft, Step
from .flights import Flights, Landed
from .read_only import Tokens
from .registry import Rider
from .sample import Sampler
from .target.decoder import Pass
from .target.model import TargetModel


@dataclass(slots=True)
class Round:
    """What one pass of the target gave. `tokens` are committed, newest last."""

    tokens: list[int]
    kinds: str
    proposed: int
    accepted: int
    drafter: str  # "none" where nothing was proposed
    guess: Guess  # what was verified
    path: list[int]  # its accepted nodes
    logits: Tensor  # [1 + n, V] rows that were verified
    draft_s: float = 0.0  # seconds, as all of these; a Round never holds a reading of the clock
    verify_s: float = 0.0
    advance_s: float = 0.0  # in which the drafter heard of the tokens
    total_s: float = 0.0
    fresh: bool = False  # its pass was captured just now, so that the times say nothing
    asked: int = 0  # draft tokens that were asked for

    @property
    def confidence(self) -> list[float] | None:
        """Of each node that was verified, what its drafter held of it; None if it did not tell."""
        return self.guess.confidence

    @property
    def rows(self) -> list[int]:
        """Row of `logits` behind each of `tokens`."""
        return [0, *(node + 1 for node in self.path)]


def kinds(guess: Guess, path: Sequence[int]) -> str:
    """Letters of the tokens of one round: A for each accepted one, then P, or B behind a leaf, else C."""
    if not len(guess):
        return "P"
    last = path[-1] if path else -1
    return "A" * len(path) + ("C" if guess.children[last + 1] else "B")


class Rounds:
    """The rounds of one answer. `tokens` is the conversation, shared with the engine; the last one is the root."""

    def __init__(
        self, target: TargetModel, tokens: list[int], sampler: Sampler, rule: str = "match", *, ahead: bool = True
    ) -> None:
        self.target = target
        self.tokens = tokens
        self.sampler = sampler
        self.rule = rule
        self.worth_drafting: Callable[[int, float], bool] | None = (
            None  # as `Context.worth_drafting`, of the rounds to come
        )
        self.worth_extending: Callable[[int], bool] | None = None  # as `Context.worth_extending`
        self._seen = Tokens(tokens)  # by drafters
        self._ahead = ahead  # whether a round may be launched before the last one is read
        self._flights = Flights.of(target.lane, sampler, rule)

    def run(self, drafter: Rider | None, budget: int) -> Round:
        """One round with at most `budget` draft tokens; 0 or no drafter is a plain pass."""
        budget = min(budget, self.target.most - 1)
        rider = drafter if drafter is not None and not drafter.failed else None
        device = rider is not None and rider.device and budget > 0 and self.rule == "match"
        if self._flights is not None and (self._flights or rider is None or device):
            return self._fly(self._flights, rider, budget if device else 0)
        if rider is not None and device:
            return self._device_round(rider, budget)
        began = time.perf_counter()
        proposal = self.propose(rider, budget)
        drafted = time.perf_counter()
        done = self._verify(rider, *proposal, drafted)
        done.draft_s, done.total_s = drafted - began, time.perf_counter() - began
        done.asked = budget
        return done

    def propose(self, drafter: Rider | None, budget: int) -> tuple[Guess, tuple[list[int], int]]:
        """What is to be verified, and what `settle` has to know of it: nodes of the draft that it holds, and how many it had."""
        draft = self._propose(drafter, budget)
        guess, nodes = guess_of(draft, self.target.trees)
        return guess, (nodes, 0 if draft is None else draft.tokens.shape[0])

    def check(self, guess: Guess) -> Round:
        """One round with that draft, whoever made it."""
        return self._verify(None, guess, (list(range(len(guess))), len(guess)), time.perf_counter())

    def close(self) -> None:
        """Nothing more is wanted: what the device did beyond the last round is forgotten."""
        if self._flights is not None:
            self._flights.forget(len(self.tokens))

    def context(self, drafter: Rider, budget: int) -> Context:
        """What a drafter sees of this round."""
        return Context(
            tokens=self._seen,
            nodes=min(budget, drafter.shape.nodes),
            probs=self.rule == "rejection" and drafter.trusted,
            sample=self.sampler.chain,
            to_probs=self.sampler.distribution,
            rng=partial(self.sampler.noise.draft_stream, root=len(self.tokens) - 1),
            worth_drafting=self.worth_drafting,
            worth_extending=self.worth_extending,
        )

    def _propose(self, drafter: Rider | None, budget: int) -> Draft | None:
        if drafter is None or budget <= 0 or drafter.failed:
            return None
        return drafter.propose(self.context(drafter, budget), self.target.vocab)

    def _verify(self, drafter: Rider | None, guess: Guess, verified: tuple[list[int], int], began: float) -> Round:
        if self._flights is not None:
            return self._verify_there(self._flights, drafter, guess, verified, began)
        return self._verify_here(drafter, guess, verified, began)

    def _verify_here(self, drafter: Rider | None, guess: Guess, verified: tuple[list[int], int], began: float) -> Round:
        states = drafter.needs.hidden if drafter is not None and not drafter.failed else ()
        parents = None if guess.line else guess.parents
        result = self.target.forward([self.tokens[-1], *guess.tokens], states=states, parents=parents)
        return self.settle(drafter, guess, verified, result, began)

    def settle(
        self, drafter: Rider | None, guess: Guess, verified: tuple[list[int], int], result: Pass, began: float
    ) -> Round:
        """Accept and commit what the target made of the root and a guess: `result` has the states that the drafter needs.

        `began`: the clock (`time.perf_counter`) when verifying began.
        """
        nodes, total = verified
        start = len(self.tokens) - 1  # position of the root
        listening = drafter is not None and not drafter.failed
        verdict = self._accept(result.logits, guess, drafter)
        ended = time.perf_counter()
        rows = [0, *(node + 1 for node in verdict.path)]
        fresh = [*guess.names(verdict.path), verdict.token]
        self.target.commit(start + len(rows), rows)
        self.tokens.extend(fresh)
        if drafter is not None and listening:
            hidden = result.hidden[rows] if result.hidden is not None else None
            path = torch.tensor([nodes[node] for node in verdict.path], dtype=torch.int64)
            drafter.advance(Step(start + 1, torch.tensor(fresh), path, hidden, _spread(verdict.choices, nodes, total)))
        advanced = time.perf_counter()
        return Round(
            tokens=fresh,
            kinds=kinds(guess, verdict.path),
            proposed=len(guess),
            accepted=verdict.accepted,
            drafter=drafter.riding if drafter is not None and len(guess) else "none",
            guess=guess,
            path=verdict.path,
            logits=result.logits,
            verify_s=ended - began,
            advance_s=advanced - ended,
        )

    def _verify_there(
        self, flights: Flights, drafter: Rider | None, guess: Guess, verified: tuple[list[int], int], began: float
    ) -> Round:
        """The same where the device chooses, accepts and commits."""
        nodes, total = verified
        start = len(self.tokens)
        flights.drafted(self.tokens, guess, drafter)
        landed = flights.land()
        if landed is None:
            flights.forget(start)
            return self._verify_here(drafter, guess, verified, began)
        ended = time.perf_counter()
        done = self._landed(landed)
        done.verify_s = ended - began
        if drafter is not None:
            done.drafter = drafter.riding if len(guess) else "none"
            path = torch.tensor([nodes[node] for node in landed.path], dtype=torch.int64)
            choices = _spread(torch.tensor(landed.choices), nodes, total) if drafter.needs.choices else None
            drafter.advance(Step(start, torch.tensor(landed.tokens), path, landed.hidden, choices))
        done.advance_s = time.perf_counter() - ended
        return done

    def _fly(self, flights: Flights, rider: Rider | None, budget: int) -> Round:
        """A round that needs nothing of the host, or the landing of one in the air; the next is launched before this is read."""
        began = time.perf_counter()
        nodes = min(budget, rider.shape.nodes) if rider is not None else 0
        alone = rider is None or nodes > 0
        if not flights:
            self._launch(flights, rider, nodes)
        if alone and self._ahead and flights.rider is rider and flights.fits(nodes, self.target.context):
            self._launch(flights, rider, nodes)
        start = len(self.tokens)
        landed = flights.land()
        if landed is None:
            flights.forget(start)
            done = self._verify_here(rider, Guess([]), ([], 0), began)
            done.total_s = time.perf_counter() - began
            return done
        done = self._landed(landed)
        if rider is not None and landed.drafter is not rider:  # a round from before it took over
            told = time.perf_counter()
            rider.advance(Step(start, torch.tensor(landed.tokens), torch.empty(0, dtype=torch.int64)))
            done.advance_s = time.perf_counter() - told
        return done

    def _launch(self, flights: Flights, rider: Rider | None, nodes: int) -> None:
        if rider is None or nodes == 0 or not flights.device(self.tokens, rider, nodes):
            flights.drafted(self.tokens, Guess([]), rider)

    def _landed(self, landed: Landed) -> Round:
        """What was read becomes part of the conversation."""
        self.tokens.extend(landed.tokens)
        rider = landed.drafter
        if rider is not None and not self._flights:  # what is in the air may still be taken back
            rider.known = len(self.tokens)
        return Round(
            tokens=landed.tokens,
            kinds=kinds(landed.guess, landed.path),
            proposed=len(landed.guess),
            accepted=len(landed.path),
            drafter=rider.riding if rider is not None else "none",
            guess=landed.guess,
            path=landed.path,
            logits=landed.logits,
            draft_s=landed.draft_s,
            verify_s=max(0.0, landed.total_s - landed.draft_s),
            total_s=landed.total_s,
            fresh=landed.fresh,
            asked=len(landed.guess),
        )

    def _accept(self, logits: Tensor, guess: Guess, drafter: Rider | None) -> accept.Verdict:
        position = len(self.tokens)
        if self.rule == "rejection":
            return accept.rejection(logits, guess, self.sampler, position, self.sampler.noise)
        if self.rule == "typical":
            return accept.typical(logits, guess, self.sampler, position)
        wanted = drafter is not None and drafter.needs.choices
        return accept.match(logits, guess, self.sampler, position, choices=wanted)

    def _device_round(self, drafter: Rider, budget: int) -> Round:
        """The device form: fixed width, accepted count as a tensor, the host reads once at the end."""
        began = time.perf_counter()
        nodes = min(budget, drafter.shape.nodes)
        proposal = drafter.propose_device(nodes)  # [n]
        if proposal is None:
            return self.run(None, 0)
        drafted = time.perf_counter()
        position = len(self.tokens)
        root = torch.tensor([self.tokens[-1]], dtype=torch.int64, device=proposal.device)
        result = self.target.forward(torch.cat((root, proposal)), states=drafter.needs.hidden)
        chosen = self.sampler.rows(result.logits, position, proposal)  # [W]
        agree = (proposal == chosen[:-1]).to(torch.int64).cumprod(0)  # [n]
        accepted = agree.sum()  # []
        hidden = result.hidden
        if hidden is None:
            hidden = result.logits.new_empty((nodes + 1, 0, self.target.info.width))
        drafter.advance_device(
            chosen, accepted + 1, hidden
        )  # accepted drafts equal the choices, so `chosen` names them
        verified = time.perf_counter()
        count = int(accepted)
        fresh = chosen[: count + 1].tolist()
        guess = Guess(proposal.tolist())
        self.target.commit(position + count)
        self.tokens.extend(fresh)
        drafter.known = len(self.tokens)
        return Round(
            tokens=fresh,
            kinds=kinds(guess, range(count)),
            proposed=nodes,
            accepted=count,
            drafter=drafter.riding,
            guess=guess,
            path=list(range(count)),
            logits=result.logits,
            draft_s=drafted - began,
            verify_s=verified - drafted,
            total_s=time.perf_counter() - began,
            asked=budget,
        )


def guess_of(draft: Draft | None, trees: bool) -> tuple[Guess, list[int]]:
    """What is verified of a draft, and which of its nodes that are: all, or of a tree that the target cannot take one line.

    That line is every first child: it has no earlier sibling, so its `probs` need no correction and the law stays exact.
    """
    if draft is None:
        return Guess([]), []
    tokens, nodes = draft.tokens.tolist(), list(range(draft.tokens.shape[0]))
    parents = None if draft.parents is None else draft.parents.tolist()
    probs = draft.probs
    if parents is not None and not trees:
        nodes, parents = first_children(parents), None
        tokens = [tokens[node] for node in nodes]
        probs = None if probs is None else probs[nodes]
    held = None if draft.confidence is None else draft.confidence.tolist()
    return Guess(tokens, parents, probs, held and [held[node] for node in nodes]), nodes


def _spread(choices: Tensor | None, nodes: list[int], total: int) -> Tensor | None:
    """Choices of the verified rows as choices of the whole draft [1 + total]; -1 where a node was not verified."""
    if choices is None or len(nodes) == total:
        return choices
    whole = torch.full((total + 1,), -1, dtype=torch.int64)
    whole[0] = choices[0]
    whole[torch.tensor(nodes) + 1] = choices[1:]
    return whole


def first_children(parents: Sequence[int]) -> list[int]:
    """Node indices of the path root, first child, first child of that, …"""
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return path
