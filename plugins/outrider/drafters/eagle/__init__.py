"""EAGLE: one small layer guesses from the target's own states.

Versions 1 (arXiv 2401.15077), 2 (the tree, arXiv 2406.16858), 3 (arXiv 2503.01840) and 3.1, in the containers of their
authors, SpecForge, speculators and ModelOpt. Asking whether a draft fits loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import Fit, Match, ModelInfo, Target
from outrider.core.errors import ModelError, UsageError

if TYPE_CHECKING:
    from .draft import Rider, Style

FEEDBACK = {"auto": None, "prenorm": False, "postnorm": True}
SLACK = 64  # positions beyond the target's context that a draft may reach


class Eagle:
    """The method; it needs `--drafter-weights`.

    Options: `tree` (auto, chain, tree), `depth` (levels of a tree, one more than EAGLE-2's own number), `top_k`, `states`
    (numbers of the target's states to read, where the file counts them in another way than it seems), and `feedback` (auto,
    prenorm, postnorm: whether the output is normed before it is fed back; SpecForge trains EAGLE-3.1 without).
    """

    api = 1

    def matches(self, model: ModelInfo) -> Match:
        """Fits the model that a draft was trained for, once it is given."""
        reason = "needs an EAGLE draft trained for this model: --drafter-weights PATH or NAME"
        return Match(Fit.EXACT, reason, gain=2.5, ready=False)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the draft at `weights` fits, from its config and the names of its tensors. Raises ModelError if it is none."""

        from .format import Source, read

        path = Path(weights)
        source = Source(path)
        try:
            container = read(source)
            nbytes = source.nbytes
        finally:
            source.close()
        problem = container.misfit(model)
        if problem:
            return Match(Fit.NO, problem, weights=str(path))
        reason = f"{path.name} is an EAGLE-{container.version} draft for models like {model.name}"
        return Match(Fit.EXACT, reason, gain=2.5, nbytes=nbytes, weights=str(path))

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Rider:
        """Load the draft that `match` names. Raises ModelError if it cannot be read, UsageError for an option that is none."""
        from outrider.core.target.state import Room

        from .draft import Rider
        from .format import OTHER, Source, read
        from .layer import load
        from .trail import Trail

        assert match.weights is not None
        style, states = _style(options), _states(options, target.info.layers)
        if style.tree == "auto" and not target.trees:
            style = replace(style, tree="chain")
        feedback = str(options.get("feedback", "auto"))
        if feedback not in FEEDBACK:
            raise UsageError(f"The option feedback is {feedback!r}.", f"Use one of: {', '.join(FEEDBACK)}.")
        source = Source(Path(match.weights))
        try:
            container = read(source)
            problem = container.misfit(target.info)
            if problem:
                raise ModelError(f"{problem}.", OTHER)
            layer = load(source, container, target, target.context + SLACK, FEEDBACK[feedback])
        finally:
            source.close()
        states = states or container.states(target.info)
        if len(states) != container.count(target.info.width):
            raise UsageError(
                f"The option states names {len(states)} states; {container.name} reads another number.", "Leave it out."
            )
        room = Room(target.context + style.scratch, target.dtype, target.device)
        return Rider(layer, Trail(layer, room), states, target.info.vocab, style)


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


def _states(options: Mapping[str, object], layers: int) -> tuple[int, ...]:
    """The states that the user names, as `2,4,5`; none where the files decide."""
    told = str(options.get("states", "") or "")
    numbers = tuple(int(part) if part.isdecimal() else -1 for part in told.split(",")) if told else ()
    if not all(0 <= number <= layers for number in numbers):
        raise UsageError(f"The option states is {told!r}.", f"Use numbers from 0 to {layers}, as in 2,4,5.")
    return numbers
