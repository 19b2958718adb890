"""The very first start: what this machine has, and three models that fit it. Knows no widgets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.app import render
from outrider.app.chat.models.rows import Room, form
from outrider.core.base import paths
from outrider.core.base.protocol import KnownDrafter, MemoryPlan, ModelRow

STARTER = "starter"
SIZES = 3  # models that are offered
_LOCAL = 5  # models of this machine that are listed
_SHARE = 0.85  # of the memory that a model takes at most
_SMALLER = 0.55  # of the memory of the model before
_SLOW = 5_000_000_000  # parameters that a token costs, from which on a CPU is too slow to be offered


@dataclass(frozen=True, slots=True)
class Offer:
    """A model with the drafter that would be brought with it."""

    row: ModelRow
    drafter: KnownDrafter | None = None

    @property
    def beside(self) -> int:
        """Bytes of the drafter, 0 where it comes with the model."""
        return self.drafter.nbytes if self.drafter is not None and self.drafter.repo else 0

    @property
    def pulled(self) -> int:
        """Bytes that have to be brought."""
        return self.row.nbytes + self.beside

    def words(self, memory: Room) -> str:
        """`9.3 GB to pull · mtp drafter in it · memory: fits, ~10.6 GB`."""
        about = "~" if self.row.about else ""
        parts = [f"{about}{render.size(self.pulled)} to pull"]
        if self.drafter is not None:
            inside = "in it" if not self.drafter.repo else f"+{render.size(self.beside)}" if self.beside else "with it"
            parts.append(f"{self.drafter.method} drafter {inside}")
        if self.row.plan is not None:
            parts.append(f"memory: {memory.words(self.row.plan, self.beside)}")
        return " · ".join(parts)


# ------------------------------------------------------------------------------------------------ this machine


def machine(rows: Sequence[ModelRow], memory: Room, disk: int | None) -> Iterator[tuple[str, str]]:
    """What was found, as names and values."""
    plan = _plan(rows)
    if plan is not None:
        yield "device", "CPU; no GPU is visible" if plan.device == "cpu" else f"GPU ({plan.device})"
        free = memory.of(plan)
        yield "memory", f"{render.size(free)} free" if free is not None else "this machine does not tell"
    if disk is not None:
        yield "disk", f"{render.size(disk)} free for models"
    count, starter = len(local(rows)), starter_is_here(rows)
    if count:
        yield "models", f"{count} on this machine" + (", and the starter" if starter else "")
    else:
        yield "models", "the starter is here, no other yet" if starter else "none on this machine yet"


def starter_is_here(rows: Sequence[ModelRow]) -> bool:
    """Whether it does not have to be downloaded first."""
    return any(row.name == STARTER and row.path and not row.problem for row in rows)


def _plan(rows: Sequence[ModelRow]) -> MemoryPlan | None:
    return next((row.plan for row in rows if row.plan is not None), None)


def disk_free() -> int | None:
    """Bytes free where models go; None if that cannot be known."""
    folder = paths.models_dir()
    try:
        return shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
    except (OSError, StopIteration):
        return None


def local(rows: Sequence[ModelRow]) -> list[ModelRow]:
    """Models that are here and can be used, but for the starter, the smallest first."""
    found = [
        row for row in rows if row.path and not row.problem and not row.unsupported and not row.name.startswith(STARTER)
    ]
    return sorted(found, key=lambda row: row.nbytes)


def shown_local(rows: Sequence[ModelRow], memory: Room) -> list[tuple[ModelRow, str]]:
    """Those of them that are listed, each with its words."""
    return [(row, _local_words(row, memory)) for row in local(rows)[:_LOCAL]]


def _local_words(row: ModelRow, memory: Room) -> str:
    parts = [f"here ({row.source})" if row.source else "here", render.size(row.nbytes), form(row)]
    if row.plan is not None:
        parts.append(f"memory: {memory.words(row.plan)}")
    return " · ".join(filter(None, parts))


# ------------------------------------------------------------------------------------------------ offers


def offers(rows: Sequence[ModelRow], memory: Room, disk: int | None) -> list[Offer]:
    """Three models of the catalogue in three sizes that fit, each with a drafter, the smallest first."""
    fitting = [offer for row in rows if _can(row) for offer in [Offer(row, drafter(row))] if _fits(offer, memory, disk)]
    chosen: list[Offer] = []
    limit = float("inf")
    for _ in range(SIZES):
        left = [offer for offer in fitting if _total(offer) <= limit]
        if not left:
            break
        most = max(map(_total, left))
        near = [offer for offer in left if _total(offer) >= _SMALLER * most]
        best = min(near, key=lambda one: (one.row.tier or 9, one.drafter is None, one.beside > 0, -_total(one)))
        chosen.append(best)
        limit = _SMALLER * _total(best)
    return chosen[::-1]


def drafter(row: ModelRow) -> KnownDrafter | None:
    """The drafter that goes with a model: one that it holds itself, else a published one whose size is known."""
    usable = [one for one in row.drafters if not one.note.startswith("for ")]
    return min(usable, key=lambda one: (bool(one.repo), not one.nbytes, one.about, one.nbytes), default=None)


def _can(row: ModelRow) -> bool:
    slow = row.plan is not None and row.plan.device == "cpu" and (row.active or row.parameters) > _SLOW
    known = row.plan is not None and row.tier > 0 and bool(row.nbytes)
    return known and not (row.path or row.unsupported or row.gated or slow)


def _total(offer: Offer) -> int:
    return (offer.row.plan.total if offer.row.plan is not None else 0) + offer.beside


def _fits(offer: Offer, memory: Room, disk: int | None) -> bool:
    assert offer.row.plan is not None
    room = memory.of(offer.row.plan)
    return (room is None or _total(offer) <= _SHARE * room) and (disk is None or offer.pulled <= _SHARE * disk)
