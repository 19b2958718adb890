"""One conversation of a DFlash drafter: its context rows, and from a block to a chain or a tree.

Letters: `n` drafting slots, `d` width, `V` vocabulary of the target, `Vd` of the draft, `P` target states of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from outrider.core.drafting import ChainSampler, Choose, Context, DeviceContext, Draft, Needs, Shape, Target
from outrider.core.drafting.state import Scratch, StateDrafter, Window
from outrider.core.sampling.sample import certainty, in_target_ids

from .build import Parts
from .heads import Follow
from .tree import best_first

TREE = 63  # nodes of the widest tree
UNSURE = -2  # no token, where the one that was guessed is not sure enough


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may set."""

    tree: bool | None = None  # a best-first tree of the slots' laws, or a chain; None: as is quick to make
    confidence: float = 0.0  # a chain stops before the first token whose chance to stay is said to be less


class Slots:
    """What one block gave: slot states [n, d] after the last norm, logits [n, Vd], and how they go on from a token."""

    def __init__(self, hidden: Tensor, logits: Tensor, follow: Follow | None) -> None:
        self.hidden, self.logits, self.linked = hidden, logits, follow is not None
        self.follow: Follow = follow or (lambda slot, previous: logits[slot])


class DFlashDrafter(StateDrafter):
    """Follows one conversation. The context rows always end before the newest token, whose states do not exist yet."""

    block = True

    def __init__(self, target: Target, parts: Parts, options: Options) -> None:
        self._target, self._parts, self._options = target, parts, options
        plan = parts.network.plan
        self.needs = Needs(hidden=plan.states)
        plain = parts.follower is None and parts.confidence is None and options.confidence == 0
        quick = plain and target.trees and target.graphs is None and target.device.type == "cpu"  # it asks for values
        self._bushy = quick if options.tree is None else options.tree
        self.shape = Shape(nodes=TREE if self._bushy else plan.drafts, depth=plan.drafts)
        self._state = parts.network.new_state(target)
        self.device = self._state.captured and not self._bushy

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens, with `probs` if they are wanted, or a tree without."""
        position = len(context.tokens)
        if not self._state.ready(position):
            return None
        most, tree = self._parts.network.plan.drafts, self._bushy and not (self._options.tree is None and context.probs)
        slots = self.slots(context.tokens[-1], most if tree else min(most, context.nodes))
        if not bool(slots.logits.isfinite().all()):
            self._state.wipe()
            return None
        if tree:
            return self._tree(slots, context)
        if slots.linked or context.probs or self._uses_confidence:
            return self._chain(slots, context)
        confidence = certainty(slots.logits) if self._weighs else None
        return Draft(context.sample(self._in_target_ids(slots.logits), position, []), confidence=confidence)

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """A chain, as `propose`."""
        drafts, network = min(self._parts.network.plan.drafts, context.nodes), self._parts.network
        rows, work = self._block(drafts) + 1, partial(self._ahead, context.choose, drafts)
        result = self._state.draft_ahead(context, drafts, work, rows=rows, masked=network.loose)
        return None if result is None else Draft(result)

    def _ahead(self, choose: Choose, drafts: int, _: None, scratch: Scratch, window: Window) -> Tensor:
        """The tokens [n] of a chain; it ends before the first one that is not sure enough."""
        root = window.root
        hidden, logits = self._pass(drafts, scratch, root)
        parts, least = self._parts, self._options.confidence
        if parts.follower is None and not least:
            return choose(self._in_target_ids(logits), torch.arange(drafts, device=root.device))
        slots = Slots(hidden, logits, parts.follower and parts.follower.follow(hidden, logits))
        path, more = [root], torch.ones_like(root, dtype=torch.bool)
        confidences = list[Tensor]()
        for slot in range(drafts):
            previous = path[-1].clamp(min=0)
            if parts.confidence is not None and least:
                more = more & (parts.confidence(hidden[slot], previous) >= least)
            path.append(choose(self._in_target_ids(slots.follow(slot, previous)[None]), slot))
            confidences.append(torch.where(more, path[-1], UNSURE))
        return torch.cat(confidences)

    def slots(self, root: int, drafts: int) -> Slots:
        """One pass over the anchor and mask tokens, and what it says of the first `drafts` drafting slots.

        Slots that see each other run in the block that they were trained in: on the starter the first 2 guesses of a block cut
        to them were right 13 % less often.
        """
        follower, network = self._parts.follower, self._parts.network
        self._state.feed(again=False)
        hidden, logits = self._state.draft(
            drafts, partial(self._pass, drafts), [root], rows=self._block(drafts) + 1, masked=network.loose
        )
        return Slots(hidden, logits, follower and follower.follow(hidden, logits))

    def _pass(self, drafts: int, scratch: Scratch, root: Tensor) -> tuple[Tensor, Tensor]:
        """States [n, d] and logits [n, Vd] of the first `drafts` drafting slots after the root [1]."""
        network, head = self._parts.network, self._parts.head or self._target.head
        first = int(not network.plan.from_anchor)
        ids = torch.full((self._block(drafts) + first,), network.plan.mask, device=self._target.device)
        ids[:1] = root
        hidden = network.block(self._embedded(ids), scratch, self._state.rows)[first : first + drafts]
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
        return not self._state.captured

    @property
    def _uses_confidence(self) -> bool:
        """Whether the confidence head is asked."""
        return self._parts.confidence is not None and (self._weighs or self._options.confidence > 0)

    def _chain(self, slots: Slots, context: Context) -> Draft | None:
        """Slot by slot. Whether one drafts at all is settled before its token is drawn, so `probs` stay honest."""
        count = slots.logits.shape[0]
        picks = ChainSampler(
            replace(context, worth_drafting=None), count, weighs=self._weighs
        )  # the block is there: no stop saves it
        for slot in range(count):
            previous = torch.tensor(picks.path[-1:] or context.tokens[-1:], device=slots.logits.device)
            sure = self.sure(slots, slot, previous) if self._uses_confidence else None
            if sure is not None and sure < self._options.confidence:
                break
            own = slots.follow(slot, previous)
            if not picks.add(self._in_target_ids(own[None])[0], own, sure):
                break
        return picks.draft()

    def sure(self, slots: Slots, slot: int, previous: Tensor) -> float:
        """Chance that the token of a slot stays after `previous` [1], as the confidence head says."""
        assert self._parts.confidence is not None
        return float(self._parts.confidence(slots.hidden[slot], previous))

    def _tree(self, slots: Slots, context: Context) -> Draft | None:
        """The best prefixes; where slots depend on the previous token, each node has laws of its own.

        Where they do not, the token that the target's noise draws by a slot's law stands for its best one, as it does in a chain.
        """
        most = min(context.nodes, slots.logits.shape[-1])

        @cache
        def law(slot: int, previous: int) -> tuple[list[float], list[int]]:
            own = slots.follow(slot, torch.tensor([previous], device=slots.logits.device))
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
