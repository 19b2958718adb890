"""What the files of a DFlash drafter leave open, so that libraries read them in different ways. Loads no torch.

Windows in the speculators container end at the anchor where it trains them, and at each slot where vLLM serves them. vLLM also
takes `sliding_window_non_causal` for all layers, full ones included, and looks ahead where the key is missing. Where a DSpark
of that container does not say whether the anchor's slot drafts too, the one says yes and the other no.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from outrider.core.base.errors import UsageError
from outrider.core.drafting.files import DraftFiles

from .format import Reading, read_plan

WAYS = {"window": ("slot", "anchor"), "causal": ("sliding", "all", "none"), "sample_from_anchor": (True, False)}


def readings(files: DraftFiles) -> list[Mapping[str, object]]:
    """Options for each way that the files may be meant, first the one that is taken unless told otherwise."""
    plan, config = read_plan(files), files.config
    kind, ahead = config.get("speculators_model_type"), config.get("sliding_window_non_causal")
    ways: dict[str, tuple[object, ...]] = {}
    if kind and any(sight.window for sight in plan.sights):
        ways["window"] = ("anchor", "slot")
        if ahead is None and kind != "dflash2":
            ways["causal"] = ("sliding", "none")
        elif ahead is False and not all(sight.window for sight in plan.sights):
            ways["causal"] = ("sliding", "all")
    if kind == "dspark" and config.get("sample_from_anchor") is None:
        ways["sample_from_anchor"] = (True, False)
    return [dict(zip(ways, chosen, strict=True)) for chosen in product(*ways.values())]


def reading_of(options: Mapping[str, object]) -> Reading:
    """The reading that options name. Raises UsageError for a value that is none."""
    chosen = {name: options[name] for name in WAYS if options.get(name) is not None}
    for name, value in chosen.items():
        if value not in WAYS[name]:
            known = ", ".join(str(way).lower() for way in WAYS[name])
            raise UsageError(f"The option {name} is {value!r}.", f"Use one of: {known}.")
    return Reading(**chosen)  # type: ignore[arg-type]  # checked above
