"""Free drafters scored on text that was verified anyway: what one offered at a place, against what stood there in the end.

Where the target's own token is compared with the draft's (the rule match, and temperature 0), an offered token that equals the
one that became true is one that would have been accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Scored(NamedTuple):
    """What became of an offer. One that is open when the text ends is not judged."""

    offered: int  # tokens; 0 where the drafter was silent
    accepted: int


class UnverifiedDraft:
    """The open offer of one drafter, at most one at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._at = -1  # position of the next token to compare; -1: there is no offer
        self._tokens: tuple[int, ...] = ()
        self._right = 0

    @property
    def wants(self) -> bool:
        """Whether the next offer is wanted."""
        return self._at < 0

    def offer(self, position: int, tokens: Sequence[int]) -> None:
        """What the drafter offers for the tokens from `position` on; of a tree, the line of its first children.

        It must not have been verified: what was is known already. Ignored while another offer is open.
        """
        if self._at < 0:
            self._at, self._tokens, self._right = position, tuple(tokens), 0

    def score(self, start: int, tokens: Sequence[int]) -> list[Scored]:
        """These tokens became true from position `start` on; the offer that they settle, if they do.

        An offer that they do not continue is dropped: the text was cut, or it was continued without this drafter.
        """
        if self._at < 0:
            return []
        if start != self._at:
            self._at = -1
            return []
        offered, settled = len(self._tokens), False
        for token in tokens:
            settled = self._right == offered or token != self._tokens[self._right]
            if settled:
                break
            self._right += 1
            self._at += 1
        if not settled and self._right < offered:
            return []
        self._at = -1
        return [Scored(offered, self._right)]
