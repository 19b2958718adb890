"""Drafters as a list: each with its state now, whether it fits, its weights and what was measured. Knows no widgets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.app import render
from outrider.app.commands import _drafters
from outrider.core.base.protocol import DrafterChoice, DrafterRow, KnownDrafter

HEAD = ("DRAFTER", "STATE", "MEASURED", "FIT", "MEMORY", "WEIGHTS")
RIGHT = (4,)
_GAIN = re.compile(r"([\d.]+)x plain")
AUTO = DrafterRow(name="auto", fit="any", usable=True, reason="whichever is fastest here, by what is measured")
NONE = DrafterRow(name="none", fit="any", usable=True, reason="one token a pass, as the model alone")
Part = tuple[str, str]  # text and its style


@dataclass(frozen=True, slots=True)
class Now:
    """Who drafts. `chosen`: who was asked for; `riding`: who drafts in the newest passes, `none` where plain ones are faster."""

    chosen: str = "auto"
    weights: str | None = None
    riding: str = ""


@dataclass(frozen=True, slots=True)
class Rider:
    """A line: a method, or one published drafter of it."""

    row: DrafterRow
    known: KnownDrafter | None = None

    @property
    def name(self) -> str:
        """As it is listed."""
        return f"  {self.known.repo}" if self.known is not None else self.row.name

    @property
    def ready(self) -> bool:
        """Whether it can be switched to as it is."""
        return self.row.usable if self.known is None else bool(self.known.path)

    @property
    def pull(self) -> str:
        """What has to be brought first, empty if nothing."""
        return self.known.repo if self.known is not None and not self.known.path else ""

    def choice(self, tokens: int | None) -> DrafterChoice:
        """How it is asked for."""
        return DrafterChoice(
            name=self.row.name, weights=self.known.repo if self.known is not None else None, tokens=tokens
        )

    def state(self, now: Now) -> str:
        """What it does at the moment, in a word or two."""
        if self.known is not None:
            return _published_state(self, now)
        if not self.row.usable:
            return _missing(self.row)
        if self.row.name == now.chosen and not (now.weights and self.row.where == "catalogue"):
            if now.chosen not in ("auto", "none") and now.riding == "none":
                return "parked"
            return "in use"
        if now.chosen in ("auto", "composite") and now.riding == self.row.name:
            return "riding"
        return "usable"

    def why_not(self) -> str:
        """Why it cannot be switched to."""
        return f"{self.row.name} cannot be used: {self.row.reason or _missing(self.row)}"


def _published_state(rider: Rider, now: Now) -> str:
    if now.weights and rider.known is not None and now.weights in (rider.known.repo, rider.known.path):
        return "parked" if now.riding == "none" else "in use"
    return "usable" if rider.ready else "to be pulled"


def _missing(row: DrafterRow) -> str:
    return {"broken": "broken", "no": "unavailable"}.get(row.fit, "needs weights")


def riders(rows: Sequence[DrafterRow]) -> list[Rider]:
    """Auto and none, then every method, usable ones first, each with what is published for this model below it."""
    found = [Rider(AUTO), Rider(NONE)]
    for row in sorted(rows, key=_distance):
        found.append(Rider(row))
        found += [Rider(row, one) for one in row.known if one.repo and (one.path is None or one.path != row.weights)]
    return found


def _distance(row: DrafterRow) -> int:
    """How far it is from being of use."""
    if row.usable:
        return 0
    if any(one.repo for one in row.known):
        return 1
    return {"no": 3, "broken": 4}.get(row.fit, 2)


def cells(rider: Rider, now: Now) -> tuple[str, ...]:
    """A line, in the order of `HEAD`."""
    row, known = rider.row, rider.known
    if known is not None:
        size = ("~" if known.about else "") + render.size(known.nbytes) if known.nbytes else ""
        return rider.name, rider.state(now), "", "published", size, "here" if known.path else "on the hub"
    if row in (AUTO, NONE):
        return rider.name, rider.state(now), *("",) * 4
    _, fit, _, memory, weights = _drafters.cells(row)
    gain = _GAIN.search(row.choice)
    return rider.name, rider.state(now), f"{gain[1]}x plain" if gain else "", fit, memory, weights


def details(rider: Rider, now: Now) -> list[Part]:
    """Everything about one of them as styled text."""
    row, known = rider.row, rider.known
    parts: list[Part] = [(rider.name.strip(), "bold"), (f"\n{rider.state(now)}", "$text-primary")]
    if known is not None:
        told = [("method", known.method), ("license", known.license), ("note", known.note), ("path", known.path or "")]
        parts.append((f"\n\n{render.pairs((name, text) for name, text in told if text)}", ""))
        parts.append((f"\n\n{_next(rider)}", "$text-muted"))
    else:
        if row.reason:
            parts.append((f"\n\n{row.reason}", "$text-warning" if row.fit == "broken" else ""))
        facts = render.pairs(_facts(row))
        parts += [(f"\n\n{facts}", "")] if facts else []
        parts.append((f"\n\n{_next(rider)}", "$text-muted"))
    return [(render.printable(text), style) for text, style in parts]


def _facts(row: DrafterRow) -> Iterator[tuple[str, str]]:
    if row in (AUTO, NONE):
        return
    yield "fit", _drafters.FITS[row.fit]
    weights = _drafters.cells(row)[4]
    if weights:
        yield "weights", weights + (f": {row.weights}" if row.weights else "")
    if row.nbytes:
        yield "memory", render.size(row.nbytes)
    yield "measured here", row.choice or "nothing yet; t tests it, and so does every reply"
    if not row.choice and row.gain > 1.0:
        yield "its method expects", f"{row.gain:.1f} tokens a pass"
    if row.distribution:
        yield "from", f"{row.distribution} {row.version}".strip()
    yield "probabilities", "honoured" if row.trusted else "not honoured: from outside"


def _next(rider: Rider) -> str:
    """What can be done."""
    if rider.pull:
        return "enter pulls it and switches to it"
    if rider.ready:
        return "enter switches to it" + ("" if rider.row in (AUTO, NONE) else " · t tests it · T checks its contract")
    if rider.row.fit == "broken":
        return f"Update or remove it: outrider plugins remove {rider.row.distribution}"
    if rider.row.fit == "no":
        return "It does not go with this model."
    if any(one.repo for one in rider.row.known):
        return "One of the published ones below makes it usable."
    return f"Weights of your own: outrider --drafter {rider.row.name} --drafter-weights PATH"
