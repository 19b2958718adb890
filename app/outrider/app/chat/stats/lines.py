"""The figures as lines: of the panel, and of the strip above the prompt. Data alone, so that nothing is drawn to test them.

Every number has its own fixed place, so that a line does not move while it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from outrider.app.chat.meter import size
from outrider.app.chat.stats.figures import Figures, session_words
from outrider.app.chat.stats.tally import COLUMNS, Totals
from outrider.app.chat.stats.why import SEEN, Cause
from outrider.app.text import cut as cut_to
from outrider.app.text import padded

WIDTH = 35  # cells of a line of the panel
_BAR, _FEWEST, _MOST = 8, 4, 8  # cells of a bar; depths that are shown
_SPARKS = "▁▂▃▄▅▆▇█"
_WHY = 4  # lines
MUTED, STRONG, GOOD, OFF = "$text-muted", "bold", "$text-success", "$text-disabled"
Part = tuple[str, str]  # text and style


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says, and which of the terms it shows."""

    parts: tuple[Part, ...]
    terms: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Without styles."""
        return "".join(text for text, _ in self.parts)


def _line(*parts: str | Part, terms: Sequence[str] = ()) -> Line:
    return Line(tuple((part, "") if isinstance(part, str) else part for part in parts), tuple(terms))


def number(value: float | None, width: int, digits: int = 1) -> str:
    """Right in its place; an en dash where it is not known. Large ones lose their decimals."""
    if value is None:
        return "–".rjust(width)
    return f"{value:.{0 if abs(value) >= 100 else digits}f}".rjust(width)


def share(part: float, whole: float, width: int = 4) -> str:
    """`78%`, an en dash of nothing."""
    return (f"{100 * part / whole:.0f}%" if whole else "–").rjust(width)


def count(value: int) -> str:
    """`812`, `3.1k`, `32k`: tokens in few letters."""
    if value < 1000:
        return str(value)
    return f"{value / 1000:.1f}k" if value < 10_000 else f"{value / 1000:.0f}k"


def bar(part: float, n: int, width: int = _BAR) -> str:
    """A bar of a share: hollow where it is made of few."""
    full = round(part * width)
    return ("█" if n >= SEEN else "▯") * full + "░" * (width - full)


def sparkline(values: Sequence[float]) -> str:
    """Tokens a pass as heights, the lowest being 1; a space where nothing came."""
    most = max(max(values, default=1.0), 2.0)
    drawn = "".join(
        _SPARKS[min(7, max(0, round(7 * (value - 1) / (most - 1))))] if value > 0 else " " for value in values
    )
    return drawn.rjust(COLUMNS)


def cut(text: str, width: int) -> str:
    """At most so many cells."""
    return cut_to(text, width, "…")


def _times(figures: Figures) -> Part:
    """The speed-up with its error."""
    if figures.times is None:
        return "–× plain", OFF
    words = f"{figures.times:.2f}× ±{figures.error:.2f} n {figures.n}"
    return words, GOOD if figures.times >= 1 else "$text-warning"


def panel(figures: Figures, totals: Totals, found: Cause | None, *, sparks: bool = True) -> list[Line]:
    """All lines of the panel."""
    lines = [
        _line((padded(cut(figures.drafter, 16), 16), STRONG), (f"{figures.choice} · {figures.state}".rjust(19), ""),
              terms=("drafter", "state")),
        _line((_of(figures).ljust(22) + "now" + "mean".rjust(10), MUTED)),
        _line(("tok/s".ljust(15), MUTED), number(figures.rate, 10), number(figures.rate_mean, 10),
              terms=("tok_s", "tok_s_mean")),
        _line(("tokens/pass".ljust(15), MUTED), number(figures.per_pass, 10, 2), number(figures.per_pass_mean, 10, 2),
              terms=("tokens_per_pass",)),
        _line(("accepted".ljust(11), MUTED), share(figures.accepted, figures.proposed),
              (f"{figures.accepted:,} of {figures.proposed:,}".rjust(20), MUTED), terms=("accepted", "proposed")),
        _line(("ignored".ljust(11), MUTED), share(figures.ignored, figures.proposed), terms=("ignored",)),
        _line(("× plain".ljust(9), MUTED), (_times(figures)[0].rjust(26), _times(figures)[1]),
              terms=("speedup", "speedup_error", "speedup_n")),
    ]  # fmt: skip
    lines += _depths(figures)
    draft, verify, host = figures.ms or (None, None, None)
    lines += [
        _line(("ms draft", MUTED), number(draft, 5), (" verify", MUTED), number(verify, 5), (" host", MUTED),
              number(host, 5), terms=("draft_ms", "verify_ms", "host_ms")),
        _line(("first token", MUTED), number(figures.first_token_s or None, 6, 2), (" s  prefill", MUTED),
              number(figures.prefill_rate or None, 7, 0), terms=("first_token", "prefill")),
        _phases(figures),
    ]  # fmt: skip
    if sparks:
        lines.append(_line((" 60 s".ljust(9), MUTED), (sparkline(figures.history).rjust(26), "$text-primary"),
                           terms=("sparkline",)))  # fmt: skip
    lines += [*_memory(figures), *_words(figures, found)]
    lines.append(
        _line((cut(f"session {session_words(totals, panel=True)}", WIDTH), MUTED), terms=("session", "replies"))
    )
    return lines


def _of(figures: Figures) -> str:
    """Which reply the figures are of and who drafted it, in 21 cells."""
    return cut(figures.of if len(figures.of) <= 21 else figures.of.replace(" reply", ""), 21)


def _depths(figures: Figures) -> Iterator[Line]:
    known = figures.depths[:_MOST]
    for depth in range(max(_FEWEST, len(known))):
        right, n = known[depth] if depth < len(known) else (0.0, 0)
        style = "$text-primary" if n else OFF
        yield _line((f"d{depth + 1} ", MUTED), (bar(right, n), style), share(right * n, n, 6),
                    (f"n {n:,}".rjust(18), MUTED), terms=("depth",))  # fmt: skip


def _phases(figures: Figures) -> Line:
    known = dict(figures.phases)
    parts: list[str | Part] = []
    for word, width in (("prose", 5), ("code", 6), ("thinking", 5)):
        parts += [(f"{word}" if not parts else f" {word}", MUTED), number(known.get(word), width)]
    return _line(*parts, terms=("phase", "phase_prose", "phase_code", "phase_thinking"))


def _memory(figures: Figures) -> Iterator[Line]:
    plan = figures.memory
    sizes = {
        "target": size(plan.weights) if plan else "–",
        "KV": size(plan.states) if plan and plan.states is not None else "–",
        "drafter": size(figures.drafter_bytes) if plan else "–",
        "reserve": size(plan.overhead) if plan else "–",
        "free": size(plan.free) if plan and plan.free is not None else "–",
        "context": f"{count(figures.context)}/{count(figures.context_most)}" if figures.context_most else "–",
    }
    terms = {"KV": "memory_context", "context": "context"}
    for left, right in (("target", "KV"), ("drafter", "reserve"), ("free", "context")):
        shown = tuple(terms.get(one, f"memory_{one}") for one in (left, right))
        yield _line((left.ljust(8), MUTED), sizes[left].rjust(7), (f"  {right}".ljust(10), MUTED),
                    sizes[right].rjust(10), terms=("memory", *shown))  # fmt: skip


def _words(figures: Figures, found: Cause | None) -> Iterator[Line]:
    """The cause of a low gain, else the engine's own words; always as many lines."""
    words = f"{found.text}. {found.action}" if found is not None else figures.reason
    told = wrap(words, WIDTH, max_lines=_WHY, placeholder=" …")
    for text in (*told, *[""] * (_WHY - len(told))):
        yield _line((text, "$text-warning" if found is not None else MUTED))


