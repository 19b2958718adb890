"""What the passes of one reply add up to: the counts behind every figure of the panel. Knows no widgets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from outrider.app.chat.meter import Compared
from outrider.core.base.protocol import PlainPass, Report, Speedup, Step

SPAN = 60.0  # seconds of the sparkline
COLUMNS = 20  # of it
SLICE = SPAN / COLUMNS  # seconds of one


@dataclass(slots=True)
class Share:
    """Passes of one sort, their tokens and their milliseconds."""

    passes: int = 0
    tokens: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    host_ms: float = 0.0

    def add(self, step: Step) -> None:
        """Count one pass."""
        self.passes += 1
        self.tokens += len(step.tokens)
        self.draft_ms += step.draft_ms
        self.verify_ms += step.verify_ms
        self.host_ms += step.host_ms

    @property
    def tokens_per_pass(self) -> float:
        """0 without passes."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def ms(self) -> tuple[float, float, float]:
        """Draft, verify and host of a pass."""
        count = max(1, self.passes)
        return self.draft_ms / count, self.verify_ms / count, self.host_ms / count


class Tally:
    """Sums over the passes of one reply. The pass that reads the prompt is none of them.

    A reply that goes on after it was stopped begins again with such a pass; its clock goes on too.
    """

    def __init__(self) -> None:
        self.all, self.drafted, self.plain = Share(), Share(), Share()
        self.phases: dict[str, Share] = {}
        self.proposed = self.accepted = self.ignored = 0
        self.reached: list[int] = []  # by depth from 1: passes with a draft so deep in which all before it was right
        self.right: list[int] = []  # those of them in which it was right there too
        self.drafters: dict[str, int] = {}
        self.prompt = self.reused = 0  # tokens
        self.prefill_s = self.first_token_s = self.decode_s = 0.0
        self.written = 0  # tokens of the reply
        self.measured: PlainPass | None = None
        self.slices: deque[tuple[int, int, int]] = deque(maxlen=COLUMNS)  # number, passes and tokens of each
        self._begun = False
        self._base = self._last = 0.0

    def take(self, step: Step) -> None:
        """Count one pass."""
        self.written += len(step.tokens)
        if step.seq == 0:
            self._begin(step)
            return
        now = self._base + step.t
        self.decode_s += now - self._last
        self._last = now
        self.all.add(step)
        (self.drafted if step.proposed else self.plain).add(step)
        self.phases.setdefault(step.phase, Share()).add(step)
        self.drafters[step.drafter] = self.drafters.get(step.drafter, 0) + 1
        self.measured = step.plain or self.measured
        self._slice(now, len(step.tokens))
        if step.proposed:
            self._depths(step)

    def _begin(self, step: Step) -> None:
        if not self._begun:
            self.first_token_s = step.t
        self._begun = True
        self.prompt, self.reused = step.prompt, step.reused
        self.prefill_s = step.verify_ms / 1000
        self._base = self._last
        self._last = self._base + step.t

    def _depths(self, step: Step) -> None:
        depth = step.depth or step.proposed  # old traces do not tell
        self.proposed += step.proposed
        self.accepted += step.accepted
        if depth == step.proposed:  # a chain: what stands behind the first wrong one decides nothing
            self.ignored += max(0, step.proposed - step.accepted - 1)
        for place in range(min(depth, step.accepted + 1)):
            if place == len(self.reached):
                self.reached.append(0)
                self.right.append(0)
            self.reached[place] += 1
            self.right[place] += place < step.accepted

    def _slice(self, now: float, tokens: int) -> None:
        number = int(now / SLICE)
        if self.slices and self.slices[-1][0] == number:
            _, passes, before = self.slices[-1]
            self.slices[-1] = number, passes + 1, before + tokens
        else:
            self.slices.append((number, 1, tokens))

    @property
    def context(self) -> int:
        """Tokens that the model holds: prompt and reply; 0 before they are told."""
        return self.prompt + self.written if self.prompt else 0

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt for each second; 0 where nothing had to be read."""
        return (self.prompt - self.reused) / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def rate(self) -> float:
        """Tokens of decoding for each second."""
        return self.all.tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def depths(self) -> list[tuple[float, int]]:
        """By depth from 1: the share that was right, and of how many passes."""
        return [(right / reached, reached) for right, reached in zip(self.right, self.reached, strict=True)]

    @property
    def history(self) -> list[float]:
        """Tokens for each pass in the slices of the last minute, oldest first; 0 where nothing came."""
        if not self.slices:
            return []
        newest = self.slices[-1][0]
        known = {number: tokens / passes for number, passes, tokens in self.slices}
        oldest = max(self.slices[0][0], newest - COLUMNS + 1)
        return [known.get(number, 0.0) for number in range(oldest, newest + 1)]


class Totals:
    """Sums over all finished replies since the start."""

    def __init__(self) -> None:
        self.replies = self.tokens = self.passes = self.decoded = self.proposed = self.accepted = 0
        self.decode_s = 0.0
        self._compared = Compared()

    def add(self, report: Report) -> None:
        """Count one reply, unless it runs in circles: its figures would drown all others."""
        if report.loops:
            return
        count = len(report.token_ids)
        self.replies += 1
        self.tokens += count
        self.passes += report.passes
        self.decoded += max(0, count - 1 + (report.finish == "stop")) if report.passes else 0
        self.proposed += report.proposed
        self.accepted += report.accepted
        self.decode_s += report.timing.decode_s
        self._compared.add(report)

    @property
    def tokens_per_pass(self) -> float:
        """0 without passes."""
        return self.decoded / self.passes if self.passes else 0.0

    @property
    def rate(self) -> float:
        """Tokens of decoding for each second."""
        return max(0, self.tokens - self.replies) / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def speedup(self) -> Speedup | None:
        """Against plain passes, over the replies in which that was measured; None where it is not sure."""
        return self._compared.speedup
