"""Sequential drafting: a prediction layer reads the next token beside the target's state, and then its own output instead.

Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2. Layer k predicts token p + 2 + k from the embedding of token p + 1 + k and
the state that layer k - 1 made of row p, the target's normed state for the first. A single layer is applied again and again;
of several, each serves one depth, as they were trained.

Letters: `S` rows of a pass, `d` width, `V` vocabulary, `M` prediction layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from outrider.core.drafting import (
    ChainSampler,
    Choose,
    Context,
    DeviceContext,
    Draft,
    InFlight,
    Needs,
    Shape,
    Target,
)
from outrider.core.drafting.layers import DraftLayers, Layout, Part, Rows
from outrider.core.drafting.state import DraftState, Outputs, Scratch, StateDrafter, Window

MOST = 16  # tokens of a draft of one layer


@dataclass(frozen=True, slots=True)
class Layer:
    """One prediction layer."""

    layers: DraftLayers  # one
    embed_norm: Part
    hidden_norm: Part
    mix: Part  # 2 d -> d
    out_norm: Part
    hidden_first: bool

    @property
    def block(self) -> Any:
        """Its mixers and norms."""
        return self.layers.blocks[0]

    def __call__(self, embedded: Tensor, hidden: Tensor, where: Layout, rows: Rows) -> Tensor:
        """Embeddings of the next tokens and states, both [S, d] -> outputs [S, d], which the head reads after `out_norm`."""
        parts = [self.embed_norm(embedded), self.hidden_norm(hidden)]
        if self.hidden_first:
            parts.reverse()
        return self.layers(self.mix(torch.cat(parts, -1)), where, rows)


class Made(NamedTuple):
    """What a layer made of its newest row."""

    logits: Tensor  # [1, V]
    back: Tensor  # [1, d] that is fed back


class SequentialDrafter(StateDrafter):
    """Follows one conversation; the layers' rows are fed when a draft is asked for, or when many wait.

    `raw`: the target's states are taken before its final norm, `prenorm`: outputs are fed back before `out_norm`.
    """

    def __init__(self, target: Target, layers: Sequence[Layer], *, raw: bool = False, prenorm: bool = False) -> None:
        self._raw, self._prenorm = raw, prenorm
        self._target, self._layers = target, tuple(layers)
        depth = MOST if len(layers) == 1 else len(layers)
        self.needs = Needs(hidden=(target.info.layers,))
        self.shape = Shape(nodes=depth, depth=depth)
        mixers = [layer.block.mixer for layer in layers]
        between = [Outputs(target.info.width)] * (len(layers) - 1)  # what each further layer reads
        self._state = DraftState(
            target, [*mixers, *between], layers[0].layers.tables, self._read, partial(self._run, 0)
        )
        self._later = [0] * (len(layers) - 1)  # rows fed to each further layer
        self._origin = 0  # the position of their first
        self.device = self._state.captured
        self._drafted: tuple[int, InFlight | None] | None = (
            None  # row where the last draft of the device began, and after what
        )

    def reset(self) -> None:
        """Forget the conversation."""
        super().reset()
        self._drafted = None
        self._later = [0] * len(self._later)

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are true; rows of later ones are written anew."""
        super().rewind(length)
        self._drafted = None
        self._later = [max(0, min(fed, self._state.count - 1 - index)) for index, fed in enumerate(self._later)]

    def fork(self) -> Self:
        """Same weights, a copy of the rows."""
        other = super().fork()
        other._later, other._drafted = list(self._later), None
        return other

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens, with `probs` [n, V] if they are wanted; None while no state is known."""
        state = self._state
        if not state.ready(len(context.tokens)):
            return None
        picks = ChainSampler(context, min(context.nodes, self.shape.nodes), weighs=not state.captured)
        outputs: Made = state.feed()
        if state.origin != self._origin:  # rows began anew
            self._later, self._origin = [0] * len(self._later), state.origin
        while picks.add(outputs.logits[0]):
            outputs = self._ahead(picks.path, outputs.back)
        if picks.broken:
            state.wipe()
        return picks.draft()

    @torch.inference_mode()
    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `propose`; every further layer runs over the newest rows once more, with the tokens that it was waiting for."""
        state, count = self._state, min(context.nodes, self.shape.nodes)
        if not state.ready(len(context.tokens)):
            return None
        if len(self._layers) > 1 and not self._caught_up():
            return None
        work = self._single if len(self._layers) == 1 else self._several
        row = state.count - (context.in_flight is None)
        result = state.draft_ahead(context, count, partial(work, context.choose, count), rows=count)
        if result is None:
            return None
        self._drafted = row, context.in_flight
        return Draft(result)

    def _single(self, choose: Choose, count: int, outputs: Made, scratch: Scratch, _: Window) -> Tensor:
        """The tokens [count] of a chain, by one layer."""
        path = list[Tensor]()
        while True:
            path.append(choose(outputs.logits, len(path)))
            if len(path) == count:
                return torch.cat(path)
            where = scratch.line(1, len(path) - 1)
            outputs = self._run(0, self._state.rows, path[-1].clamp(min=0), outputs.back, where, slice(0, 1))

    def _several(self, choose: Choose, count: int, outputs: Made, scratch: Scratch, window: Window) -> Tensor:
        """The tokens [count] of a chain, each by a layer of its own.

        Of the rows that layer k reads the first k were waiting for the first tokens of the window.
        """
        rows, width = self._state.rows, window.tokens.shape[0]
        said = window.tokens  # and after what is true of it, the draft
        path = list[Tensor]()
        while True:
            path.append(choose(outputs.logits, len(path)))
            depth = len(path)
            if depth == count:
                return torch.cat(path)
            at = torch.arange(depth + width, device=said.device)
            said = torch.where(at == window.taken + depth - 1, path[-1].clamp(min=0), torch.cat((said, path[-1])))
            first = scratch.base - window.taken - depth
            hidden = rows[len(self._layers) + depth - 1].parts[0][first + at]
            where = scratch._replace(base=first).line(depth + width)
            outputs = self._run(depth, rows, said.clamp(min=0), hidden, where, window.taken + depth - 1)

    def _caught_up(self) -> bool:
        """Run the further layers over the rows whose tokens are all known; False where there are not enough rows yet."""
        state, drafted = self._state, self._drafted
        state.feed(again=False)
        if state.origin != self._origin:  # rows began anew
            self._later, self._origin = [0] * len(self._later), state.origin
        if state.count <= len(self._layers):
            return False
        true = 0
        if drafted is not None:  # what the device ran over became true
            row, flying = drafted
            true = row + (1 if flying is None else flying.taken)
        for depth, fed in enumerate(self._later, 1):
            if true <= state.count:
                fed = max(fed, true - depth)
            if fed < state.count - depth:
                self._feed_later(depth, fed, state.count - depth, state.tokens)
            self._later[depth - 1] = max(fed, state.count - depth)
        return True

    def _ahead(self, path: Sequence[int], back: Tensor) -> Made:
        """What comes after `path`; `back` [1, d] is what was fed back for its last token."""
        state, depth = self._state, len(path)
        if len(self._layers) == 1:
            return state.follow(path[-1], back, depth)
        outputs = self._feed_later(depth, self._later[depth - 1], state.count, [*state.tokens, *path])
        self._later[depth - 1] = max(0, state.count - depth)  # after that row, tokens of the draft were read
        assert outputs is not None
        return outputs

    def _feed_later(self, depth: int, first: int, stop: int, ids: Sequence[int]) -> Made | None:
        """Run layer `depth` over rows `first` to `stop` of a conversation with these ids; what it makes of the newest."""
        state, outputs = self._state, None
        for row, position, count in state.passes(first, stop):
            some = ids[position + 1 + depth :][:count]
            hidden = state.rows[len(self._layers) + depth - 1].parts[0][row : row + count]
            outputs = state.run(some, hidden, row, key=depth, run=partial(self._run, depth))
        return outputs

    def _read(self, states: Tensor) -> Tensor:
        """[S, 1, d] -> [S, d] as the first layer takes them."""
        return states[:, 0] if self._raw else self._target.norm(states[:, 0])

    def _run(
        self,
        depth: int,
        memory: Rows,
        ids: Tensor,
        hidden: Tensor,
        where: Layout,
        newest: Tensor | slice,
    ) -> Made:
        """As `DraftState` runs it, through one layer; what is fed back is kept for the next one."""
        layer = self._layers[depth]
        output = layer(self._target.embed(ids), hidden, where, memory[depth : depth + 1])
        read = layer.out_norm(output)
        back = output if self._prenorm else read
        if depth + 1 < len(self._layers):
            memory[len(self._layers) + depth].take(where, back)
        return Made(self._target.head(read[newest]), back[newest])
