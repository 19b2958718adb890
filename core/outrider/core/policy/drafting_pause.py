"""Whether it pays to ask drafters at all: asking takes time even in rounds where nobody drafts.

What rounds gave is compared with what passes take in which nobody was asked. Where that is a loss, nobody is asked for some
rounds; then a few rounds show whether the text has changed. A difference that chance alone may make is no loss, and plain
passes from long ago say nothing, as the machine may have been quiet then.
"""

from __future__ import annotations

import math

NAP, LOOK = 24, 8  # rounds in which nobody is asked, and rounds after which that is thought of anew
KEEP = 0.97  # discount of older rounds
LOSS = 0.985  # rate over plain passes below which asking is a loss, and not noise
SURE = 2.0  # standard errors by which it has to be one
KNOWN = 4  # plain passes that a comparison needs
STALE = 32  # rounds without a plain pass after which nothing is known of them any more
CALM, CALMEST = 2, 64  # plain rounds in a row after which one more is expected: at first, and at most
HOST, OFFERS = 0.1, 0.05  # share of a round that is the host's until it is known, and step of its moving average
STEP, CLAMP = 0.2, 0.25  # of the moving average of plain passes, and the share of it that one may differ by


class DraftingPause:
    """Of one policy."""

    def __init__(self) -> None:
        self._plain, self._known = 0.0, 0  # seconds of a pass in which nobody was asked, and how many there were
        self._spread = 0.0  # variance of these
        self._since = 0  # rounds since the last one
        self.left = 0  # rounds of this nap
        self.wake()

    def begins(self) -> bool:
        """A round begins; whether it is one of rest."""
        if not self.left and self._asked >= LOOK and self._known >= KNOWN and self._loses():
            self.left, self._asked = NAP, 0
        if not self.left:
            return False
        self.left -= 1
        return True

    def wake(self) -> None:
        """The text goes on in another way."""
        self.left = self._asked = 0  # rounds since the last nap
        self._worth = self._spent = 0.0  # seconds that plain passes would have taken, and that rounds took
        self._rounds = self._tokens = self._squares = 0.0  # of what was asked; squares of the seconds that each lost

    def alone(self, seconds: float) -> None:
        """A plain pass in which nobody was asked."""
        self._known, self._since = self._known + 1, 0
        if self._known == 1:
            self._plain, self._spread = seconds, 0.0
        bound = CLAMP * self._plain
        off, step = max(-bound, min(bound, seconds - self._plain)), max(STEP, 1 / self._known)
        self._plain += step * off
        self._spread += step * (off * off - self._spread)

    def asked(self, tokens: int, seconds: float) -> None:
        """A round in which drafters were asked."""
        self._asked += 1
        self._since += 1
        if self._since > STALE:
            self._known = 0
        worth = tokens * self._plain
        self._worth, self._spent = KEEP * self._worth + worth, KEEP * self._spent + seconds
        self._rounds, self._tokens = KEEP * self._rounds + 1, KEEP * self._tokens + tokens
        self._squares = KEEP * self._squares + (seconds - worth) ** 2

    def _loses(self) -> bool:
        """Whether asking loses time, and by more than chance."""
        if self._worth >= LOSS * self._spent:
            return False
        lost, each = (self._spent - self._worth) / self._rounds, self._tokens / self._rounds
        scatter = max(0.0, self._squares / self._rounds - lost * lost) / self._rounds
        plain = self._spread * max(STEP / (2 - STEP), 1 / self._known)
        return lost > SURE * math.sqrt(scatter + each * each * plain)


class PlainRuns:
    """Whether one more plain round is likely, so that it may be launched before the last one is read.

    A wrong guess costs the tokens of one draft. So it takes some plain rounds in a row, and twice as many after each wrong one.
    """

    def __init__(self) -> None:
        self._length, self._needed = 0, CALM

    @property
    def go_on(self) -> bool:
        """Whether a run that the round at hand belongs to will go on."""
        return self._length + 1 >= self._needed

    def add(self, *, plain: bool) -> None:
        """A round is over."""
        self._length = self._length + 1 if plain else 0
        if self._length >= CALMEST:
            self._needed = CALM

    def missed(self) -> None:
        """The round that is being read was to be drafted after all."""
        self._length, self._needed = 0, min(2 * self._needed, CALMEST)


class DraftsAhead:
    """Whether drafts of one drafter should be launched before the last round is read, though others may have a better one then.

    That saves what the host does in a round, and costs what those offers were worth; both are shares of a round.
    """

    def __init__(self) -> None:
        self._saved, self._lost = HOST, 0.0

    @property
    def pays(self) -> bool:
        """Whether it saves more than it costs."""
        return self._lost < self._saved

    def looked(self, best: float, own: float) -> None:
        """The best rate of a round, and the best one without offers of free drafters."""
        self._lost += OFFERS * (1 - min(1.0, own / best) - self._lost)

    def took(self, host: float, total: float) -> None:
        """Seconds of a round, and those of the host in it."""
        if total > 0:
            self._saved += OFFERS * (host / total - self._saved)
