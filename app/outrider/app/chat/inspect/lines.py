"""What the inspector says of a token and its pass, as lines. Data alone."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from outrider.app.chat.inspect.cursor import Cursor
from outrider.app.chat.inspect.trail import Passage, Seen
from outrider.app.chat.stats.lines import MUTED, STRONG, Line, Part, cut, fit
from outrider.app.chat.terms import TERMS
from outrider.app.text import padded

RIGHT, WRONG, CHOICE = "✓", "✗", "→"
_CHOICE, _GONE = "bold $text-primary", "$text-disabled"
_BAR = 8


def quoted(text: str, width: int) -> str:
    """A token as one can see it: in quotes, line breaks and tabs by signs."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥")
    return f"“{cut(shown, max(1, width - 2))}”"


def percent(p: float | None) -> str:
    """`98.1%`, `<0.1%`; nothing where it is not known."""
    if p is None:
        return ""
    return "<0.1%" if p < 0.001 else f"{100 * p:.1f}%"


def lines(cursor: Cursor, width: int) -> list[Line]:
    """All of it, `width` cells wide."""
    passage = cursor.passage
    if passage is None:
        return [Line(((row, MUTED),)) for row in wrap("Nothing is known of how this reply came about.", width)]
    made = [*_head(cursor, passage, width), Line(())]
    made += [_context(cursor, width), Line(())]
    token = cursor.token
    if token is not None:
        made += [*_token(token, width), Line(())]
    made += _draft(passage, cursor.index, width)
    if passage.rejected is None:
        hint = (
            "What was proposed here was not kept. New replies keep it while the inspector is open: regenerate this one, "
            "or set look.details."
        )
        made += [Line(()), *(Line(((row, MUTED),)) for row in wrap(hint, width))]
    made += [Line(()), Line((("← → token · ↑ ↓ pass · end · esc", MUTED),))]
    return [Line(tuple(fit(line.parts, width)), line.terms) for line in made]


def _head(cursor: Cursor, passage: Passage, width: int) -> Iterator[Line]:
    number = f"pass {cursor.place} of {len(cursor.passages) - 1}" if not passage.prompt else "the prompt's own pass"
    drafter = "" if passage.prompt else passage.drafter if passage.proposed else "no guess"
    yield Line(((cut(number, width), STRONG), (f"  {passage.t:.2f} s", MUTED)), ("pass",))
    if drafter:
        yield Line(((cut(drafter, width), ""),), ("drafter",))
    yield Line(
        ((f"ms draft {passage.draft_ms:.1f} verify {passage.verify_ms:.1f} host {passage.host_ms:.1f}", MUTED),),
        ("draft_ms", "verify_ms", "host_ms"),
    )
    if passage.proposed:
        yield Line(((f"{passage.accepted} of {passage.proposed} guesses accepted", MUTED),), ("accepted",))


def _context(cursor: Cursor, width: int) -> Line:
    room = max(0, width - 2 - len(cursor.token.text if cursor.token else ""))
    before, token, after = (
        part.replace("\n", "⏎").replace("\t", "⇥") for part in cursor.around(2 * room // 3, room - 2 * room // 3)
    )
    return Line(((before, MUTED), (cut(token, max(1, width - 2)), "reverse"), (after, MUTED)))


def _draft(passage: Passage, index: int, width: int) -> Iterator[Line]:
    """Level by level what was proposed, with what became of it, and the target's own choice at the end."""
    room = width - 14
    level = 0
    for place, token in enumerate(passage.tokens):
        at = place == index
        if token.kind == "A":
            for depth in range(level + 1, level + token.count + 1):
                yield from _others(passage, depth, room)
            level += token.count
            depths = str(level) if token.count == 1 else f"{level - token.count + 1}-{level}"
            yield _row(RIGHT, depths, token, room, at, "$text-success")
            continue
        if passage.rejected:
            yield from _others(passage, level + 1, room)
        yield _row(CHOICE, "", token, room, at, _CHOICE)
        level += 1
    deep = [one for one in passage.rejected or () if one.depth >= level]
    for one in deep[:8]:
        parts: tuple[Part, ...] = (
            (f"{WRONG} {one.depth + 1:<4}", _GONE),
            (padded(quoted(one.text, room), room), _GONE),
            ("too late", _GONE),
        )
        yield Line(parts, ("ignored",))
    if len(deep) > 8:
        yield Line(((f"  and {len(deep) - 8} more", _GONE),), ("ignored",))


def _others(passage: Passage, depth: int, room: int) -> Iterator[Line]:
    """What was proposed at a depth, from 1, and not taken."""
    for one in passage.rejected or ():
        if one.depth == depth - 1:
            yield Line(
                (
                    (f"{WRONG} {depth:<4}", ""),
                    (padded(quoted(one.text, room), room), ""),
                    (percent(one.p).rjust(7), MUTED),
                ),
                ("proposed", "probability"),
            )


def _row(sign: str, depth: str, token: Seen, room: int, at: bool, style: str) -> Line:
    shown = quoted(token.text, room).ljust(room)
    return Line(
        ((f"{sign} {depth:<4}", style), (shown, "reverse" if at else style), (percent(token.p).rjust(7), MUTED)),
        (f"kind_{token.kind}", "probability"),
    )


def _token(token: Seen, width: int) -> Iterator[Line]:
    label = TERMS[f"kind_{token.kind}"].label
    many = f", {token.count} tokens" if token.count > 1 else ""
    chance = f", {percent(token.p)}" if token.p is not None else ""
    thinking = ", thought" if token.thinking else ""
    yield Line(((cut(f"{label}{many}{thinking}{chance}", width), STRONG),), (f"kind_{token.kind}",))
    if token.top:
        yield Line((("The target's best:", MUTED),), ("probability",))
    room = width - _BAR - 9
    for text, p in token.top:
        bar = "█" * round(p * _BAR)
        own = text == token.text
        yield Line(
            (
                (percent(p).rjust(6), "bold" if own else MUTED),
                (f" {bar:<{_BAR}} ", "$text-primary"),
                (quoted(text, room), "bold" if own else ""),
            ),
            ("probability",),
        )
