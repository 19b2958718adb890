"""The network, and the drafter that follows one conversation with it.

Row p reads the model's state of position p and the token p + 1 that the state led to, and guesses token p + 2. For the tokens
after that, its own output stands for the states that the model has not computed yet.

Letters: `S` rows of a pass, `k` newest rows, `d` width, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outrider.core.drafting import (
    ChainSampler,
    Choose,
    Context,
    DeviceContext,
    Draft,
    DraftState,
    Needs,
    Shape,
    StateDrafter,
    Target,
)
from outrider.core.drafting.files import DraftFiles
from outrider.core.drafting.layers import DraftLayers, Layout, Part, Rows, WeightReader, load_layers
from outrider.core.drafting.state import Scratch, Window


@dataclass(frozen=True, slots=True)
class Network:
    """The weights. They never change, so forks of a drafter share them."""

    target: Target
    fuse: Part  # 2 d -> d
    layers: DraftLayers
    norm: Part
    nbytes: int

    def states(self, hidden: Tensor) -> Tensor:
        """States of the model [S, 1, d], one for each number in `Needs.hidden` -> what a row reads [S, d]."""
        return self.target.norm(hidden[:, 0])

    def run(
        self, rows: Rows, ids: Tensor, states: Tensor, layout: Layout, newest: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """One pass over tokens [S] and the states behind them [S, d]: logits [k, V] and outputs [k, d] of the newest rows."""
        x = self.fuse(torch.cat((self.target.embed(ids), states), -1))
        x = self.norm(self.layers(x, layout, rows)[newest])
        return self.target.head(x), x


def read(files: DraftFiles, target: Target) -> Network:
    """Read every weight. Raises ModelError, BrokenFileError for what is missing or misshapen."""
    spec = files.settings.layers([0], files.holds)
    reader = WeightReader(files, spec, target, prefix="")
    fuse, layers = reader.linear("fc", spec.width, 2 * spec.width), load_layers(reader)
    return Network(target, fuse, layers, reader.norm("norm"), reader.nbytes)


class TemplateDrafter(StateDrafter):
    """Follows one conversation."""

    def __init__(self, target: Target, network: Network, longest: int) -> None:
        self.shape = Shape(nodes=longest, depth=longest)
        self.needs = Needs(hidden=(target.info.layers,))  # the state behind the last layer
        self._network = network
        self._state = DraftState(target, network.layers.mixers, network.layers.tables, network.states, network.run)
        self.device = self._state.captured  # on a GPU it drafts without waiting for the host

    @property
    def nbytes(self) -> int:
        """Bytes of weights, and of this conversation's keys and values."""
        return self._network.nbytes + self._state.nbytes

    @torch.inference_mode()
    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens; None where the newest state is not known or a number is none."""
        if not self._state.ready(len(context.tokens)):
            return None
        sampler = ChainSampler(context, min(context.nodes, self.shape.nodes), weighs=not self._state.captured)
        logits, back = self._state.feed()  # [1, V], [1, d]
        while sampler.add(logits[0]):
            logits, back = self._state.follow(sampler.path[-1], back, len(sampler.path))
        if sampler.broken:
            self._state.wipe()
            return None
        return sampler.draft()

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """The same where passes are captured, behind a round that has not been read; without it the host drafts."""
        count = min(context.nodes, self.shape.nodes)
        made = self._state.draft_ahead(context, count, partial(self._chain, context.choose, count), rows=count)
        return None if made is None else Draft(made)

    def _chain(self, choose: Choose, count: int, made: tuple[Tensor, Tensor], scratch: Scratch, _: Window) -> Tensor:
        """The tokens [count] of a chain. All of this is one captured piece: it asks no tensor for its value."""
        (logits, back), path = made, list[Tensor]()
        while True:
            path.append(choose(logits, len(path)))
            if len(path) == count:
                return torch.cat(path)
            where = scratch.line(1, len(path) - 1)
            logits, back = self._network.run(self._state.rows, path[-1].clamp(min=0), back, where, slice(0, 1))
