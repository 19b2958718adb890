"""What one round gave: the unit of timing, marks, statistics and cancellation."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from outrider.core.sampling.draft_tree import DraftTree


@dataclass(slots=True)
class RoundResult:
    """What one pass of the target gave. `tokens` are committed, newest last; all times are seconds."""

    tokens: list[int]
    path: list[int]  # accepted nodes of the draft
    draft: DraftTree  # what was verified
    logits: Tensor  # [1 + n, V] rows that were verified; of a captured round good until the next launch
    hidden: Tensor | None = None  # [new tokens, states asked for, d] behind each of `tokens`
    choices: Tensor | None = None  # [1 + n] the target's choice at the root and every node
    drafter: str = "none"  # who made the draft; "none" where nothing was proposed
    draft_s: float = 0.0
    verify_s: float = 0.0
    advance_s: float = 0.0  # in which the drafter got the tokens
    total_s: float = 0.0
    fresh: bool = False  # its pass was captured just now, so that the times say nothing
    asked: int = 0  # draft tokens that were asked for
    from_exit: bool = False  # the early layers of its pass had run while drafting, so the pass was not a whole one
    ahead: bool = False  # it was launched before it was chosen
    on_device: bool = False  # its draft was made there

    proposed: int = field(init=False)  # draft nodes that were verified
    accepted: int = field(init=False)  # those that stay
    kinds: str = field(init=False)  # of the tokens: A for each accepted one, then P, or B behind a leaf, else C

    def __post_init__(self) -> None:
        self.proposed, self.accepted = len(self.draft.ids), len(self.path)
        last = self.path[-1] + 1 if self.path else 0
        end = "P" if not self.proposed else "C" if self.draft.children[last] else "B"
        self.kinds = "A" * self.accepted + end

    @property
    def rows(self) -> list[int]:
        """Row of `logits` behind each of `tokens`."""
        return [0, *(node + 1 for node in self.path)]
