"""What stays between answers: the ids whose K/V are in the cache, what the newest prompt ended with, every loaded drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.core.drafting.active import ActiveDrafter
from outrider.core.drafting.contract import Committed
from outrider.core.model.model import TargetModel

from .pool import DrafterPool

CHUNK = 512  # prompt tokens of one prefill pass; cancellation and progress happen between passes


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """What the last token of a prompt gave."""

    length: int  # tokens of the prompt
    logits: Tensor  # [1, V]
    states: tuple[int, ...]  # numbers of the residuals in `hidden`
    hidden: Tensor | None  # [1, states, d]


@dataclass(slots=True)
class ChatCache:
    """What stays between answers: the ids whose K/V are in the cache, and the drafters that follow them."""

    target: TargetModel
    tokens: list[int] = field(default_factory=list)
    drafters: DrafterPool = field(default_factory=DrafterPool)
    whole: int = 0  # of them that were prefilled in whole chunks; kept in exact mode alone
    end: PromptEnd | None = None  # of the newest prompt, as long as the cache begins with it

    def ended(self, ids: Sequence[int]) -> PromptEnd | None:
        """What the last of `ids` gave, if they are the newest prompt and in the cache whole."""
        end = self.end
        if end is None or end.length != len(ids) or self.target.length < end.length:
            return None
        return end if self.tokens[: end.length] == list(ids) else None

    def reuse_whole(self, ids: Sequence[int]) -> bool:
        """Cut target and drafters to `ids`, which the cache begins with; False where the target's state is not known there."""
        if self.target.rewind(len(ids)) != len(ids):
            return False
        self.drafters.rewind(len(ids))
        self.tokens = list(ids)
        return True

    def reuse(self, ids: Sequence[int]) -> int:
        """Cut target and drafters to the prefix shared with `ids` (or less of it, where a state cannot be cut there).

        At least one id is left to prefill. Returns the length kept.
        """
        shared = 0
        for old, new in zip(self.tokens[: self.target.length], ids[:-1], strict=False):
            if old != new:
                break
            shared += 1
        shared = self._rewind_whole(shared) if self.target.exact else self.target.rewind(shared)
        self.drafters.rewind(shared)
        self.tokens = list(ids)
        if self.end is not None and shared < self.end.length:
            self.end = None
        return shared

    def _rewind_whole(self, shared: int) -> int:
        """Exact mode: the same chunks come before what follows, so that reused tokens are as a new prefill would make them."""
        shared = min(shared, self.whole)
        while shared % CHUNK or self.target.length != shared:
            shared = self.target.rewind(shared - shared % CHUNK)
        self.whole = shared
        return shared

    def prefilled(self, length: int, stable: int, end: int) -> None:
        """The first `length` tokens of a prompt of `end` are committed; the next one will share its first `stable`."""
        if not self.target.exact:
            if length == stable:
                self.target.snapshot()
        elif length % CHUNK == 0:
            self.whole = length
            if length + CHUNK > end:
                self.target.snapshot()

    def observe(self, drafter: ActiveDrafter | None, end: int, hidden: Tensor | None) -> None:
        """Give a drafter the tokens up to `end` that it does not know; `hidden` belongs to the last of them."""
        if drafter is not None and drafter.known < end:
            fresh = torch.tensor(self.tokens[drafter.known : end])
            drafter.advance(Committed(drafter.known, fresh, torch.empty(0, dtype=torch.int64), hidden))