def strip(figures: Figures, totals: Totals, found: Cause | None, width: int, *, sparks: bool = True) -> list[Line]:
    """The three lines of the strip, `width` cells at most each."""
    words, style = _times(figures)
    words = words.partition(" n ")[0]
    gap = ("  ", "")
    first = [
        (padded(cut(figures.drafter, 13), 13), STRONG),
        (f" {figures.state}".ljust(9), ""),
        (f"{number(figures.rate, 6)} tok/s", ""),
        (f"{number(figures.per_pass, 6, 2)}/pass", ""),
        (f"{share(figures.accepted, figures.proposed, 6)} accepted", ""),
        gap,
        (words, style),
    ]
    second: list[Part] = []
    for depth in range(_FEWEST):
        right, n = figures.depths[depth] if depth < len(figures.depths) else (0.0, 0)
        second += [(f"d{depth + 1}", MUTED), (share(right * n, n, 5) + " ", OFF if n < SEEN else "")]
    draft, verify, host = figures.ms or (None, None, None)
    for word, value, room in (("ms draft", draft, 5), ("verify", verify, 6), ("host", host, 4)):
        second += [(f" {word}", MUTED), (number(value, room), "")]
    if sparks and width >= 96:
        second += [gap, (sparkline(figures.history), "$text-primary")]
    if found is not None:
        third = [(f"{found.text}. {found.action}", "$text-warning")]
    elif figures.unmeasured:
        third = [(figures.reason, MUTED)]
    else:
        free = size(figures.memory.free) if figures.memory and figures.memory.free is not None else "–"
        context = f"{count(figures.context)}/{count(figures.context_most)}"
        third = [
            ("first token", MUTED),
            (f"{number(figures.first_token_s or None, 6, 2)} s", ""),
            ("  prefill", MUTED),
            (number(figures.prefill_rate or None, 6, 0), ""),
            ("  context ", MUTED),
            (context.rjust(9), ""),
            ("  free ", MUTED),
            (free.rjust(7), ""),
        ]
        if width >= 96:
            third.append((f"  {session_words(totals)}", MUTED))
    terms = (
        ("drafter", "state", "tok_s", "tokens_per_pass", "accepted", "speedup"),
        ("depth", "draft_ms", "verify_ms", "host_ms", "sparkline"),
        ("first_token", "prefill", "context", "memory_free", "session"),
    )
    return [Line(tuple(fit(one, width)), told) for one, told in zip((first, second, third), terms, strict=True)]


def fit(parts: Sequence[Part], width: int) -> Iterator[Part]:
    """Parts cut to so many cells together."""
    for text, style in parts:
        if width <= 0:
            return
        yield cut(text, width), style
        width -= len(text)
