"""What is told of one model: where it lies, memory with and without a drafter, which drafters go with it. Knows no widgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.app import render
from outrider.app.chat.models.pairs import Pair, best, total
from outrider.app.chat.models.pulls import Pull
from outrider.app.chat.models.rows import Room, form, where
from outrider.app.commands import _catalogue
from outrider.core.base.protocol import MemoryPlan, ModelRow

Part = tuple[str, str]  # text and its style
_MUTED, _GOOD, _BAD, _BOLD = "$text-muted", "$text-success", "$text-warning", "bold"
_PLAIN = ("bf16", "f16", "fp16", "f32", "fp32", "bfloat16", "float16", "float32", "safetensors", "gguf")
"""Forms of weights that are computed with as they are stored, or that do not tell."""
_VERDICTS = {"fits": ("it fits", _GOOD), "tight": ("it is tight", _BAD), "no": ("it does not fit", _BAD)}


def details(row: ModelRow, found: Sequence[Pair] | None, room: Room, pull: Pull | None = None) -> list[Part]:
    """Everything about a model as styled text; `found`: its drafters, None while they are looked for."""
    parts: list[Part] = [(row.name, _BOLD)]
    if row.title.casefold() not in ("", row.name.casefold()):
        parts.append((f"\n{row.title}", ""))
    parts += [(f"\n\n{render.pairs(_facts(row, pull))}", "")]
    for trouble in filter(None, (row.problem, row.unsupported)):
        parts.append((f"\n{trouble}", _BAD))
    chosen = best(found or ())
    if row.plan is not None and not row.unsupported:
        parts += [("\n\nMemory\n", _BOLD), *_memory(row, row.plan, chosen, room)]
    parts += [("\n\nDrafters\n", _BOLD), *_drafters(found)]
    return [(render.printable(text), style) for text, style in parts]


def _facts(row: ModelRow, pull: Pull | None) -> Iterator[Part]:
    yield "where", where(row, pull)
    if row.nbytes:
        yield "size", ("~" if row.about else "") + render.size(row.nbytes)
    facts = [("form", form(row)), ("family", row.family), ("license", row.license), *_catalogue.facts(row)]
    shown = ("form", "family", "license", "parameters", "active", "context", "gated")
    yield from ((name, text) for name, text in facts if text and name in shown)
    if row.path:
        yield "path", row.path


def _memory(row: ModelRow, plan: MemoryPlan, chosen: Pair | None, room: Room) -> Iterator[Part]:
    beside = chosen.nbytes if chosen is not None else 0
    lines = [
        ("weights", render.size(plan.weights)),
        ("K/V and states", render.size(plan.states) if plan.states is not None else "not known yet"),
        (f"drafter {chosen.name}" if chosen is not None else "", render.size(beside)),
        ("overhead", render.size(plan.overhead)),
        ("together", ("~" if plan.about else "") + render.size(total(plan, chosen))),
        ("free", _free(plan, room)),
    ]
    yield render.pairs((name, text) for name, text in lines if name), ""
    words, style = _VERDICTS.get(room.verdict(plan, beside), ("this machine does not tell what is free", _MUTED))
    yield f"\n{words}", style
    yield f" on {plan.device} {_stored(row, plan)} at a context of {plan.context:,} tokens", _MUTED
    if plan.instead and room.verdict(plan) == "no":
        yield f"\nwould fit: {plan.instead}", ""


def _stored(row: ModelRow, plan: MemoryPlan) -> str:
    """What the weights are held as: as they are stored, or as they are made while loading; and what is computed in."""
    packed = plan.quantize if plan.quantize not in ("auto", "none", "") else form(row)
    same = packed.casefold() in ("", plan.dtype.casefold(), *_PLAIN)
    return f"in {plan.dtype}" if same else f"as {packed}, computed in {plan.dtype},"


def _free(plan: MemoryPlan, room: Room) -> str:
    if plan.free is None:
        return "not told"
    back = f" + {render.size(room.given_back)} of the loaded model" if room.given_back else ""
    return render.size(plan.free) + back


def _drafters(found: Sequence[Pair] | None) -> Iterator[Part]:
    if found is None:
        yield "looking …", _MUTED
    elif not found:
        yield "none is known for it; those that need no weights go with any model", _MUTED
    for number, pair in enumerate(found or ()):
        sign, style = ("✓", _GOOD) if pair.fits else ("↓", _GOOD) if pair.pull else ("✗", _BAD)
        yield ("\n" if number else "") + f"{sign} ", style
        yield pair.name, ""
        no = "" if pair.fits or pair.pull else "no: "
        yield f" {no}{pair.reason or 'it does not fit'}" if pair.reason or no else "", _MUTED
        if pair.fix:
            yield f"\n  → {pair.fix}", ""
