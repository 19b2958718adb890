"""Heads on the target's last state each guess one of the next tokens, the best guesses form a tree: Medusa and Hydra.

Sources: Cai et al. (arXiv 2401.10774); Ankner et al. (arXiv 2402.05109), whose heads see the guesses before theirs, and in
Hydra++ a state that knows those before it. The heads cost no pass of their own; `draft` is the drafting, `heads` what they say,
`prefix` the layer of Hydra++, `tree` the shape of the tree, `format` the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.drafting import Fit, Match, ModelInfo, Target

from .names import OWN

if TYPE_CHECKING:
    from outrider.core.train.recipe import Recipe

    from .draft import MedusaDrafter

GAINS = {"Medusa": 2.0, "Hydra": 2.3, "Hydra++": 2.6}


class Medusa:
    """The method; heads of both kinds come with `--drafter-weights`, Medusa's also with the target."""

    api = 1
    options: Mapping[str, str] = {}

    @property
    def recipe(self) -> Recipe:
        """How such heads are trained."""
        from .training import MedusaRecipe

        return MedusaRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Exact for a checkpoint that holds heads of its own; else it waits for some."""
        own = [name[len(OWN) :].split(".") for name in model.tensors if name.startswith(OWN)]
        if not own:
            reason = "needs Medusa or Hydra heads trained for this model: --drafter-weights PATH or NAME"
            return Match(Fit.FAMILY, reason, GAINS["Medusa"], ready=False)
        heads, layers = len({name[0] for name in own}), len({name[1] for name in own if "linear" in name})
        weights = heads * (layers * (model.width + 1) * model.width + model.vocab * model.width)
        reason = f"{model.name} has {heads} Medusa heads of its own"
        return Match(Fit.EXACT, reason, GAINS["Medusa"], 2 * weights, model.path)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the heads at `weights` have the target's width and vocabulary. Raises BrokenFileError for a broken set."""

        from .format import open_heads

        path = Path(weights)
        try:
            files = open_heads(path)
        except BrokenFileError:
            raise
        except ModelError as error:  # something else is there
            return Match(Fit.NO, error.message.rstrip("."), weights=str(path))
        with closing(files):
            problem = files.misfit(model) or (files.source.stranger(model) and "it comes with another tokenizer")
            if problem:
                return Match(Fit.NO, f"{path.name} does not fit {model.name}: {problem}", weights=str(path))
            reason = f"{path.name}: {files.heads} {files.label} heads"
            base = files.config.get("base_model_name_or_path")
            if isinstance(base, str):
                reason += f", made for {base}"
            return Match(Fit.EXACT, reason, GAINS[files.label], 2 * files.numel(), str(path))

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> MedusaDrafter:
        """Load the heads that `match` names. Raises ModelError if they cannot be read or do not fit."""
        from .draft import MedusaDrafter
        from .format import open_heads
        from .heads import read_heads

        assert match.weights is not None
        with closing(open_heads(Path(match.weights))) as files:
            return MedusaDrafter(read_heads(files, target), target.info.vocab, files.choices())
