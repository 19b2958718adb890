"""Why a drafter is used, or none: the numbers of a choice in words."""

from __future__ import annotations

from .acceptance import ALL, DrafterRecord
from .decisions import Choice

AGAIN = 16  # rounds after which another length of the same drafter is reported too


class Telling:
    """What was reported last."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._tokens = self._since = 0

    def news(self, choice: Choice, wait: int | None = None) -> str:
        """The choice in words where it is another than the last one; "" where it is not. `wait` as in `words`."""
        self._since += 1
        now = (choice.what, choice.name)
        if now == self._last and (choice.tokens == self._tokens or self._since < AGAIN):
            return ""
        self._last, self._tokens, self._since = now, choice.tokens, 0
        return words(choice, wait)


def words(choice: Choice, wait: int | None = None) -> str:
    """One line. `wait`: rounds until a parked drafter is tried again, None where it is looked at in every round."""
    who = f"{choice.name}, {choice.tokens} token{'s' if choice.tokens != 1 else ''}"
    if choice.what in ("ride", "pinned"):
        asked = " as asked" if choice.what == "pinned" else ""
        return f"{who}{asked}: {choice.expected:.1f} tokens a pass at {choice.cost:.1f}x the cost; {choice.gain:.1f}x expected"
    if choice.what == "probe":
        return f"trying {who}, to see what it is worth now"
    if choice.what == "parked":
        again = "" if wait is None else f"; next try in {wait} round{'s' if wait != 1 else ''}"
        return f"parked: {choice.name} would give {choice.gain:.2f}x{again}"
    if choice.what == "rest":
        return f"resting: asking drafters takes longer than it saves; next try in {wait} rounds"
    if choice.what == "silent":
        return "plain: no drafter has a guess"
    return "measuring plain speed" if choice.what in ("meter", "first") else ""


def measured(record: DrafterRecord) -> str:
    """How a drafter did, by what was measured here; "" where it has not drafted yet."""
    rounds, tokens, cost = record.ridden
    rates = record.acceptance.get(ALL)
    if rounds < 1 or not rates:
        return ""
    first = rates[0][0]
    return (
        f"{tokens / rounds:.1f} tokens a pass at {cost / rounds:.1f}x the cost, {tokens / cost:.1f}x plain; "
        f"{100 * first:.0f}% of first tokens accepted"
    )
