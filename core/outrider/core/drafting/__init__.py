"""What a drafting method is written against. Importing this package loads no torch; `ChainSampler` and `DraftState` do."""

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
    from .state import DraftState

__all__ = [
    "API",
    "ChainSampler",
    "Choose",
    "Committed",
    "Context",
    "DeviceContext",
    "DeviceDrafter",
    "Draft",
    "DraftState",
    "Drafter",
    "Fit",
    "InFlight",
    "Match",
    "Method",
    "ModelInfo",
    "Needs",
    "Shape",
    "Stateless",
    "Stream",
    "Target",
]

_LAZY = {"ChainSampler": "chain", "DraftState": "state"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
