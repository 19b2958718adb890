"""What plain decoding would have taken: seconds of passes that were run plainly on purpose or for want of a draft.

The measured speed-up is made of these alone. Passes are pooled across answers. It is their mean, as drafted passes have their
stalls too; but one long stall must not pass for a speed-up, so that it counts as a short one.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, median, stdev

from .protocol import PlainPass, Speedup

LEAST = 8  # passes that a figure needs
NEWEST = 128  # passes that are kept
STALL = 3.0  # medians that a pass counts at most


class Plain:
    """Seconds of the newest plain passes, host time included and drafting left out."""

    def __init__(self) -> None:
        self.n = 0
        self._newest: deque[float] = deque(maxlen=NEWEST)

    def add(self, x: float) -> None:
        """Count one pass of `x` seconds."""
        self.n += 1
        self._newest.append(x)

    def mean(self) -> PlainPass | None:
        """What a plain pass takes; its error is 0 where one alone was measured. None before the first."""
        if not self._newest:
            return None
        most = STALL * median(self._newest)
        times = [1e3 * min(x, most) for x in self._newest]
        error = stdev(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
        return PlainPass(fmean(times), error, len(times))

    def speedup(self, seconds_per_token: float) -> Speedup | None:
        """Mean plain pass over `seconds_per_token`, with the mean's standard error; None below 8 passes."""
        made = self.mean()
        if made is None or self.n < LEAST or seconds_per_token <= 0:
            return None
        per_token = 1e3 * seconds_per_token
        return Speedup(made.ms / per_token, made.error / per_token, made.n)
