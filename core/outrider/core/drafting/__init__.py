"""What a drafting method is written against. Importing this package loads no torch; `chain`, `layers` and `state` do."""

from typing import TYPE_CHECKING, Any

from outrider.core.base.model_info import ModelInfo

from .contract import (
    API,
    Choose,
    Committed,
    Context,
    DeviceContext,
    DeviceDrafter,
    Draft,
    Drafter,
    Fit,
    InFlight,
    Match,
    Method,
    Needs,
    Shape,
    Stateless,
    Stream,
    Target,
)

if TYPE_CHECKING:
    from .chain import ChainSampler
    from .files import DraftFiles, open_draft
    from .layers import DraftLayers, WeightReader, load_layers
    from .state import DraftState, StateDrafter

__all__ = [
    "API",
    "ChainSampler",
    "Choose",
    "Committed",
    "Context",
    "DeviceContext",
    "DeviceDrafter",
    "Draft",
    "DraftFiles",
    "DraftLayers",
    "DraftState",
    "Drafter",
    "Fit",
    "InFlight",
    "Match",
    "Method",
    "ModelInfo",
    "Needs",
    "Shape",
    "StateDrafter",
    "Stateless",
    "Stream",
    "Target",
    "WeightReader",
    "load_layers",
    "open_draft",
]

_LAZY = {
    "ChainSampler": "chain",
    "DraftFiles": "files",
    "DraftLayers": "layers",
    "DraftState": "state",
    "StateDrafter": "state",
    "WeightReader": "layers",
    "load_layers": "layers",
    "open_draft": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
