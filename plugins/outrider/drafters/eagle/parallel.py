"""Drafting with P-EAGLE: all tokens from one pass, those that follow the first from rows that only know how far on they stand.

Source: P-EAGLE (arXiv 2602.01469).

Letters: `n` tokens of the draft, `V` vocabulary of the target, `d` width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from outrider.core.drafting import ChainSampler, Choose, Context, DeviceContext, Draft
from outrider.core.drafting.state import Scratch, Window
from outrider.core.sampling.sample import certainty

from .draft import LONGEST, EagleDrafter


class Parallel(EagleDrafter):
    """Follows one conversation; makes chains only."""

    block = True

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens; None where the newest state is unknown or a number is none."""
        position, mask = len(context.tokens), self._network.mask
        if mask is None or not self._state.ready(position):
            return None
        count = min(context.nodes, LONGEST)
        logits, _ = self._state.feed(([mask.token] * (count - 1), mask.state.expand(count - 1, -1)))  # [n, Vd]
        if not bool(logits.isfinite().all()):
            self._state.undo()
            return None
        rows, weighs = self._in_target_ids(logits), not self._state.captured  # [n, V]
        if not context.probs:
            confidence = certainty(logits) if weighs else None
            return Draft(context.sample(rows, position, []), confidence=confidence)
        picks = ChainSampler(
            replace(context, worth_drafting=None), count, weighs=weighs
        )  # all is there: no stop saves it
        for row, own in zip(rows, logits, strict=True):  # only processors tie a row to the tokens before it
            picks.add(row, own)
        return picks.draft()

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`."""
        if self._network.mask is None:
            return None
        count = min(context.nodes, LONGEST)
        result = self._state.draft_ahead(context, count, partial(self._ahead, context.choose, count), rows=count)
        return None if result is None else Draft(result)

    def _ahead(
        self, choose: Choose, count: int, outputs: tuple[Tensor, Tensor], scratch: Scratch, window: Window
    ) -> Tensor:
        """The tokens [count] of a chain."""
        logits, mask, root = outputs[0], self._network.mask, window.root
        if mask is not None and count > 1:
            ids, states = root.new_full((count - 1,), mask.token), mask.state.expand(count - 1, -1)
            behind, _ = self._network.run(self._state.rows, ids, states, scratch.line(count - 1), slice(None))
            logits = torch.cat((logits, behind))
        return choose(self._in_target_ids(logits), torch.arange(count, device=root.device))
