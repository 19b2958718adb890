"""Hidden states of tokens that were read for another drafter: computed again for one that takes up late.

The keys and values of a cached prompt, or of an answer that was begun with another drafter, say nothing of the states that EAGLE
and its kin draft from. The newest of these tokens are read again into a cache of their own. The target's cache is neither read
nor written, whatever kind it is, so the text cannot change. Where the text is longer than what is read again, the states are
those of its end alone: near to the true ones, and a draft is verified anyway.

Letters: `S` tokens read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.drafting.active import ActiveDrafter
from outrider.core.drafting.contract import Committed
from outrider.core.model.model import TargetModel
from outrider.core.policy.costs import Costs

MOST, CHUNK = 1024, 512  # tokens that are read again, and those of one pass
SECONDS, PASSES = 0.5, 12  # that this may take: the longer of so long and so many plain passes
TIMED = 32  # rows of the pass whose cost per row bounds that of wider ones
FEW = 16  # a drafter that lacks less than one in so many of the states drafts as well without them
NEAR = (64, 256)  # newest tokens of which that must be true too


def give_states(target: TargetModel, tokens: Sequence[int], drafter: ActiveDrafter, costs: Costs) -> None:
    """Give `drafter` the states of the newest tokens if it needs and lacks them; `tokens` are all, which it knows."""
    count = min(len(tokens) - 1, affordable(costs))  # the root has not been read yet
    reaches = [min(newest, count) for newest in (*NEAR, count)]
    if drafter.failed or all(FEW * drafter.lacking(reach) <= reach for reach in reaches):
        return
    first, states = len(tokens) - 1 - count, list[Tensor]()
    with target.using(target.decoder.new_cache(count)):
        for at in range(first, len(tokens) - 1, CHUNK):
            chunk = tokens[at : min(at + CHUNK, len(tokens) - 1)]
            hidden = target.forward(chunk, last=True, states=drafter.needs.hidden).hidden  # [S, states, d]
            assert hidden is not None
            states.append(hidden)
            target.commit(at + len(chunk) - first)
    fresh = torch.tensor(tokens[first + 1 :])
    drafter.restate(Committed(first + 1, fresh, torch.empty(0, dtype=torch.int64), torch.cat(states)))


def affordable(costs: Costs) -> int:
    """Tokens that may be read again."""
    each = costs.of(TIMED) / TIMED
    return max(1, min(MOST, int(max(SECONDS, PASSES * costs.of(1)) / each)))
