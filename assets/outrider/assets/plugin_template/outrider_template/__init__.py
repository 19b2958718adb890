"""A drafter for Outrider to begin from: one transformer layer over the model's own states. This module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.drafting import API, Fit, Match, ModelInfo, Target
from outrider.core.drafting.files import DraftFiles, open_draft

if TYPE_CHECKING:
    from .drafter import TemplateDrafter

GAIN = 1.5  # tokens a pass that you expect; measured figures take its place
LONGEST = 16  # tokens of a draft


class Template:
    """The method: what the entry point names. It builds drafters, and says which models they fit."""

    api = API
    options: Mapping[str, str] = {"longest": f"tokens of a draft, from 1 to {LONGEST}"}
    """What `--drafter-option` may set, and what it means: `drafters show` lists it, shells complete it, the rest is refused."""

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
        """The drafter of weights that were checked. Raises ModelError where they do not fit after all, UsageError for options."""
        from .drafter import TemplateDrafter, read

        longest = options.get("longest", LONGEST)
        if not isinstance(longest, int) or not 1 <= longest <= LONGEST:
            raise UsageError(f"The option longest is {longest!r}.", f"Use a whole number from 1 to {LONGEST}.")
        assert match.weights is not None
        with open_draft(Path(match.weights)) as files:
            problem = misfit(files, target.info)
            if problem:
                raise ModelError(f"{problem}.", "Give weights that were made for this model.")
            return TemplateDrafter(target, read(files, target), longest)


def misfit(files: DraftFiles, model: ModelInfo) -> str | None:
    """Why the files cannot draft for a model, as a sentence without its full stop; None if they can."""
    if not files.holds.issuperset({"fc.weight", "norm.weight"}):
        return f"{files.name} holds no drafter of this kind"
    for what, key, ours in (("a width", "hidden_size", model.width), ("a vocabulary", "vocab_size", model.vocab)):
        theirs = files.settings.integer(key)
        if theirs != ours:
            return f"{files.name} is made for {what} of {theirs}, and {model.name} has {ours}"
    return files.stranger(model)
