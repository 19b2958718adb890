"""Live and final figures of a reply, and how they are put in words."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.core.base.protocol import Loaded, PlainTime, Report, Speedup, Step

if TYPE_CHECKING:
    from outrider.app.chat.compare.race import Race

_PACKED = 15.0  # bits of a weight below which it is not stored as it is computed with

WINDOW = 2.0  # seconds that the live figures look back
SHARED = (
    0.02  # share of plain decoding's time that is uncertain in all replies alike, so that many do not make it certain
)
PAUSE = 1.0  # seconds for which the words for a choice stay, so that they can be read


class Meter:
    """Rolling figures over the passes of one reply, on the engine's clock."""

    def __init__(self) -> None:
        self._passes: deque[tuple[float, int]] = deque()
        self._quiet_since = 0.0  # when a drafter last had a part in a pass
        self.drafter = ""
        self.why = ""  # the engine's words for its choice
        self._why_since = -PAUSE

    def take(self, step: Step) -> None:
        """Count one pass."""
        if step.drafter != "none":
            self.drafter, self._quiet_since = step.drafter, step.t
        elif step.t - self._quiet_since >= WINDOW:
            self.drafter = "none"
        if step.why and step.t - self._why_since >= PAUSE:
            self.why, self._why_since = step.why, step.t
        self._passes.append((step.t, len(step.tokens)))
        while self._passes[0][0] < step.t - WINDOW:
            self._passes.popleft()

    @property
    def parked(self) -> bool:
        """Whether nobody has drafted for a while."""
        return self.drafter == "none"

    @property
    def tokens_per_second(self) -> float | None:
        """Over the window; None until two passes are in it."""
        if len(self._passes) < 2:
            return None
        span = self._passes[-1][0] - self._passes[0][0]
        tokens = sum(count for _, count in self._passes) - self._passes[0][1]
        return tokens / span if span > 0 else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Over the window; None before the first pass."""
        if not self._passes:
            return None
        return sum(count for _, count in self._passes) / len(self._passes)


def plain_time(report: Report) -> PlainTime | None:
    """What plain decoding would have taken for a reply; older reports tell it by their speed-up alone."""
    told, seconds = report.speedup, report.timing.decode_s
    if report.plain is not None or told is None:
        return report.plain
    return PlainTime(told.value * seconds, told.error * seconds, told.n)


@dataclass(slots=True)
class Compared:
    """Replies added up whose plain time is known, whether their own speed-up was sure enough to be told or not."""

    seconds: float = 0.0  # of decoding
    plain_s: float = 0.0  # that plain decoding would have taken
    squares: float = 0.0  # of the errors of these
    n: int = 0  # plain passes

    def add(self, report: Report) -> None:
        """Count one reply, if its plain time is known."""
        known = plain_time(report)
        if known is not None:
            self.seconds += report.timing.decode_s
            self.plain_s += known.seconds
            self.squares += known.error**2
            self.n += known.n

    @property
    def speedup(self) -> Speedup | None:
        """Of all of them together, each weighing as long as it took; None where it is not sure."""
        error = math.hypot(math.sqrt(self.squares), SHARED * self.plain_s)
        return PlainTime(self.plain_s, error, self.n).speedup(self.seconds)


def times(value: float) -> str:
    """`1.4×`, with another decimal next to 1, so that a loss does not read like none."""
    return f"{value:.2f}×" if abs(value - 1) < 0.1 else f"{value:.1f}×"


def speed(value: float) -> str:
    """`41 tok/s`, with a decimal where it matters."""
    return f"{value:.1f} tok/s" if value < 10 else f"{value:.0f} tok/s"


def mean_per_pass(report: Report) -> float | None:
    """Tokens per decode pass: without the first token, which comes from the prompt's own pass, but with the end sign."""
    if report.passes <= 0:
        return None
    return max(0, len(report.token_ids) - 1 + (report.finish == "stop")) / report.passes


def main_drafter(report: Report) -> str:
    """The drafter that took most passes, `none` if nobody drafted."""
    drafted = {name: passes for name, passes in report.drafters.items() if name != "none" and passes}
    return max(drafted, key=lambda name: drafted[name]) if drafted else "none"


def summary(report: Report) -> list[str]:
    """The figures under a finished reply, each a few characters."""
    parts = []
    if report.tokens_per_second > 0:
        parts.append(speed(report.tokens_per_second))
    per_pass = mean_per_pass(report)
    if per_pass:
        parts.append(f"{per_pass:.1f}/pass")
    if report.proposed:
        parts.append(f"{100 * report.accepted / report.proposed:.0f}% accepted")
    if report.speedup is not None:
        parts.append(times(report.speedup.value))
    drafter = main_drafter(report)
    parts.append("no drafting" if drafter == "none" else drafter)
    seconds = report.timing.first_token_s + report.timing.decode_s
    parts.append(f"{seconds:.1f} s")
    return parts if report.rule != "typical" else ["lossy: typical acceptance", *parts]


def brief(why: str) -> str:
    """The engine's words for its choice, cut to what no other figure tells: the length of drafts and what they gain."""
    head, _, tail = why.partition(": ")
    if ", " in head and tail:
        return f"{head.partition(', ')[2]}, {tail.rpartition('; ')[2]}"
    return why.partition("; ")[0]


def stored(loaded: Loaded | Race) -> str:
    """`in bf16`, or how many bits a weight has where they are packed and only computed in that."""
    if 0 < loaded.bits < _PACKED:
        return f"with {loaded.bits:.1f}-bit weights, computed in {loaded.dtype}"
    return f"in {loaded.dtype}"


def size(nbytes: float) -> str:
    """Bytes as a person reads them."""
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
