"""Drafting with P-EAGLE: all tokens from one pass, those that follow the first from rows that only know how far on they stand.

Source: P-EAGLE (arXiv 2602.01469).

Letters: `n` tokens of the draft, `V` vocabulary of the target, `d` width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.drafting import Context, Draft

from .draft import LONGEST, Rider


class Parallel(Rider):
    """Follows one conversation; makes chains only."""

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens; None where the newest state is unknown or a number is none."""
        position, count = len(context.tokens), min(context.nodes, LONGEST)
        features = self._trail.ahead(position, count - 1)  # [n, d]
        if features is None:
            return None
        logits = self._network.logits(features)
        if not bool(logits.isfinite().all()):
            self._trail.undo()
            return None
        rows = self._in_target_ids(logits)  # [n, V]
        return _drawn(context, rows) if context.probs else Draft(context.sample(rows, position, []))


def _drawn(context: Context, rows: Tensor) -> Draft:
    """Row after row from the `draft` stream, with `probs` [n, V]: only processors tie a row to the tokens before it."""
    path: list[int] = []
    laws: list[Tensor] = []
    for index, row in enumerate(rows):
        laws.append(context.to_probs(row, path))
        path.append(context.rng(len(context.tokens) + index).draw(laws[-1]))
    return Draft(torch.tensor(path), probs=torch.stack(laws))
