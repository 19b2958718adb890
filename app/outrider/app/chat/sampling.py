"""The words after `/set`: one sampling option and its value."""

from __future__ import annotations

import msgspec

from outrider.core.base.protocol import Sampling

NAMES = {
    field.name.replace("_", "-"): field.name
    for field in msgspec.structs.fields(Sampling)
    if field.name not in ("logit_bias", "stop")
}


def changed_sampling(sampling: Sampling, words: str) -> Sampling:
    """A copy with `NAME VALUE` applied; `default` as value unsets. Raises ValueError with a sentence for the user."""
    if not words:
        return sampling
    name, _, value = words.replace("=", " ").partition(" ")
    value = value.strip()
    field = NAMES.get(name.replace("_", "-"))
    if field is None:
        raise ValueError(f"There is no option {name}. Options: {', '.join(NAMES)}.")
    if not value:
        raise ValueError(f"/set {name} needs a value, or `default`.")
    if value == "default":
        return msgspec.structs.replace(sampling, **{field: None})
    kind = int if field in ("top_k", "seed", "max_tokens") else float
    try:
        changed = msgspec.structs.replace(sampling, **{field: kind(value)})
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} takes {wanted}, not {value}.") from error
    problem = changed.problem()
    if problem:
        raise ValueError(problem.removeprefix("--"))
    return changed


def describe(sampling: Sampling, defaults: Sampling | None) -> str:
    """What is set, and the model's own values for the rest."""
    parts = []
    for shown, field in NAMES.items():
        value = getattr(sampling, field)
        if value is not None:
            parts.append(f"{shown} {value:g}")
        elif defaults is not None and getattr(defaults, field) is not None:
            parts.append(f"{shown} {getattr(defaults, field):g} (model)")
    return "Sampling: " + (", ".join(parts) if parts else "the model's defaults") + "."
