"""A drafter for Outrider to begin from: one transformer layer over the model's own states. This module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import ModelError
from outrider.core.drafting import API, Fit, Match, ModelInfo, Target
from outrider.core.drafting.files import DraftFiles, open_draft

if TYPE_CHECKING:
    from .drafter import TemplateDrafter

GAIN = 1.5  # tokens a pass that you expect; measured figures take its place


class Template:
    """The method: what the entry point names. It builds drafters, and says which models they fit."""

    api = API
    options: Mapping[str, str] = {}  # names that `--drafter-option` may set, and what they mean

    def matches(self, model: ModelInfo) -> Match:
        """Whether it fits a model as it is; this one needs weights."""
        return Match(Fit.EXACT, "needs weights made for this model: --drafter-weights PATH", GAIN, ready=False)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the weights at a path fit. Raises ModelError where there are none."""
        with open_draft(Path(weights)) as files:
            problem = misfit(files, model)
            if problem:
                return Match(Fit.NO, problem, weights=weights)
            return Match(Fit.EXACT, f"{files.name} is made for models like {model.name}", GAIN, files.nbytes, weights)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> TemplateDrafter:
        """The drafter of weights that were checked. Raises ModelError where they do not fit after all."""
        from .drafter import TemplateDrafter, read

        assert match.weights is not None
        with open_draft(Path(match.weights)) as files:
            problem = misfit(files, target.info)
            if problem:
                raise ModelError(f"{problem}.", "Give weights that were made for this model.")
            return TemplateDrafter(target, read(files, target))


def misfit(files: DraftFiles, model: ModelInfo) -> str | None:
    """Why the files cannot draft for a model, as a sentence without its full stop; None if they can."""
    if not files.holds.issuperset({"fc.weight", "norm.weight"}):
        return f"{files.name} holds no drafter of this kind"
    for what, key, ours in (("a width", "hidden_size", model.width), ("a vocabulary", "vocab_size", model.vocab)):
        theirs = files.settings.integer(key)
        if theirs != ours:
            return f"{files.name} is made for {what} of {theirs}, and {model.name} has {ours}"
    return files.stranger(model)
