"""One round: propose, verify, accept, commit. The unit of timing, marks, statistics and cancellation.

Letters: `n` draft nodes, `W` = 1 + n rows of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import accept
from .drafting import Context, Draft, Step
from .registry import GuardedDrafter
from .sample import Sampler
from .target.model import TargetModel


@dataclass(slots=True)
class Round:
    """What one pass of the target gave. `tokens` are committed, newest last."""

    tokens: list[int]
    kinds: str
    proposed: int
    accepted: int
    drafter: str  # "none" where nothing was proposed
    draft: list[int]  # the verified chain
    logits: Tensor  # [1 + n, V] rows that were verified
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0


def kinds(proposed: int, accepted: int) -> str:
    """Letters of the tokens of one round: A for each accepted one, then B, C or P."""
    if proposed == 0:
        return "P"
    return "A" * accepted + ("B" if accepted == proposed else "C")


class Rounds:
    """The rounds of one answer. `tokens` is the conversation, shared with the engine; the last one is the root."""

    def __init__(self, target: TargetModel, tokens: list[int], sampler: Sampler, rule: str = "match") -> None:
        self.target = target
        self.tokens = tokens
        self.sampler = sampler
        self.rule = rule

    def run(self, drafter: GuardedDrafter | None, budget: int) -> Round:
        """One round with at most `budget` draft tokens; 0 or no drafter is a plain pass."""
        if drafter is not None and drafter.device and budget > 0 and self.rule == "match" and not drafter.failed:
            return self._device_round(drafter, budget)
        began = time.perf_counter()
        draft = self._propose(drafter, budget)
        drafted = time.perf_counter()
        chain, path = ([], []) if draft is None else chain_of(draft)
        done = self._verify(drafter, draft, chain, path)
        ended = time.perf_counter()
        done.draft_s, done.verify_s, done.total_s = drafted - began, done.verify_s - drafted, ended - began
        return done

    def context(self, drafter: GuardedDrafter, budget: int) -> Context:
        """What a drafter sees of this round."""
        return Context(
            tokens=self.tokens,
            nodes=min(budget, drafter.shape.nodes),
            probs=self.rule == "rejection" and drafter.trusted,
            sample=self.sampler.chain,
            to_probs=self.sampler.distribution,
            rng=self.sampler.noise.draft_stream,
        )

    def _propose(self, drafter: GuardedDrafter | None, budget: int) -> Draft | None:
        if drafter is None or budget <= 0 or drafter.failed:
            return None
        return drafter.propose(self.context(drafter, budget), self.target.vocab)

    def _verify(self, drafter: GuardedDrafter | None, draft: Draft | None, chain: list[int], path: list[int]) -> Round:
        start = len(self.tokens) - 1  # position of the root
        listening = drafter is not None and not drafter.failed
        states = drafter.needs.hidden if drafter is not None and listening else ()
        result = self.target.forward([self.tokens[-1], *chain], states=states)
        verdict = self._accept(result.logits, chain, path, draft, drafter)
        verified = time.perf_counter()
        fresh = [*chain[: verdict.accepted], verdict.token]
        self.target.commit(start + 1 + verdict.accepted)
        self.tokens.extend(fresh)
        if drafter is not None and listening:
            hidden = result.hidden[: len(fresh)] if result.hidden is not None else None
            drafter.advance(
                Step(start + 1, torch.tensor(fresh), torch.tensor(path[: verdict.accepted]), hidden, verdict.choices)
            )
        return Round(
            tokens=fresh,
            kinds=kinds(len(chain), verdict.accepted),
            proposed=len(chain),
            accepted=verdict.accepted,
            drafter=drafter.name if drafter is not None and chain else "none",
            draft=chain,
            logits=result.logits,
            verify_s=verified,
        )

    def _accept(
        self, logits: Tensor, chain: list[int], path: list[int], draft: Draft | None, drafter: GuardedDrafter | None
    ) -> accept.Verdict:
        position = len(self.tokens)
        if self.rule == "rejection":
            probs = draft.probs[path] if draft is not None and draft.probs is not None else None
            return accept.rejection(logits, chain, probs, self.sampler, position, self.sampler.noise)
        wanted = drafter is not None and drafter.needs.choices
        return accept.match(logits, chain, self.sampler, position, choices=wanted)

    def _device_round(self, drafter: GuardedDrafter, budget: int) -> Round:
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
        self.target.commit(position + count)
        self.tokens.extend(fresh)
        drafter.known = len(self.tokens)
        return Round(
            tokens=fresh,
            kinds=kinds(nodes, count),
            proposed=nodes,
            accepted=count,
            drafter=drafter.name,
            draft=proposal.tolist(),
            logits=result.logits,
            draft_s=drafted - began,
            verify_s=verified - drafted,
            total_s=time.perf_counter() - began,
        )


def chain_of(draft: Draft) -> tuple[list[int], list[int]]:
    """Tokens and node indices of the chain that is verified: of a tree, every first child.

    A first child has no earlier sibling, so its `probs` row needs no correction and the law stays exact.
    """
    tokens = draft.tokens.tolist()
    if draft.parents is None:
        return tokens, list(range(len(tokens)))
    path = first_children(draft.parents.tolist())
    return [tokens[node] for node in path], path


def first_children(parents: Sequence[int]) -> list[int]:
    """Node indices of the path root, first child, first child of that, …"""
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return path
