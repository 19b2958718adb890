"""Why drafting gains little: the largest cause by what was measured, and what happens about it. Knows no widgets."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.app.chat.stats.figures import ENOUGH, Figures
from outrider.core.base.protocol import SURE

GAIN = 1.05  # times plain below which a cause is named
PATIENCE = 3.0  # seconds for which it has to stay there
SEEN = 20  # passes that a share needs
_RARE = 0.25  # share of accepted tokens at a depth, below which it is called deep
_HALF = 0.5
_LONG = 8192  # tokens of context that verifying is blamed on


@dataclass(frozen=True, slots=True)
class Cause:
    """What costs most, and what the program does, each one sentence."""

    text: str
    action: str


class Slow:
    """Notices that the gain stays low."""

    def __init__(self) -> None:
        self._since: float | None = None

    def told(self, figures: Figures, now: float) -> bool:
        """Whether a cause is to be named at `now`, in seconds."""
        times = figures.times_now if figures.running else figures.times or _most(figures)
        low = (
            figures.state != "off"
            and not figures.unmeasured
            and times is not None
            and figures.n >= ENOUGH
            and times < GAIN
        )
        if not low:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= PATIENCE


def _most(figures: Figures) -> float | None:
    """What a gain that is too close to 1 to be told is at most."""
    return None if figures.estimate is None else figures.estimate + SURE * figures.error


def cause(figures: Figures) -> Cause | None:
    """The largest cause of a low gain; None before anything was drafted."""
    action = _action(figures)
    if figures.state == "off":
        return Cause("Drafting is off", action)
    if figures.state == "unavailable":
        return Cause(f"{figures.drafter} cannot ride here: {figures.reason or 'it does not fit this model'}", action)
    drafted, plain = figures.drafted, figures.plain
    if figures.unmeasured:  # what was measured is not its doing
        return None
    if not drafted.passes:
        silent = figures.reason.startswith("plain:")
        return Cause("The drafter has no guess for this text", action) if silent else None
    draft_ms, verify_ms, host_ms = drafted.ms
    alone = plain.ms if plain.passes else (0.0, verify_ms, host_ms)
    more = {"draft": draft_ms, "verify": max(0.0, verify_ms - alone[1]), "host": max(0.0, host_ms - alone[2])}
    total = draft_ms + verify_ms + host_ms
    rate = figures.accepted / figures.proposed if figures.proposed else 0.0
    if drafted.passes * 2 < plain.passes:
        share = drafted.passes / (drafted.passes + plain.passes)
        return Cause(f"Only {share:.0%} of the passes had a guess", action)
    if rate < _HALF:
        return Cause(_wrong(figures, rate), action)
    largest = max(more, key=lambda name: more[name])
    if largest == "draft":
        return Cause(f"Guessing takes {draft_ms / total:.0%} of a pass ({draft_ms:.1f} ms)", action)
    if largest == "verify" and plain.passes:
        at = f" at {figures.context:,} tokens of context" if figures.context >= _LONG else ""
        return Cause(f"Checking costs {verify_ms / max(alone[1], 1e-9):.1f}× a plain pass{at}", action)
    return Cause(f"Sampling and text take {host_ms / total:.0%} of a pass ({host_ms:.1f} ms)", action)


def _wrong(figures: Figures, rate: float) -> str:
    for depth, (share, n) in enumerate(figures.depths, 1):
        if depth > 1 and n >= SEEN and share < _RARE:
            return f"Tokens at depth {depth} and beyond: {share:.0%} accepted"
    return f"{rate:.0%} of the guesses are right"


def _action(figures: Figures) -> str:
    if figures.state == "off":
        return "F3 switches it on."
    if figures.state == "unavailable":
        return "F2 goes on to another drafter."
    if figures.state == "parked":
        return "It is parked: plain passes run until a try pays again."
    if figures.choice == "pinned":
        return "You chose this drafter; with auto it would be parked."
    return "Auto shortens the guesses, or parks the drafter, by itself."


def explained(figures: Figures) -> str:
    """The whole answer to "why?", with the numbers: who drafts, what that brings, what costs most, what is done."""
    words = [f"{figures.drafter}: {figures.choice}, {figures.state}."]
    if figures.unmeasured:
        words.append(f"Nothing is measured of it yet; what follows is of the {figures.of}.")
    elif figures.reason and figures.state != "off":
        words.append(f"The engine says: {figures.reason}.")
    if figures.times is not None:
        sure = f" ± {figures.error:.2f}, against {figures.n} plain passes" if figures.n else ""
        words.append(f"{figures.times:.2f} times plain{sure}.")
    elif figures.estimate is not None:
        words.append(f"About as fast as plain: {figures.n} plain passes do not tell which is faster.")
    if figures.per_pass_mean:
        right = f", {figures.accepted:,} of {figures.proposed:,} guesses right" if figures.proposed else ""
        words.append(f"{figures.per_pass_mean:.2f} tokens a pass{right}.")
    if figures.depths:
        told = ", ".join(f"{depth}: {share:.0%} of {n}" for depth, (share, n) in enumerate(figures.depths[:8], 1))
        words.append(f"By depth {told}.")
    if figures.drafted.passes:
        draft, verify, host = figures.drafted.ms
        beside = f"; a plain pass {sum(figures.plain.ms):.1f} ms" if figures.plain.passes else ""
        words.append(f"A pass with a guess: draft {draft:.1f}, verify {verify:.1f}, host {host:.1f} ms{beside}.")
    return " ".join([*words, *_verdict(figures)])


def _verdict(figures: Figures) -> list[str]:
    """Whether drafting pays, or what holds it back; nothing where that is not known."""
    if figures.drafted.passes and figures.estimate is None and figures.times is None:
        return ["Too short to measure against plain passes."]
    found = cause(figures)
    if found is not None and (figures.times is None or figures.times < GAIN):
        return [f"What holds it back: {found.text}. {found.action}"]
    pays = figures.times is not None and figures.times >= GAIN and not figures.unmeasured
    return ["It pays."] if pays else []
