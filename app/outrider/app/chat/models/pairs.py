"""Which drafters go with a model: each with pass or fail, the reason, and what would mend it. Knows no widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.app import render
from outrider.app.chat.models.rows import Room
from outrider.core.base.protocol import DrafterRow, KnownDrafter, MemoryPlan, ModelRow


@dataclass(frozen=True, slots=True)
class Pair:
    """One drafter with one model. `pull`: what has to be brought before it fits; `nbytes`: of its weights in memory."""

    name: str
    fits: bool
    reason: str
    fix: str = ""
    pull: str = ""
    nbytes: int = 0


def pairs(rows: Sequence[DrafterRow], plan: MemoryPlan | None, room: Room) -> list[Pair]:
    """Every drafter with a model that is here: those that fit first."""
    made = [pair for row in rows for pair in _pairs(row, plan, room)]
    return sorted(made, key=lambda pair: (not pair.fits, not pair.pull))


def promised(row: ModelRow, room: Room) -> list[Pair]:
    """The drafters published for a model that is not here yet."""
    return [_published(one, row.plan, room) for one in row.drafters]


def total(plan: MemoryPlan, chosen: Pair | None) -> int:
    """Bytes of a model with its drafter."""
    return plan.total + (chosen.nbytes if chosen is not None else 0)


def best(found: Sequence[Pair]) -> Pair | None:
    """The one that is counted in: the first that fits, or would once it is pulled, and has weights of its own."""
    weighty = [pair for pair in found if pair.nbytes and (pair.fits or pair.pull)]
    return min(weighty, key=lambda pair: not pair.fits, default=None)


def _pairs(row: DrafterRow, plan: MemoryPlan | None, room: Room) -> list[Pair]:
    own = [] if row.where == "catalogue" and any(one.repo for one in row.known) else [_own(row, plan, room)]
    others = [_published(one, plan, room) for one in row.known if one.repo and not _is_own(row, one)]
    return own + others


def _is_own(row: DrafterRow, one: KnownDrafter) -> bool:
    return one.path is not None and one.path == row.weights


def _own(row: DrafterRow, plan: MemoryPlan | None, room: Room) -> Pair:
    reason = row.reason or ("needs no weights" if not row.where else "")
    if row.usable:
        tight = _too_much(plan, room, row.nbytes)
        if tight:
            return Pair(row.name, False, tight, "a shorter --context, or --quantize int8", nbytes=row.nbytes)
        asked = row.where == "library"
        fix = f"lies in the library and rides when asked for: /drafter {row.name}" if asked else ""
        return Pair(row.name, True, reason, fix, nbytes=row.nbytes)
    return Pair(row.name, False, reason, _mend(row))


def _mend(row: DrafterRow) -> str:
    if row.fit == "broken":
        package = f"{row.distribution} {row.version}".strip()
        return f"update or remove {package}: outrider plugins remove {row.distribution}"
    if row.fit == "no":
        return "another model, or another method"
    return f"weights of your own: --drafter {row.name} --drafter-weights PATH"


def _published(one: KnownDrafter, plan: MemoryPlan | None, room: Room) -> Pair:
    about = "~" if one.about else ""
    size = f"{about}{render.size(one.nbytes)}" if one.nbytes else "size not known"
    told = ", ".join(filter(None, (size if one.repo else "", one.license, one.note)))
    name = f"{one.method}: {one.repo or 'in the model itself'}"
    tight = _too_much(plan, room, one.nbytes)
    if tight:
        return Pair(name, False, tight, "a shorter --context, or --quantize int8", nbytes=one.nbytes)
    if not one.repo:
        return Pair(name, True, told or "comes with it")
    if one.path:
        return Pair(name, True, told, nbytes=one.nbytes)
    return Pair(name, False, f"not here, {told}", f"pull {one.repo}", one.repo, one.nbytes)


def _too_much(plan: MemoryPlan | None, room: Room, nbytes: int) -> str:
    """Why a drafter of so many bytes does not fit beside the model, or nothing."""
    if plan is None or not nbytes or room.verdict(plan, nbytes) != "no" or room.verdict(plan) == "no":
        return ""
    return f"{render.size(plan.total + nbytes)} with the model, {render.size(room.of(plan) or 0)} are there"
