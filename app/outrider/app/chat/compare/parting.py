"""Where two texts of the same seed part, and whether rounding explains it: what compare mode and `/verify` say about it.

Passes of different widths add their sums up in different orders, so two tokens that are as good as equally likely may change
places. How far the scores of these two differ between the two passes tells such a near-tie from a mistake, with sampled text
too, as the noise of a token is the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from outrider.core.base.protocol import Step

NEAR, NEAR_ROUNDED = 1e-3, 0.25  # of scores that moved; the first where all sums are fp32
_FP32 = ("fp32", "float32")
_AROUND = 24  # characters told before a difference

Verdict = Literal["near-tie", "difference", "unchecked"]


class Said(msgspec.Struct, omit_defaults=True):
    """What one of two texts said. `text` None: it ended. `ahead`: by how much its token led the other's in its own pass, as the
    natural logarithm of their probabilities' ratio; None: not known."""

    text: str | None
    ahead: float | None = None


class Parting(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The first difference of two texts. `moved`: how far the two passes differ in the scores of the two tokens."""

    one: str
    other: str
    token: int  # from 0
    before: str = ""
    ours: Said  # what `one` said
    theirs: Said
    moved: float | None = None
    verdict: Verdict = "unchecked"

    def words(self) -> str:
        """In words, two or three short sentences."""
        where = f"From token {self.token + 1}"
        behind = f", behind “…{self.before}”," if self.before else ""
        text = f"{where}{behind} {self.one} {_told(self.ours)}, {self.other} {_told(self.theirs)}."
        return f"{text} {self._judged()}"

    def _judged(self) -> str:
        if self.moved is None:
            return "How near the two were is not known; `outrider verify` finds out."
        near = f"the two passes differ by {self.moved:.2g} in the scores of these two"
        if self.verdict == "near-tie":
            return f"A near-tie: {near}, so rounding decided."
        return f"A difference: {near}, more than rounding explains; `outrider verify` looks at it in fp32."


@dataclass(frozen=True, slots=True)
class Seen:
    """One token and what its pass held of others: probabilities by id."""

    id: int
    text: str
    chances: dict[int, float]

    def ahead_of(self, other: int | None) -> float | None:
        """By how much it led another token; None if that is not known."""
        own, rival = self.chances.get(self.id), self.chances.get(other) if other is not None else None
        if not own or not rival:
            return None
        return math.log(own) - math.log(rival)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Place of the first token that differs, None if there is none."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def seen(steps: Sequence[Step], place: int, text: Sequence[int]) -> Seen | None:
    """The token at `place` with its chances, if these passes, asked for in detail, went the way of `text` up to there."""
    tokens = [token for step in steps for token in step.tokens]
    if [token.id for token in tokens[: place + 1]] != list(text[: place + 1]) or place >= len(tokens):
        return None
    tops = [top for step in steps for top in (step.top or [[] for _ in step.tokens])]
    chances = dict(tops[place])
    token = tokens[place]
    if token.p is not None:
        chances[token.id] = token.p
    return Seen(token.id, token.text, chances)


def text_at(steps: Sequence[Step], place: int) -> str | None:
    """What stands there, None behind the end."""
    tokens = [token for step in steps for token in step.tokens]
    return tokens[place].text if place < len(tokens) else None


def text_before(steps: Sequence[Step], place: int) -> str:
    """A few characters before a token, in one line."""
    tokens = [token for step in steps for token in step.tokens]
    return " ".join("".join(token.text for token in tokens[:place])[-_AROUND:].split())


def judge(parting: Parting, ours: Seen | None, theirs: Seen | None, *, dtype: str, exact: bool) -> Parting:
    """The same with what both passes tell. In exact mode nothing may differ."""
    if ours is None or theirs is None:
        return parting
    parting.ours.ahead, parting.theirs.ahead = ours.ahead_of(theirs.id), theirs.ahead_of(ours.id)
    if parting.ours.ahead is None or parting.theirs.ahead is None:
        return parting
    parting.moved = abs(parting.ours.ahead + parting.theirs.ahead)
    limit = NEAR if dtype in _FP32 else NEAR_ROUNDED
    parting.verdict = "near-tie" if parting.moved <= limit and not exact else "difference"
    return parting


def _told(said: Said) -> str:
    what = "ended" if said.text is None else f"said “{said.text}”" if said.text.strip() else f"said {said.text!r}"
    if said.ahead is None:
        return what
    side = "ahead" if said.ahead >= 0 else "behind"
    return f"{what} ({side} by {abs(said.ahead):.2g})"
