"""Drafting with EAGLE: a chain, or the tree that EAGLE-2 grows where the draft itself is sure.

Sources: EAGLE (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858), EAGLE-3 (arXiv 2503.01840).

Letters: `n` nodes of the draft, `k` nodes that are followed on every level, `V` vocabulary of the target, `Vd` of the
draft, `d` width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from outrider.core.drafting import ChainSampler, Choose, Context, DeviceContext, Draft, Needs, Shape
from outrider.core.drafting.state import DraftState, Scratch, StateDrafter, Window
from outrider.core.sampling.sample import in_target_ids

from .network import Network

if TYPE_CHECKING:
    pass

LONGEST = 32  # tokens of a chain, levels of a tree
NODES = 63  # of a tree
WIDEST = 32  # nodes that a level may follow


@dataclass(frozen=True, slots=True)
class Style:
    """How drafts are made. `auto`: a chain where the budget is no more than `depth`, else a tree."""

    tree: Literal["auto", "chain", "tree"] = "auto"
    depth: int = 8  # levels of a tree below the root
    top_k: int = 10  # children of a node, and nodes that are followed on every level

    def branches(self, nodes: int) -> bool:
        """Whether a draft of so many nodes is a tree."""
        return self.tree == "tree" or (self.tree == "auto" and nodes > self.depth)

    @property
    def shape(self) -> Shape:
        """The largest draft."""
        if self.tree == "chain":
            return Shape(LONGEST, LONGEST)
        return Shape(NODES, self.depth)

    @property
    def scratch(self) -> int:
        """Rows that a draft writes at most."""
        return max(LONGEST, (self.depth - 1) * self.top_k)


class EagleDrafter(StateDrafter):
    """Follows one conversation."""

    def __init__(self, network: Network, state: DraftState, states: tuple[int, ...], vocab: int, style: Style) -> None:
        self.needs = Needs(hidden=states)
        self.shape = style.shape
        self.line = style.depth if style.tree == "auto" else None
        self.device = state.captured
        self._network, self._state, self._vocab, self._style = network, state, vocab, style

    @property
    def nbytes(self) -> int:
        """Bytes of weights, and of this conversation's keys and values."""
        return self._network.nbytes + self._state.nbytes

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain or a tree of up to `context.nodes` tokens; None where the newest state is unknown or a number is none."""
        if not self._state.ready(len(context.tokens)):
            return None
        logits, back = self._state.feed()  # [1, Vd], [1, d]
        if self._style.branches(context.nodes):
            return self._tree(context, logits, back, min(context.nodes, NODES))
        return self._chain(context, logits, back, min(context.nodes, LONGEST))

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`, a chain or a tree of all that is asked for."""
        if self._style.branches(context.nodes):
            count = min(context.nodes, NODES)
            rows = (self._style.depth - 1) * self._style.top_k
            result = self._state.draft_ahead(
                context, ("tree", count), partial(self._tree_ahead, context.choose, count), rows=rows
            )
            return result and Draft(*result)
        count = min(context.nodes, LONGEST)
        result = self._state.draft_ahead(context, count, partial(self._chain_ahead, context.choose, count), rows=count)
        return None if result is None else Draft(result)

    def _chain_ahead(
        self, choose: Choose, count: int, outputs: tuple[Tensor, Tensor], scratch: Scratch, _: Window
    ) -> Tensor:
        """The tokens [count] of a chain."""
        (logits, back), path = outputs, list[Tensor]()
        while True:
            path.append(choose(self._in_target_ids(logits), len(path)))
            if len(path) == count:
                return torch.cat(path)
            where = scratch.line(1, len(path) - 1)
            logits, back = self._network.run(self._state.rows, path[-1].clamp(min=0), back, where, slice(0, 1))

    def _tree_ahead(
        self, choose: Choose, count: int, outputs: tuple[Tensor, Tensor], scratch: Scratch, window: Window
    ) -> tuple[Tensor, Tensor]:
        """Tokens and parents [count] of a tree."""
        logits, back = outputs
        drawn = choose(self._in_target_ids(logits), 0)
        return _likeliest(*self._grow(scratch, window.root, logits, back, drawn), count)[:2]

    def _chain(self, context: Context, logits: Tensor, back: Tensor, count: int) -> Draft | None:
        """Up to `count` tokens, drawn as the target would draw them, or from the `draft` stream with `probs` [n, V]."""
        picks = ChainSampler(context, count, weighs=not self._state.captured)
        while picks.add(self._in_target_ids(logits[0]), logits[0]):
            logits, back = self._state.follow(picks.path[-1], back, len(picks.path))
        if picks.broken:
            self._state.wipe()
            return None
        return picks.draft()

    def _tree(self, context: Context, logits: Tensor, back: Tensor, count: int) -> Draft | None:
        """EAGLE-2: follow the k likeliest nodes of every level, then keep the `count` likeliest of all that were seen.

        The token that the target's noise draws by the law of the first level stands for its likeliest one, as in a chain.
        """
        first = self._children(logits)[0][0, :1]
        if not context.probs and bool(logits.isfinite().all()):
            first = context.sample(self._in_target_ids(logits), len(context.tokens), [])
        rows = (self._style.depth - 1) * self._style.top_k
        tokens, scores, parents = self._state.draft("tree", self._grow, (), logits, back, first, rows=rows)
        if bool(scores.isnan().any()):
            self._state.wipe()
            return None
        found, above, chances = _likeliest(tokens, scores, parents, count)
        return Draft(found.cpu(), above.cpu(), confidence=chances.cpu())

    def _grow(
        self, scratch: Scratch, _: Tensor, logits: Tensor, back: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All nodes that were seen, level by level: tokens, log-probabilities of their paths, parents, each [nodes].

        `drawn` [1] goes before the other tokens of the first level; the probabilities there are those of the ranks.
        """
        network, device = self._network, back.device
        tokens, scores = self._children(logits)  # [1, k]
        k = tokens.shape[1]
        later = torch.cat((torch.zeros_like(drawn, dtype=torch.bool), tokens[0] == drawn))  # what is drawn comes once
        tokens = torch.cat((drawn, tokens[0]))[later.sort(stable=True).indices[:k]][None]
        grown = [(tokens[0], scores[0], torch.full((k,), -1, device=device))]  # token, log p of its path, parent
        front = torch.arange(k, device=device)  # [k] nodes that are followed
        tokens, scores, states = tokens[0], scores[0], back.expand(k, -1)
        depths, seen = torch.zeros_like(front), torch.eye(k, dtype=torch.bool, device=device)
        for level in range(1, self._style.depth):
            feature = network(tokens, states, scratch.tree(depths, seen), self._state.rows)  # [k, d]
            below, gains = self._children(network.logits(feature))  # [k, k]
            totals = (scores[:, None] + gains).flatten()
            first = k + (level - 1) * k * k  # number of the first of these nodes
            grown.append((below.flatten(), totals, front.repeat_interleave(k)))
            best = totals.sort(descending=True, stable=True).indices[:k]
            parents = best // k
            front, tokens, scores = first + best, below.flatten()[best], totals[best]
            states = network.fed_back(feature)[parents]
            depths = torch.cat((depths, torch.full((k,), level, device=device)))
            seen = torch.cat((seen[parents], torch.eye(k, dtype=torch.bool, device=device)), 1)
        tokens, scores, parents = (torch.cat(parts) for parts in zip(*grown, strict=True))
        return tokens, scores, parents

    def _children(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[S, Vd] -> the likeliest tokens after each, in target ids, and their log-probabilities, both [S, k]."""
        logs = logits.float().log_softmax(-1)
        scores, words = logs.topk(min(self._style.top_k, logs.shape[-1]))
        return words if self._network.words is None else self._network.words[words], scores

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """[..., Vd] -> [..., V]: words outside a reduced head are never drafted."""
        return in_target_ids(logits, self._network.words, self._vocab)


def _likeliest(tokens: Tensor, scores: Tensor, parents: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best nodes as they grew: tokens, parents, and the chance that the parent's law gave to each rank.

    No node is likelier than its parent, and of equal ones the older comes first, so every parent is among them.
    """
    best = scores.sort(descending=True, stable=True).indices[:count].sort().values  # [n]
    place = torch.full((scores.shape[0] + 1,), -1, device=scores.device)  # one more for the root
    place[best] = torch.arange(best.shape[0], device=scores.device)
    above = torch.cat((scores, scores.new_zeros(1)))[parents[best]]  # 0 for the root, which is the last
    chances = (scores[best] - above).exp().nan_to_num(0.0).clamp(max=1.0)
    return tokens[best], place[parents[best]], chances
