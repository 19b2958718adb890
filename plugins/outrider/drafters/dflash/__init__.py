"""DFlash: a small block diffusion drafter guesses a whole block in one pass, on states that the target computed anyway.

Sources: DFlash (arXiv 2602.06036), DSpark (arXiv 2607.05147), DFlash2 (z-lab, 2026), DDTree (arXiv 2604.12989). Which of
them a checkpoint is shows in its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import Fit, Match, ModelInfo, Target

if TYPE_CHECKING:
    from outrider.core.drafting.files import DraftFiles
    from outrider.core.train.recipe import Recipe

    from .draft import DFlashDrafter, Options
    from .format import Plan

SLACK = 64  # positions beyond the target's context that a block may reach


class DFlash:
    """The method; it needs `--drafter-weights`. The last three options are for files that are read in another way than they were
    trained.
    """

    api = 1
    options: Mapping[str, str] = {
        "tree": "true or false; if not given, a tree where it is as quick to make as a chain",
        "confidence": "a chance from 0 to 1: a chain ends before the first token that is less sure to stay",
        "window": "slot or anchor: where the windows of sliding layers end",
        "causal": "sliding, all or none: layers whose slots do not look ahead",
        "sample_from_anchor": "true or false: whether the slot of the last token drafts too",
    }

    @property
    def recipe(self) -> Recipe:
        """How such a draft is trained."""
        from .training import DFlashRecipe

        return DFlashRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Fits any model for which such a drafter was trained."""
        return Match(
            Fit.EXACT,
            "needs a DFlash, DSpark or DFlash2 drafter made for this model: --drafter-weights PATH or NAME",
            gain=3.0,
            ready=False,
        )

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the drafter at `weights` serves this target, from its config and tensor names. Raises ModelError."""
        from outrider.core.drafting.files import open_draft

        with open_draft(Path(weights)) as files:
            return _match(files, model)

    def readings(self, model: ModelInfo, match: Match) -> list[Mapping[str, object]]:
        """Ways in which the files may be meant. Raises as `check`."""
        from outrider.core.drafting.files import open_draft

        from .readings import readings

        with open_draft(Path(match.weights or "")) as files:
            return readings(files)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> DFlashDrafter:
        """Load the drafter that `match` names. Raises ModelError, BrokenFileError, UsageError."""
        from outrider.core.drafting.files import open_draft

        from .build import build
        from .draft import DFlashDrafter

        assert match.weights is not None
        with open_draft(Path(match.weights)) as files:
            parts = build(files, _plan(files, target.info, options), target, SLACK)
        return DFlashDrafter(target, parts, _options(options))


def _match(files: DraftFiles, model: ModelInfo) -> Match:
    from . import format

    path = str(files.path)
    other = format.recognised(files.holds)
    if other is not None:
        return Match(Fit.NO, f"{files.name} is {other}", weights=path)
    plan = format.read_plan(files)
    problem = format.misfit(plan, model) or files.stranger(model)
    if problem is not None:
        return Match(Fit.NO, problem, weights=path)
    kind = "DFlash2" if plan.selector else "DSpark" if plan.markov else "DFlash"
    reason = f"{plan.name} is a {kind} drafter of {len(plan.sights)} layers for models like {model.name}"
    return Match(Fit.EXACT, reason, gain=3.0, nbytes=files.nbytes, weights=path)


def _plan(files: DraftFiles, model: ModelInfo, options: Mapping[str, object]) -> Plan:
    from outrider.core.base.errors import ModelError

    from . import format
    from .readings import reading_of

    other = format.recognised(files.holds)
    if other is not None:
        raise ModelError(f"{files.name} is {other}.", "Give the weights of a DFlash drafter.")
    plan = format.read_plan(files, reading_of(options))
    problem = format.misfit(plan, model)
    if problem is not None:
        raise ModelError(f"{problem}.", "Give a drafter that was made for this model.")
    return plan


def _options(told: Mapping[str, object]) -> Options:
    from outrider.core.base.errors import UsageError

    from .draft import Options

    tree, confidence = told.get("tree"), told.get("confidence", 0.0)
    if not (tree is None or isinstance(tree, bool)):
        raise UsageError(f"The option tree is {tree!r}.", "It is true or false.")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise UsageError(f"The option confidence is {confidence!r}.", "It is a chance from 0 to 1.")
    return Options(tree=tree, confidence=float(confidence))
