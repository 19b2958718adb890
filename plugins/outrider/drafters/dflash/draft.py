"""One conversation of a DFlash drafter: its context rows, and from a block to a chain or a tree.

Letters: `n` drafting slots, `d` width, `V` vocabulary of the target, `Vd` of the draft, `P` target states of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from outrider.core.drafting import Context, Draft, Needs, Shape, Step, Target
from outrider.core.drafting.chain import Picks
from outrider.core.model.cache.layout import Still
from outrider.core.model.lane import Lane
from outrider.core.model.steps import SHORT, Steps, filled
from outrider.core.sampling.sample import certainty, in_target_ids

from .build import Parts
from .heads import Follow
from .tree import best_first

TREE = 63  # nodes of the widest tree


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may set."""

    tree: bool | None = None  # a best-first tree of the slots' laws, or a chain; None: as is quick to make
    confidence: float = 0.0  # a chain stops before the first token whose chance to stay is said to be less


class Slots:
    """What one block gave: slot states [n, d] behind the last norm, logits [n, Vd], and how they go on from a token."""

    def __init__(self, hidden: Tensor, logits: Tensor, follow: Follow | None) -> None:
        self.hidden, self.logits, self.linked = hidden, logits, follow is not None
        self.follow: Follow = follow or (lambda slot, previous: logits[slot])


