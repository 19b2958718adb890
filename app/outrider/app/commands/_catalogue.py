"""What `outrider models` prints of the catalogue and of memory plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.app import render
from outrider.core.base.protocol import KnownDrafter, MemoryPlan, ModelRow

HEAD = ("NAME", "SIZE", "CTX", "STATE", "DRAFTERS", "LICENSE")
_TIERS = {1: "Most used", 2: "Much used", 3: "Also used"}
_VERDICTS = {"fits": "fits", "tight": "tight", "no": "too big", "": ""}


def catalogue(rows: Sequence[ModelRow]) -> str:
    """One line for each model, under a heading for each tier."""
    head, *lines = render.table(HEAD, map(_cells, rows), right=(1, 2, 4)).split("\n")
    text, tier = [head], 0
    for row, line in zip(rows, lines, strict=True):
        if row.tier != tier:
            tier = row.tier
            text += ["", _TIERS.get(tier, "Not in the catalogue")]
        text.append(line)
    return "\n".join(text)


def tokens(count: int) -> str:
    """A context as people write it: `8k`, `262k`, `1M`."""
    if count >= 1_000_000:
        return f"{count / 1e6:.0f}M"
    return f"{count / 1000:.0f}k" if count else ""


def facts(row: ModelRow) -> Iterator[tuple[str, str]]:
    """What the catalogue knows of a model, as names and values."""
    about = "about " if row.about else ""
    yield "series", row.series
    yield "parameters", f"{about}{count(row.parameters)}" if row.parameters and not row.detail else ""
    yield "active", f"{count(row.active)} for each token" if row.active else ""
    yield "stored as", row.form if not row.detail else ""
    yield "context", f"{row.context:,}" if row.context and not row.detail else ""
    yield "gated", "its terms have to be accepted on the hub first" if row.gated else ""
    yield "gguf", row.gguf
    yield "cannot run" if row.path else "not yet", row.unsupported


def count(number: int) -> str:
    """A number of parameters as people write it: `135 M`, `8.2 B`."""
    return f"{number / 1e9:.1f} B" if number >= 1e9 else f"{number / 1e6:.0f} M"


def plan(made: MemoryPlan) -> str:
    """A memory plan: its parts, their sum, what is free, what follows."""
    form = made.dtype if made.quantize in ("auto", "none") else f"{made.quantize}, {made.dtype}"
    about = ", estimated" if made.about else ""
    lines = [
        ("weights", _size(made.weights)),
        ("K/V and states", _size(made.states) if made.states is not None else "not known before it is here"),
        ("drafter", _size(made.drafter) if made.drafter else ""),
        ("overhead", _size(made.overhead)),
        ("sum", _size(made.total)),
        ("free", _size(made.free) if made.free is not None else "this machine does not tell"),
        ("verdict", _verdict(made)),
        ("would fit", made.instead),
    ]
    head = f"Memory on {made.device} in {form} at a context of {made.context:,} tokens{about}:"
    return head + "\n" + _indented((name, text) for name, text in lines if text)


def drafters(known: Sequence[KnownDrafter]) -> str:
    """The drafters of a model."""
    return render.table(("METHOD", "DRAFTER", "SIZE AND LICENSE"), map(_drafter, known))


def _drafter(one: KnownDrafter) -> tuple[str, str, str]:
    size = _size(one.nbytes)
    told = (f"about {size}" if one.about and size else size, one.license, one.note)
    return one.method, one.repo or "in the model's own files", ", ".join(text for text in told if text)


def state(row: ModelRow) -> str:
    """Where a model stands, in a word: broken, here, partly here, not yet, or whether it would fit into memory."""
    if row.problem:
        return "broken"
    if row.path:
        return "here"
    if row.partial:
        return "partly"
    if row.unsupported:
        return "not yet"
    return _VERDICTS[row.plan.verdict] if row.plan else ""


def _cells(row: ModelRow) -> tuple[str, ...]:
    size = _size(row.nbytes)
    drafters = str(len(row.drafters)) if row.drafters else ""
    return row.name, f"~{size}" if row.about else size, tokens(row.context), state(row), drafters, row.license


def _verdict(made: MemoryPlan) -> str:
    return {
        "fits": "it fits",
        "tight": "it is tight: other programs may have to give up memory",
        "no": "it does not fit",
        "": "",
    }[made.verdict]


def _size(nbytes: int | None) -> str:
    return render.size(nbytes) if nbytes else ""


def _indented(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(f"  {line}" for line in render.pairs(rows).split("\n"))
