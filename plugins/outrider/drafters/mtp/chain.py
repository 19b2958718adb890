"""Sequential drafting: a prediction layer reads the next token beside the target's state, and then its own output instead.

Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2. Layer k predicts token p + 2 + k from the embedding of token p + 1 + k and
the state that layer k - 1 made of row p, the target's normed state for the first. A single layer is applied again and again;
of several, each serves one depth, as they were trained.

Where there are graphs, short passes are filled up to a fixed width `W` and captured; the rows that fill them are scratch.

Letters: `S` rows of a pass, `d` width, `V` vocabulary, `M` prediction layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.drafting import Context, Draft, Needs, Shape, Step, Target
from outrider.core.drafting.chain import Picks
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import Still, Tables, Where
from outrider.core.model.cache.states import SLACK, Room, Rows
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.lane import Lane
from outrider.core.model.steps import SHORT, Steps, filled

from .memory import CHUNK, Memory, still

MOST = 16  # tokens of a draft of one layer


@dataclass(frozen=True, slots=True)
class Layer:
    """One prediction layer."""

    spec: TargetSpec
    block: Block
    embed_norm: Norm
    hidden_norm: Norm
    mix: Linear  # 2 d -> d
    out_norm: Norm
    hidden_first: bool

    def __call__(self, embedded: Tensor, hidden: Tensor, where: Where, state: object) -> Tensor:
        """Embeddings of the next tokens and states, both [S, d] -> outputs [S, d], which the head reads behind `out_norm`."""
        parts = [self.embed_norm(embedded), self.hidden_norm(hidden)]
        if self.hidden_first:
            parts.reverse()
        x = self.mix(torch.cat(parts, -1))
        return self.block.run(x, where, state, self.spec)  # type: ignore[arg-type]


class Made(NamedTuple):
    """What a layer made of its last row."""

    read: Tensor  # [1, d] for the head
    back: Tensor  # [1, d] that is fed back
    logits: Tensor | None = None  # [1, V]; None: not made yet


class Chain:
    """Follows one conversation; the layers' rows are fed when a draft is asked for, or when many wait.

    `raw`: the target's states are taken before its final norm, `prenorm`: outputs are fed back before `out_norm`.
    """

    def __init__(
        self, target: Target, layers: Sequence[Layer], tables: Tables, *, raw: bool = False, prenorm: bool = False
    ) -> None:
        self._raw, self._prenorm = raw, prenorm
        self._target, self._layers, self._tables = target, tuple(layers), tables
        depth = MOST if len(layers) == 1 else len(layers)
        self.needs = Needs(hidden=(target.info.layers,))
        self.shape = Shape(nodes=depth, depth=depth)
        room = Room(target.context + SLACK, target.dtype, target.device, rings=inf)  # rows can be cut to any length
        self._states = [layer.block.mixer.new_state(room) for layer in layers]
        # what each further layer reads: the output of the one before it, by row
        empty = torch.zeros(0, dtype=target.dtype, device=target.device)
        self._inputs = [empty.new_zeros(room.capacity, target.info.width) for _ in layers[1:]]
        self._memory = Memory()
        self._later = [0] * (len(layers) - 1)  # rows fed to each further layer
        self._steps = self._new_steps()

    def _new_steps(self) -> Steps | None:
        """For these rows; None where nothing is captured."""
        graphs, mixers = self._target.graphs, [layer.block.mixer for layer in self._layers]
        if graphs is None or not all(isinstance(state, Rows) for state in self._states):
            return None
        return Steps(graphs, torch.zeros(0, dtype=self._target.dtype, device=self._target.device), mixers)

    def reset(self) -> None:
        """Forget the conversation."""
        self._memory.clear()
        self._later = [0] * len(self._later)

    def advance(self, step: Step) -> None:
        """Keep the tokens with the states that produced them."""
        memory = self._memory
        if memory.breaks(step):
            self._feed()
        states = None if step.hidden is None else step.hidden[:, 0]
        memory.hear(step, states if states is None or self._raw else self._target.norm(states))
        if memory.waiting >= CHUNK:
            self._feed()

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true; rows of later ones are written anew."""
        self._memory.rewind(length)
        self._later = [max(0, min(fed, length - 2 - index)) for index, fed in enumerate(self._later)]

    def fork(self) -> Chain:
        """Same weights, a copy of the rows."""
        other = copy.copy(self)
        other._memory = self._memory.copy()
        other._states, other._inputs = copy.deepcopy((self._states, self._inputs))
        other._later = list(self._later)
        other._steps = other._new_steps()
        return other

    def close(self) -> None:
        """Let go of weights and rows."""
        self._layers, self._states, self._inputs, self._steps = (), [], [], None
        self._memory.clear()

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens, with `probs` [n, V] if they are wanted; None while no state is known."""
        if not self._memory.known():
            return None
        self._memory.again()
        count = min(context.nodes, self.shape.nodes)
        picks, made = Picks(context, count, weighs=self._target.graphs is None), self._feed()
        while picks.add(self._logits(made)):
            made = self._ahead(picks.path, made.back)
        if picks.broken:
            for state in self._states:
                if isinstance(state, Rows):
                    state.wipe(self._memory.rows)
        return picks.draft()

    def _logits(self, made: Made) -> Tensor:
        """[V]."""
        return self._target.head(made.read)[0] if made.logits is None else made.logits[0]

    def _feed(self) -> Made:
        """Feed the rows that wait to the first layer; what it made of the last."""
        memory, made = self._memory, Made(torch.empty(0), torch.empty(0))
        while memory.waiting:
            first, count = memory.fed, min(CHUNK, memory.waiting)
            made = self._pass(0, first, memory.tokens[first + 1 : first + 1 + count], memory.take(count))
        return made

    def _ahead(self, path: Sequence[int], state: Tensor) -> Made:
        """The same for the token behind `path`; `state` [1, d] is what was fed back for its last."""
        rows, depth = self._memory.rows, len(path)
        if len(self._layers) == 1:
            return self._pass(0, rows - 1 + depth, path[-1:], state)
        ids, made = [*self._memory.tokens, *path], Made(state, state)
        for first in range(self._later[depth - 1], rows, CHUNK):
            stop = min(first + CHUNK, rows)
            hidden = self._inputs[depth - 1][first:stop]
            made = self._pass(depth, first, ids[first + 1 + depth : stop + 1 + depth], hidden)
        self._later[depth - 1] = max(0, rows - depth)  # behind that row, tokens of the draft were read
        return made

    @torch.inference_mode()
    def _pass(self, layer: int, first: int, ids: Sequence[int], hidden: Tensor) -> Made:
        """Rows from `first` on through one layer: next tokens [S] and states [S, d] -> what came of the last."""
        if self._steps is not None and len(ids) <= SHORT:
            return self._still(self._steps, layer, first, ids, hidden)
        where = self._memory.where(first, len(ids), self._tables, hidden)
        read, back = self._through(layer, torch.tensor(ids, device=hidden.device), hidden, where)
        return Made(read[-1:], back[-1:])

    def _still(self, steps: Steps, layer: int, first: int, ids: Sequence[int], hidden: Tensor) -> Made:
        """The same, captured, with the logits."""
        rows, count = self._states[layer], len(ids)
        assert isinstance(rows, Rows)
        width = Lane.width(count)
        end = steps.end(first + width, rows, masked=bool(self._memory.holes))
        there = self._memory.there(end)

        def work(sheet: Tensor, hidden: Tensor, there: Tensor | None = None) -> Made:
            ids, base, last = sheet.split((width, 1, 1))
            where = still(Still(base, end), width, self._tables, hidden, there)
            read, back = (part[last] for part in self._through(layer, ids, hidden, where))
            return Made(read, back, self._target.head(read))

        sheet = steps.told([*ids, *[0] * (width - count), first, count - 1])
        holed = () if there is None else (there,)
        return steps((layer, width, end, len(holed)), work, sheet, filled(hidden, width), *holed)

    def _through(self, layer: int, ids: Tensor, hidden: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """What the head reads and what is fed back, both [S, d]; the latter is kept for the next layer."""
        made = self._layers[layer](self._target.embed(ids), hidden, where, self._states[layer])
        read = self._layers[layer].out_norm(made)
        back = made if self._prenorm else read
        if layer < len(self._inputs):
            self._inputs[layer].index_copy_(0, where.index, back)
        return read, back
