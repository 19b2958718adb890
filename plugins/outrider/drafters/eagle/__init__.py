"""EAGLE: one small layer guesses from the target's own states, or, as P-EAGLE, a few layers guess all tokens in one pass.

Versions 1 (arXiv 2401.15077), 2 (the tree, arXiv 2406.16858), 3 (arXiv 2503.01840), 3.1 and P-EAGLE (arXiv 2602.01469), in
the containers of their authors, SpecForge, speculators and ModelOpt. Asking whether a draft fits loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.drafting import Fit, Match, ModelInfo, Target

if TYPE_CHECKING:
    from outrider.core.train.recipe import Recipe

    from .draft import EagleDrafter, Style

SLACK = 64  # positions beyond the target's context that a draft may reach


class Eagle:
    """The method; it needs `--drafter-weights`. The last three options are for files that are read in another way than they were
    meant. A P-EAGLE makes chains only and feeds nothing back.
    """

    api = 1
    options: Mapping[str, str] = {
        "tree": "auto (a chain, and on a GPU a tree where more than `depth` tokens are asked for), chain or tree",
        "depth": "levels of a tree, 8 if not given; one more than EAGLE-2's own number",
        "top_k": "children of a node, and nodes that each level follows, 10 if not given",
        "states": "output or boundary, for how the file counts layers, or the numbers of the target's states",
        "feedback": "auto, prenorm or postnorm: whether the output is normed before it is fed back",
        "residual": "auto, normed or plain: what the residual takes",
    }

    @property
    def recipe(self) -> Recipe:
        """How such a draft is trained."""
        from .training import EagleRecipe

        return EagleRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Fits the model that a draft was trained for, once it is given."""
        reason = "needs an EAGLE draft trained for this model: --drafter-weights PATH or NAME"
        return Match(Fit.EXACT, reason, gain=2.5, ready=False)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the draft at `weights` fits, from its config and the names of its tensors. Raises ModelError if it is none."""

        from .format import open_files, read

        path = Path(weights)
        with open_files(path) as files:
            container, nbytes = read(files), files.nbytes
        problem = container.misfit(model)
        if problem:
            return Match(Fit.NO, problem, weights=str(path))
        reason = f"{path.name} is {container.kind} for models like {model.name}"
        return Match(Fit.EXACT, reason, gain=2.5, nbytes=nbytes, weights=str(path))

    def readings(self, model: ModelInfo, match: Match) -> list[Mapping[str, object]]:
        """Ways in which the files may be meant. Raises as `check`."""
        from .format import open_files, read
        from .readings import readings

        with open_files(Path(match.weights or "")) as files:
            return readings(files.config, read(files), model)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> EagleDrafter:
        """Load the draft that `match` names. Raises ModelError if it cannot be read, UsageError for an option that is none."""
        from outrider.core.drafting import DraftState

        from .draft import EagleDrafter
        from .format import OTHER, open_files, read
        from .network import load
        from .parallel import Parallel
        from .readings import read_as, states_read

        assert match.weights is not None
        style = _style(options)
        with open_files(Path(match.weights)) as files:
            container = read_as(read(files), options)
            problem = container.misfit(target.info)
            if problem:
                raise ModelError(f"{problem}.", OTHER)
            parallel = container.mask is not None
            if parallel and style.tree == "tree":
                raise UsageError(f"The option tree is 'tree'; {container.name} makes chains only.", "Leave it out.")
            network = load(files, container, target, SLACK)
        states = states_read(container, target.info, options)
        quick = target.trees and target.device.type != "cpu"  # a CPU takes several plain passes for a tree
        if parallel or (style.tree == "auto" and not quick):
            style = replace(style, tree="chain")
        scratch = max(SLACK, style.scratch)
        state = DraftState(
            target, network.layers.mixers, network.tables, network.entry.fuse, network.run, scratch=scratch
        )
        make = Parallel if parallel else EagleDrafter
        return make(network, state, states, target.info.vocab, style)


def _style(options: Mapping[str, object]) -> Style:
    from .draft import LONGEST, WIDEST, Style

    tree = str(options.get("tree", "auto"))
    if tree not in ("auto", "chain", "tree"):
        raise UsageError(f"The option tree is {tree!r}.", "Use one of: auto, chain, tree.")
    numbers = {}
    for key, most in (("depth", LONGEST), ("top_k", WIDEST)):
        value = str(options.get(key, getattr(Style(), key)))
        if not value.isdecimal() or not 1 <= int(value) <= most:
            raise UsageError(f"The option {key} is {value!r}.", f"Use a whole number from 1 to {most}.")
        numbers[key] = int(value)
    return Style(tree, **numbers)
