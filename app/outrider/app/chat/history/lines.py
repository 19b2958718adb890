"""The history of drafters as lines of a table. Data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from outrider.app.chat.history.past import WEEKS, Past
from outrider.app.chat.stats.lines import GOOD, MUTED, STRONG, Line, cut, number, share, sparkline
from outrider.app.text import padded

NAME = 16  # cells


def lines(rows: Sequence[Past], choices: Mapping[str, str], model: str, width: int) -> list[Line]:
    """One line for each drafter under its model. `choices`: what the engine makes of the drafters of `model` now, in words."""
    if not rows and not choices:
        return [Line((("No reply has been kept yet.", MUTED),))]
    made: list[Line] = []
    shown = ""
    for row in rows:
        if row.model != shown:
            shown = row.model
            made += [*([Line(())] if made else []), Line(((cut(shown, width), STRONG),)), _heading()]
        made.append(_row(row))
        if len(row.versions) > 1:
            made.append(_versions(row, width))
    if choices:
        made += [Line(()), Line(((cut(f"What auto makes of them on {model} now", width), STRONG),))]
        for name, words in choices.items():
            told = wrap(words, max(20, width - NAME - 1))
            for place, text in enumerate(told):
                made.append(Line(((padded(name if not place else "", NAME + 1), ""), (text, MUTED))))
    return made


def _heading() -> Line:
    words = f"{'drafter':<{NAME}}{'replies':>8}{'/pass':>7}{'accepted':>10}{'× plain':>9}  by week"
    return Line(((words, MUTED),), ("replies", "tokens_per_pass", "accepted", "speedup", "trend"))


def _row(row: Past) -> Line:
    whole = row.whole
    name = "no drafting" if row.drafter == "none" else row.drafter
    times = whole.times
    return Line(
        (
            (padded(cut(name, NAME - 1), NAME), ""),
            (f"{whole.replies:>8,}", ""),
            (number(whole.tokens_per_pass or None, 7, 2), ""),
            (share(whole.accepted, whole.proposed, 10), ""),
            (number(times, 9, 2), GOOD if times is not None and times >= 1 else ""),
            ("  " + sparkline(row.trend()).strip()[-WEEKS:], "$text-primary"),
        ),
        ("replies", "tokens_per_pass", "accepted", "speedup", "trend"),
    )


def _versions(row: Past, width: int) -> Line:
    told = ", ".join(f"{version} {total.tokens_per_pass:.2f}" for version, total in list(row.versions.items())[-6:])
    return Line(((cut(f"  by version: {told}", width), MUTED),), ("trend",))
