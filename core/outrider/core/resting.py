"""Whether it pays to ask drafters at all: asking takes time even in rounds where nobody drafts.

What rounds gave is compared with what passes take in which nobody was asked. Where that is a loss, nobody is asked for some
rounds; then a few rounds show whether the text has changed.
"""

from __future__ import annotations

NAP, LOOK = 24, 8  # rounds in which nobody is asked, and rounds after which that is thought of anew
KEEP = 0.97  # discount of older rounds
LOSS = 0.985  # rate over plain passes below which asking is a loss, and not noise
KNOWN = 4  # plain passes that a comparison needs
STEP, CLAMP = 0.2, 0.25  # of the moving average of plain passes, and the share of it that one may differ by


class Resting:
    """Of one policy."""

    def __init__(self) -> None:
        self._plain, self._known = 0.0, 0  # seconds of a pass in which nobody was asked, and how many there were
        self._worth = self._spent = 0.0  # seconds that plain passes would have taken, and that rounds took
        self._asked = 0  # rounds since the last nap
        self.left = 0  # rounds of this nap

    def begins(self) -> bool:
        """A round begins; whether it is one of rest."""
        if not self.left and self._asked >= LOOK and self._known >= KNOWN and self._worth < LOSS * self._spent:
            self.left, self._asked = NAP, 0
        if not self.left:
            return False
        self.left -= 1
        return True

    def wake(self) -> None:
        """The text goes on in another way."""
        self.left = self._asked = 0
        self._worth = self._spent = 0.0

    def alone(self, seconds: float) -> None:
        """A plain pass in which nobody was asked."""
        self._known += 1
        if self._known == 1:
            self._plain = seconds
        bound = CLAMP * self._plain
        self._plain += STEP * max(-bound, min(bound, seconds - self._plain))

    def asked(self, tokens: int, seconds: float) -> None:
        """A round in which drafters were asked."""
        self._asked += 1
        self._worth = KEEP * self._worth + tokens * self._plain
        self._spent = KEEP * self._spent + seconds
