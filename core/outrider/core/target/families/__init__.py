"""One small reader for each model family: a published config becomes a `TargetSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.core.errors import ModelError
from outrider.core.target.spec import TargetSpec

from . import llama

READERS: dict[str, Callable[[Mapping[str, Any]], TargetSpec]] = {
    "llama": llama.read,
}


def read_spec(config: Mapping[str, Any]) -> TargetSpec:
    """The spec of a checkpoint. Raises ModelError for an architecture that Outrider cannot run."""
    kind = str(config.get("model_type", ""))
    reader = READERS.get(kind)
    if reader is None:
        raise ModelError(
            f"The architecture {kind or '(none given)'!r} is not known; known are: {', '.join(sorted(READERS))}.",
            "Take another checkpoint, or open an issue with the model's name and its config.json.",
        )
    try:
        return reader(config)
    except KeyError as error:
        raise ModelError(
            f"The config of this {kind} checkpoint has no {error.args[0]!r}.", "Download it again, whole."
        ) from error
