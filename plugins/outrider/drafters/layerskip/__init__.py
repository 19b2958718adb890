"""LayerSkip: the target's own first layers, its norm and its head guess; the rest of it checks.

Source: Elhoushi et al. (arXiv 2404.16710). The drafts' keys and values are written after the committed ones in the target's
own cache, and the target verifies from the exit layer on, with the residuals that `Target.early` has kept (on a CPU; see
there where it runs all layers anew). It pays for models that were trained to exit early; for others the exit that promises most
is found by measurement, and may promise nothing.

Letters: `V` vocabulary, `d` width, `L` layers, `k` draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Committed, Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Target
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, LatentSpec

from .keys import KEYS

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.core.train.recipe import Recipe

MOST = 32  # tokens of a draft
EIGHTHS = (1, 2, 3, 4)  # of the layers: where exits are tried
ENOUGH = 64  # positions after which the exit is settled
NEWEST = 8  # positions of one pass that are measured
LAYER = 12  # weights of a layer, over the square of the width: what most models come near


class LayerSkip:
    """The method; it needs no weights."""

    api = 1
    options: Mapping[str, str] = {}

    @property
    def recipe(self) -> Recipe:
        """How a model is trained to exit early."""
        from .training import LayerSkipRecipe

        return LayerSkipRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Fits models of attention layers alone; well those that were trained for it."""
        try:
            exits = _exits(model)
        except ModelError as error:
            return Match(Fit.NO, error.message.rstrip("."))
        if _named(model) is not None:
            reason = f"drafts with its first {exits[0]} of {model.layers} layers, as its config says"
            return Match(Fit.FAMILY, reason, gain=1.5)
        way = f"drafts with its own first layers ({', '.join(map(str, exits))} of {model.layers} are tried at first)"
        places = (model.name, *Path(model.path).parts[-3:])
        if any("layerskip" in place.lower() for place in places):  # the published ones say it in their name alone
            return Match(Fit.FAMILY, way, gain=1.5)
        return Match(Fit.ANY, f"{way}; pays where a model was trained to exit early", gain=1.0)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> LayerSkipDrafter:
        """A drafter without weights. Raises ModelError as `matches` would say no."""
        return LayerSkipDrafter(target, _exits(target.info))


def _named(model: ModelInfo) -> object:
    return next((model.config[key] for key in KEYS if model.config.get(key) is not None), None)


def _exits(model: ModelInfo) -> tuple[int, ...]:
    """Layers after which a draft may end: the config's, or those worth trying. Raises ModelError if there is none."""
    named = _named(model)
    if named is not None and (type(named) is not int or not 1 <= named < model.layers):
        raise ModelError(f"The config's exit layer {named!r} is not one of 1 to {model.layers - 1}.", "Correct it.")
    exits = {max(1, model.layers * eighth // 8) for eighth in EIGHTHS} if named is None else {named}
    if model.layers < 2:
        raise ModelError("A model of one layer has no earlier exit.", "Take another drafter.")
    first = read_spec(model.config).layers[: max(exits)]
    if not all(isinstance(layer.mixer, AttentionSpec | LatentSpec) for layer in first):
        raise ModelError("Its first layers keep states that no draft can be taken out of.", "Take another drafter.")
    return tuple(sorted(exits))


class Meter:
    """How often each exit's best token is the target's, and which exit promises most."""

    def __init__(self, exits: Sequence[int], model: ModelInfo) -> None:
        self.exits = tuple(exits)
        self.seen = 0
        self._right = [0.0] * len(exits)
        head = model.vocab / (LAYER * model.width)  # what the head costs, in layers
        self._costs = [(layers + head) / (model.layers + head) for layers in exits]

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to measure."""
        return len(self.exits) == 1 or self.seen >= ENOUGH

    def learn(self, right: Sequence[int], positions: int) -> None:
        """At so many positions each exit was `right` that often."""
        self.seen += positions
        self._right = [before + more for before, more in zip(self._right, right, strict=True)]

    def best(self) -> int:
        """Layers of the exit with the best rate; before anything was measured all are taken to be right half of the time."""
        chances = [(right + 2.0) / (self.seen + 4.0) for right in self._right]
        rates = [_rate(chance, cost) for chance, cost in zip(chances, self._costs, strict=True)]
        return self.exits[rates.index(max(rates))]


def _rate(chance: float, cost: float) -> float:
    """Tokens over passes of the whole model, at the best length of drafts that are right by `chance` and cost `cost` each."""
    best, expected = 0.0, 1.0
    for k in range(1, MOST + 1):
        expected += chance**k
        best = max(best, expected / (1 + k * cost))
    return best


class LayerSkipDrafter:
    """Follows one conversation through the target's own cache; only what was measured is its own."""

    def __init__(self, target: Target, exits: Sequence[int], meter: Meter | None = None) -> None:
        self._target = target
        self._meter = meter or Meter(exits, target.info)  # of the model, not of a conversation
        layers = () if len(exits) == 1 else (*exits, target.info.layers)
        self.needs = Needs(hidden=layers, early=max(exits))
        self.shape = Shape(nodes=MOST, depth=MOST)

    def reset(self) -> None:
        """Nothing to forget."""

    def advance(self, step: Committed) -> None:
        """While the exit is not settled: compare what each one would have said with what the target said."""
        hidden = step.hidden
        if hidden is None or not hidden.shape[0] or self._meter.settled:
            return
        some = hidden[-NEWEST:]  # [r, exits + 1, d]
        ids = self._logits(some.flatten(0, 1)).argmax(-1).view(some.shape[:2])
        self._meter.learn((ids[:, :-1] == ids[:, -1:]).sum(0).tolist(), some.shape[0])

    def rewind(self, length: int) -> None:
        """Nothing to cut: the cache is the target's."""

    def fork(self) -> LayerSkipDrafter:
        """The same target and measurements."""
        return LayerSkipDrafter(self._target, self._meter.exits, self._meter)

    def close(self) -> None:
        """Nothing to free."""

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens [k], with `probs` [k, V] if they are wanted; None if a logit is no number."""
        import torch

        from outrider.core.drafting import ChainSampler

        target, layers, root = self._target, self._meter.best(), len(context.tokens) - 1

        def row(token: int, at: int) -> Tensor:
            return self._logits(target.early(torch.tensor([token], device=target.device), at, layers))[0]  # [V]

        picks = ChainSampler(context, min(context.nodes, MOST), weighs=target.graphs is None)
        logits = row(context.tokens[-1], root)
        while picks.add(logits):
            logits = row(picks.path[-1], root + len(picks.path))
        return None if picks.broken else picks.draft()

    def _logits(self, residual: Tensor) -> Tensor:
        """[r, d] -> [r, V]."""
        return self._target.head(self._target.norm(residual))