class Rider:
    """Follows one conversation. Row i of the context is position `origin + i`, the first one whose states are known.

    The rows always end before the newest token, whose states do not exist yet. Where tokens came without states the context
    begins anew behind them.
    """

    block = True

    def __init__(self, target: Target, parts: Parts, options: Options) -> None:
        self._target, self._parts, self._options = target, parts, options
        plan = parts.network.plan
        self.needs = Needs(hidden=plan.states)
        plain = parts.follower is None and parts.confidence is None and options.confidence == 0
        quick = plain and target.trees and target.graphs is None and target.device.type == "cpu"  # it asks for values
        self._bushy = quick if options.tree is None else options.tree
        self.shape = Shape(nodes=TREE if self._bushy else plan.drafts, depth=plan.drafts)
        self._rows = parts.network.new_rows()
        mixers, graphs = [layer.attention for layer in parts.network.layers], target.graphs
        self._steps = None if graphs is None else Steps(graphs, self._rows[0].parts[0], mixers)
        self.origin = self.count = 0

    # ------------------------------------------------------------------ what became true

    def reset(self) -> None:
        """Forget the conversation."""
        self.origin = self.count = 0

    def advance(self, step: Step) -> None:
        """Append context rows for the states that came."""
        states = 0 if step.hidden is None else step.hidden.shape[0]
        first = step.start + step.tokens.shape[0] - 1 - states  # position of the first state
        if first != self.origin + self.count:
            self.origin, self.count = first, 0
        if step.hidden is not None and states:
            self._keep(step.hidden)
            self.count += states

    def _keep(self, states: Tensor) -> None:
        """The next context rows, from [n, P, d]."""
        network, steps = self._parts.network, self._steps
        if steps is None or states.shape[0] > SHORT:
            network.keep(states, self.count, self._rows)
            return
        width = Lane.width(states.shape[0])

        def work(start: Tensor, states: Tensor) -> None:
            network.keep(states, Still(start, 0), self._rows)

        steps(("keep", width), work, steps.told([self.count]), filled(states, width))

    def rewind(self, length: int) -> None:
        """States of the first `length` tokens are still true."""
        self.count = max(0, min(self.count, length - self.origin))

    @torch.inference_mode()
    def fork(self) -> Rider:
        """Same weights, and a copy of the context."""
        copy = Rider(self._target, self._parts, self._options)
        copy.origin, copy.count = self.origin, self.count
        for mine, theirs in zip(self._rows, copy._rows, strict=True):
            for source, part in zip(mine.parts, theirs.parts, strict=True):
                part[: self.count] = source[: self.count]
        return copy

    def close(self) -> None:
        """Free the context; the weights go with the last reference."""
        self.reset()
        self._rows, self._steps = [], None

    # ------------------------------------------------------------------ guesses

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens, with `probs` if they are wanted, or a tree without."""
        position = len(context.tokens)
        if not self.count or self.origin + self.count != position - 1:
            return None  # no state is known, or it has not heard of everything
        most, tree = self._parts.network.plan.drafts, self._bushy and not (self._options.tree is None and context.probs)
        slots = self.slots(context.tokens[-1], most if tree else min(most, context.nodes))
        if not bool(slots.logits.isfinite().all()):
            for rows in self._rows:
                rows.wipe(self.count)
            return None
        if tree:
            return self._tree(slots, context)
        if slots.linked or context.probs or self._tells:
            return self._chain(slots, context)
        held = certainty(slots.logits) if self._weighs else None
        return Draft(context.sample(self._in_target_ids(slots.logits), position, []), confidence=held)

    def slots(self, root: int, drafts: int) -> Slots:
        """One pass over the anchor and mask tokens, and what it says of the first `drafts` drafting slots.

        Slots that see each other run in the block that they were trained in: on the starter the first 2 guesses of a block cut
        to them were right 13 % less often.
        """
        follower, steps = self._parts.follower, self._steps
        if steps is None:
            hidden, logits = self._pass(root, drafts, self.count)
        else:
            end = steps.end(self.count + self._block(drafts) + 1, self._rows[0], masked=self._parts.network.loose)

            def work(sheet: Tensor) -> tuple[Tensor, Tensor]:
                return self._pass(sheet[:1], drafts, Still(sheet[1:], end))

            hidden, logits = steps((drafts, end), work, steps.told([root, self.count]))
        return Slots(hidden, logits, follower and follower.follow(hidden, logits))

    def _pass(self, root: int | Tensor, drafts: int, start: int | Still) -> tuple[Tensor, Tensor]:
        """States [n, d] and logits [n, Vd] of the first `drafts` drafting slots behind `start` context rows."""
        network, head = self._parts.network, self._parts.head or self._target.head
        first = int(not network.plan.from_anchor)
        ids = torch.full((self._block(drafts) + first,), network.plan.mask, device=self._target.device)
        ids[:1] = root
        hidden = network.block(self._embedded(ids), start, self._rows)[first : first + drafts]
        return hidden, head(hidden)

    def _block(self, drafts: int) -> int:
        """Drafting slots of the pass that guesses `drafts` tokens."""
        plan = self._parts.network.plan
        return drafts if all(sight.causal for sight in plan.sights) else plan.drafts

    def _embedded(self, ids: Tensor) -> Tensor:
        """[B] -> [B, d]. A target that norms its embeddings shows its drafter the rows before that."""
        raw = self._target.info.architecture.startswith("muse_glimmer")
        x = self._target.embed_raw(ids) if raw else self._target.embed(ids)
        scale = self._parts.network.plan.embed_scale
        return x if scale == 1.0 else x * scale

    @property
    def _weighs(self) -> bool:
        """Whether it says how sure it is: not where the block is captured, and the device would be asked for it."""
        return self._steps is None

    @property
    def _tells(self) -> bool:
        """Whether the confidence head is asked."""
        return self._parts.confidence is not None and (self._weighs or self._options.confidence > 0)

    def _chain(self, slots: Slots, context: Context) -> Draft | None:
        """Slot by slot. Whether one drafts at all is settled before its token is drawn, so `probs` stay honest."""
        count = slots.logits.shape[0]
        picks = Picks(replace(context, go_on=None), count, weighs=self._weighs)  # the block is there: no stop saves it
        for slot in range(count):
            previous = picks.path[-1] if picks.path else context.tokens[-1]
            sure = self.sure(slots, slot, previous) if self._tells else None
            if sure is not None and sure < self._options.confidence:
                break
            own = slots.follow(slot, previous)
            if not picks.add(self._in_target_ids(own[None])[0], own, sure):
                break
        return picks.draft()

    def sure(self, slots: Slots, slot: int, previous: int) -> float:
        """Chance that the token of a slot stays, as the confidence head says."""
        assert self._parts.confidence is not None
        return self._parts.confidence(slots.hidden[slot], previous)

    def _tree(self, slots: Slots, context: Context) -> Draft | None:
        """The best prefixes; where slots hang on the token before, each node has laws of its own.

        Where they do not, the token that the target's noise draws by a slot's law stands for its best one, as it does in a chain.
        """
        most = min(context.nodes, slots.logits.shape[-1])

        @cache
        def law(slot: int, previous: int) -> tuple[list[float], list[int]]:
            own = slots.follow(slot, previous)
            weights, places = own.float().log_softmax(-1).topk(most)
            ids: list[int] = self._named(places).tolist()
            if not slots.linked:
                first = int(context.sample(self._in_target_ids(own[None]), len(context.tokens) + slot, [])[0])
                ids = [first, *(id for id in ids if id != first)][:most]
            return weights.tolist(), ids

        def ranked(slot: int, previous: int) -> tuple[list[float], list[int]]:
            return law(slot, previous if slots.linked else 0)

        tokens, parents = best_first(ranked, context.tokens[-1], slots.logits.shape[0], context.nodes)
        return Draft(torch.tensor(tokens), torch.tensor(parents)) if tokens else None

    def _named(self, ids: Tensor) -> Tensor:
        """Ids of the draft's vocabulary as those of the target."""
        head = self._parts.head
        return ids if head is None else head.ids[ids]

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """[n, Vd] -> [n, V]; ids that the draft does not know get -inf."""
        head = self._parts.head
        return in_target_ids(logits, None if head is None else head.ids, self._target.info.vocab)
