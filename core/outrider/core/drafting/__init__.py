"""What a drafting method is written against. Importing this package loads no torch."""

from outrider.core.base.model_info import ModelInfo

from .contract import (
    API,
    Context,
    DeviceDrafter,
    Draft,
    Drafter,
    Fit,
    Match,
    Method,
    Needs,
    Shape,
    Stateless,
    Step,
    Stream,
    Target,
)

__all__ = [
    "API",
    "Context",
    "DeviceDrafter",
    "Draft",
    "Drafter",
    "Fit",
    "Match",
    "Method",
    "ModelInfo",
    "Needs",
    "Shape",
    "Stateless",
    "Step",
    "Stream",
    "Target",
]
