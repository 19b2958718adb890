"""Models as a list: filtered, sorted, each with what a person wants to know before choosing. Knows no widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.app import render
from outrider.app.chat.models.pulls import Pull, Way
from outrider.app.commands import _catalogue
from outrider.core.base.protocol import MemoryPlan, ModelRow

Verdict = Literal["fits", "tight", "no", ""]
HEAD = ("NAME", "SIZE", "FORM", "WHERE", "MEMORY", "DRAFTERS")
RIGHT = (1,)  # columns of figures
SPARE = (5, 2)  # columns that a narrow screen does without, the first of them first


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a model can have: what is free, and what the loaded one gives back."""

    given_back: int = 0  # bytes

    def of(self, plan: MemoryPlan) -> int | None:
        """Bytes for a model with this plan; None where this machine does not tell."""
        return None if plan.free is None else plan.free + self.given_back

    def verdict(self, plan: MemoryPlan, beside: int = 0) -> Verdict:
        """Whether it fits with so many bytes beside it, by the same rule as the engine's own plan."""
        room = self.of(plan)
        if room is None:
            return ""
        total = plan.total + beside
        least = total - (plan.overhead if plan.device == "cpu" else 0)
        return "fits" if total <= room else "tight" if least <= room else "no"

    def words(self, plan: MemoryPlan, beside: int = 0) -> str:
        """`fits, ~9.8 GB`."""
        total = ("~" if plan.about else "") + render.size(plan.total + beside)
        return ", ".join(filter(None, (self.verdict(plan, beside), total)))


def where(row: ModelRow, pull: Pull | None = None) -> str:
    """Where a model lies, or how far it is on its way."""
    if pull is not None and pull.way in (Way.WAITING, Way.RUNNING):
        share = f" {pull.share:.0%}" if pull.share is not None else ""
        return "waits to come" if pull.way is Way.WAITING else f"coming{share}"
    if row.problem:
        return "broken"
    if row.path:
        return row.source or "here"
    if row.partial:
        return f"{render.size(row.partial)} are here"
    return "not supported" if row.unsupported else "gated" if row.gated else "to be pulled"


def form(row: ModelRow) -> str:
    """What its weights are stored as."""
    return row.quantisation or row.form or row.format


def cells(row: ModelRow, room: Room, pull: Pull | None = None, *, used: bool = False) -> tuple[str, ...]:
    """A line of the list, in the order of `HEAD`; `used`: the chat uses it."""
    size = ("~" if row.about else "") + render.size(row.nbytes) if row.nbytes else ""
    memory = "" if row.plan is None or row.unsupported else room.words(row.plan)
    drafters = ", ".join(dict.fromkeys(one.method for one in row.drafters))
    return (row.name, size, form(row), "in use" if used else where(row, pull), memory, drafters)


# ------------------------------------------------------------------------------------------------ order


def _rank(row: ModelRow) -> tuple[Any, ...]:
    """What is here first, of that what works, then what people run most."""
    return (row.path is None, not row.partial, bool(row.unsupported or row.problem), row.tier or 9, row.name.casefold())


def _fit(row: ModelRow, room: Room) -> tuple[Any, ...]:
    verdicts = ("fits", "tight", "", "no")
    verdict = room.verdict(row.plan) if row.plan is not None and not row.unsupported else "no"
    total = row.plan.total if row.plan is not None else 0
    return (verdicts.index(verdict), -total)


ORDERS: dict[str, Callable[[ModelRow, Room], tuple[Any, ...]]] = {
    "here first": lambda row, room: _rank(row),
    "name": lambda row, room: (row.name.casefold(),),
    "size": lambda row, room: (row.nbytes == 0, row.nbytes),
    "memory": lambda row, room: _fit(row, room),
    "drafters": lambda row, room: (-len(row.drafters), *_rank(row)),
}


def listed(rows: Sequence[ModelRow], words: str, order: str, room: Room) -> list[ModelRow]:
    """The models that have all of these words somewhere, in an order of `ORDERS`."""
    wanted = words.casefold().split()
    found = [row for row in rows if all(word in _haystack(row) for word in wanted)]
    return sorted(found, key=lambda row: ORDERS[order](row, room))


def _haystack(row: ModelRow) -> str:
    methods = " ".join(f"{one.method} {one.repo}" for one in row.drafters)
    parts = (row.name, row.title, row.family, row.series, form(row), row.license, row.source, where(row), methods)
    return " ".join((*parts, _catalogue.state(row))).casefold()


def next_order(now: str, by: int = 1) -> str:
    """The order `by` places further."""
    names = list(ORDERS)
    return names[(names.index(now) + by) % len(names)]
