"""What heads say: from one state of the target to ranked guesses below every node that is to have children.

Medusa: `logits_k = W_k x_L`, `x_0 = z`, `x_{i+1} = x_i + SiLU(A_ki x_i + b_ki)`.

Hydra (arXiv 2402.05109): `x_0` is the state, the embedding of the root and those of the path to the node, side by side;
`x_1 = R_k x_0 + r_k + SiLU(A_k0 x_0 + b_k0)`, then as above, and `logits_k = W_k x_L + c_k`. In Hydra++ the state comes out of
`prefix`.

Letters: `V` vocabulary, `Vd` words that heads know, `d` width, `r` rows, `R` ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Context, DeviceContext, DraftState, Target
from outrider.core.drafting.layers import Part, WeightReader
from outrider.core.sampling.sample import in_target_ids

from .format import AGAIN, HeadFiles, HydraFiles, MedusaFiles
from .prefix import read_prefix
from .tree import RANKS, Choice


class Ranked(NamedTuple):
    """What is guessed below a node, best first."""

    ids: list[int]
    probabilities: list[float]  # of each rank; none where passes are captured: no value is asked for there


Guesses = dict[Choice, Ranked]  # by node: its children


class DraftHeads(Protocol):
    """Heads of some kind. `state` is the number of the target state that they read; `block`: one pass makes all guesses."""

    block: bool
    state: int
    count: int

    def new_state(self) -> DraftState:
        """Of a new conversation: a pass gives what the heads read, [1, d]."""
        ...

    def guesses(self, state: Tensor, parents: Sequence[Choice], context: Context, ranks: int) -> Guesses | None:
        """`ranks` guesses below each of `parents`, which come by depth; None where a head's output is not finite.

        `state` [1, d] is what `new_state` gives for the position before the root.
        """
        ...

    def table(
        self, state: Tensor, root: Tensor, parents: Sequence[Choice], context: DeviceContext, ranks: int
    ) -> Tensor:
        """The same ids on the device, [parents, R], behind a root [1]; no value is asked for."""
        ...


class Head(NamedTuple):
    """One head."""

    layers: tuple[Part, ...]  # the first one takes what the head sees, the others d -> d
    out: Callable[[Tensor], Tensor]  # d -> V
    shortcut: Part | None = None  # around the first layer

    def __call__(self, x: Tensor) -> Tensor:
        """What the head sees [r, ...] -> logits [r, V]."""
        return self.out(self.before(x))

    def before(self, x: Tensor) -> Tensor:
        """What the head sees [r, ...] -> what its output matrix sees [r, d]."""
        for index, layer in enumerate(self.layers):
            past = x if index or self.shortcut is None else self.shortcut(x)
            x = past + F.silu(layer(x))
        return x


class Output(NamedTuple):
    """One output layer for all heads."""

    layer: Callable[[Tensor], Tensor]  # [r, d] -> [r, Vd]
    ids: Tensor | None = None  # [Vd] of the target; None: the same ids
    cap: float | None = None  # on logits

    def __call__(self, x: Tensor) -> Tensor:
        """[r, d] -> [r, Vd]."""
        logits = self.layer(x)
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


class MedusaHeads:
    """Heads that see the last normed state alone: nodes of one depth share their guesses."""

    block = True

    def __init__(self, target: Target, heads: Sequence[Head], output: Output | None = None) -> None:
        """`output`: of all heads, where they have none of their own."""
        self._target, self._heads, self._output = target, tuple(heads), output
        self.state, self.count = target.info.layers, len(heads)
        self._said: dict[int, Callable[[Tensor], Tensor]] = {}  # by how many heads speak, captured

    def new_state(self) -> DraftState:
        """As `DraftHeads`."""
        return newest_alone(self._target, self._target.norm)

    def logits(self, state: Tensor, heads: int) -> Tensor:
        """What the first `heads` heads say, good until the next call: [heads, Vd]."""
        if heads not in self._said:
            some = self._heads[:heads]
            self._said[heads] = self._target.capture(lambda state: self._speak(some, state), state)
        return self._said[heads](state)

    def _speak(self, heads: Sequence[Head], state: Tensor) -> Tensor:
        if self._output is not None:  # one reading for all
            return self._output(torch.cat([head.before(state) for head in heads]))
        return torch.cat([head(state) for head in heads])

    def guesses(self, state: Tensor, parents: Sequence[Choice], context: Context, ranks: int) -> Guesses | None:
        """As `DraftHeads`."""
        logits = self.logits(state, 1 + len(parents[-1]))
        words = None if self._output is None else self._output.ids
        best = _ranked(logits, ranks, words, weighs=self._target.graphs is None)
        if best is None:
            return None
        if not context.probs:
            row = in_target_ids(logits, words, self._target.info.vocab)
            best = _sampled_first(best, context.sample(row, len(context.tokens), ()).tolist())
        return {parent: best[len(parent)] for parent in parents}

    def table(
        self, state: Tensor, root: Tensor, parents: Sequence[Choice], context: DeviceContext, ranks: int
    ) -> Tensor:
        """As `DraftHeads`."""
        logits = self.logits(state, 1 + len(parents[-1]))
        words = None if self._output is None else self._output.ids
        depths = torch.arange(logits.shape[0], device=logits.device)
        drawn = context.choose(in_target_ids(logits, words, self._target.info.vocab), depths)
        return _first(drawn, _best(logits, ranks, words)[1])[on(logits.device, [len(parent) for parent in parents])]


class HydraHeads:
    """Heads that see the path as well: every node has guesses of its own, made level by level."""

    block = False

    def __init__(self, target: Target, heads: Sequence[Head], offset: int, new_state: Callable[[], DraftState]) -> None:
        self._target, self._heads, self.new_state = target, tuple(heads), new_state
        self.state, self.count = target.info.layers - offset, len(heads)

    def logits(self, state: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """What follows each of `paths`, ids from the root on, all of one length: [r, V]."""
        ids = torch.tensor(paths, device=self._target.device)  # [r, 1 + depth]
        embedded = self._target.embed(ids.flatten()).view(len(paths), -1)
        return self._heads[ids.shape[1] - 1](torch.cat((state.expand(len(paths), -1), embedded), -1))

    def guesses(self, state: Tensor, parents: Sequence[Choice], context: Context, ranks: int) -> Guesses | None:
        """As `DraftHeads`."""
        guesses: Guesses = {}
        for depth in range(1 + len(parents[-1])):
            level = [parent for parent in parents if len(parent) == depth]
            paths = [[guesses[parent[:at]].ids[rank] for at, rank in enumerate(parent)] for parent in level]
            logits = self.logits(state, [[context.tokens[-1], *path] for path in paths])
            best = _ranked(logits, ranks, None, weighs=self._target.graphs is None)
            if best is None:
                return None
            if not context.probs:
                position = len(context.tokens) + depth
                rows = zip(logits, paths, strict=True)
                best = _sampled_first(best, [int(context.sample(row[None], position, path)[0]) for row, path in rows])
            guesses |= zip(level, best, strict=True)
        return guesses

    def table(
        self, state: Tensor, root: Tensor, parents: Sequence[Choice], context: DeviceContext, ranks: int
    ) -> Tensor:
        """As `DraftHeads`."""
        device, levels, paths = root.device, list[Tensor](), root[None]  # [r, 1 + depth]
        places: dict[Choice, int] = {}  # of a level
        for depth in range(1 + len(parents[-1])):
            level = [parent for parent in parents if len(parent) == depth]
            if depth:
                above, rank = ([places[node[:-1]] for node in level], [node[-1] for node in level])
                rows = on(device, above)
                paths = torch.cat((paths[rows], levels[-1][rows, on(device, rank)][:, None]), 1)
            embedded = self._target.embed(paths.clamp(min=0).flatten()).view(len(level), -1)
            logits = self._heads[depth](torch.cat((state.expand(len(level), -1), embedded), -1))
            levels.append(_first(context.choose(logits, depth), _best(logits, ranks, None)[1]))
            places = {node: row for row, node in enumerate(level)}
        return torch.cat(levels)


def on(device: torch.device, numbers: Sequence[int]) -> Tensor:
    """Numbers [n] going to the device."""
    return torch.tensor(numbers, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _best(logits: Tensor, ranks: int, words: Tensor | None) -> tuple[Tensor, Tensor]:
    """The `ranks` best of each row of logits [r, Vd] and their ids, each [r, R]; `words` [Vd]: ids of the target."""
    values, ids = logits.topk(ranks)
    return values, ids if words is None else words[ids]


def _first(drawn: Tensor, ids: Tensor) -> Tensor:
    """`_sampled_first` on the device: ids [r, R] behind those that were drawn [r]."""
    every = torch.cat((drawn[:, None], ids), 1)
    again = every == drawn[:, None]
    again[:, 0] = False
    return every.gather(1, again.to(torch.int8).sort(dim=1, stable=True).indices[:, : ids.shape[1]])


def _ranked(logits: Tensor, ranks: int, words: Tensor | None, *, weighs: bool) -> list[Ranked] | None:
    """The `ranks` best of each row of logits [r, Vd], `words` [Vd] being their ids; None where those are not finite."""
    values, ids = _best(logits, ranks, words)
    if not bool(values.isfinite().all()):
        return None
    probabilities = [[]] * len(ids)
    if weighs:
        probabilities = (values.float() - logits.float().logsumexp(-1, keepdim=True)).exp().clamp(max=1.0).tolist()
    return [Ranked(*row) for row in zip(ids.tolist(), probabilities, strict=True)]


def _sampled_first(best: list[Ranked], drawn: Sequence[int]) -> list[Ranked]:
    """The same guesses behind those that were drawn with the noise that the target will draw with.

    At temperature 0 that is the best one, else the one that is most likely to be the target's draw too. The chances stay
    those of the ranks, which were known before.
    """
    pairs = zip(drawn, best, strict=True)
    return [
        Ranked([first, *(id for id in ids if id != first)][: len(ids)], probabilities)
        for first, (ids, probabilities) in pairs
    ]


def read_heads(files: HeadFiles, target: Target) -> DraftHeads:
    """All heads in the target's dtype, on its device. Raises ModelError if they do not fit it."""
    problem = files.misfit(target.info)
    if problem:
        raise ModelError(
            f"The {files.label} heads do not fit {target.info.name}: {problem}.", "Take heads made for it."
        )
    if isinstance(files, HydraFiles):
        return _hydra(files, target)
    assert isinstance(files, MedusaFiles)
    return _medusa(files, target)


def _medusa(files: MedusaFiles, target: Target) -> MedusaHeads:
    read = WeightReader(files.source, None, target, prefix="")
    output = _output(files, read) if files.tied else None
    heads = []
    for head in range(files.heads):
        layers = [_linear(read, f"{files.block(head, layer)}.linear") for layer in range(files.layers)]
        heads.append(Head(tuple(layers), output or _linear(read, files.out(head))))
    return MedusaHeads(target, heads, output)


def _output(files: MedusaFiles, read: WeightReader) -> Output:
    """The target's own output layer, or its rows of a reduced vocabulary."""
    words, target = files.words(), read.target
    if words is None:
        return Output(target.head)
    if len(words) < RANKS:
        raise ModelError(f"{files.where} knows {len(words)} words, and heads guess {RANKS} at a time.", AGAIN)
    words = words.to(target.device)
    return Output(read.own(target.rows(words)), words, files.told.optional_factor("final_logit_softcapping"))


def _hydra(files: HydraFiles, target: Target) -> HydraHeads:
    if files.offset > target.info.layers:
        raise ModelError(
            f"The Hydra heads want a state {files.offset} layers back, of {target.info.layers}.", "Correct it."
        )
    read, heads = WeightReader(files.source, None, target, prefix=""), []
    for head in range(files.heads):
        layers = [_linear(read, f"{files.block(head, layer)}.linear") for layer in range(files.layers)]
        shortcut = _linear(read, f"{files.block(head, 0)}.res_connection")
        heads.append(Head(tuple(layers), _linear(read, files.out(head)), shortcut))
    normed = _as_it_is if files.offset else target.norm
    new_state = partial(newest_alone, target, normed)
    if files.prefixed:
        new_state = partial(read_prefix(files, target, normed).new_state, target)
    return HydraHeads(target, heads, files.offset, new_state)


def newest_alone(target: Target, read: Callable[[Tensor], Tensor]) -> DraftState:
    """The state of heads that read the newest state of the target and nothing before it."""
    return DraftState(target, (), {}, lambda states: read(states[:, 0]))


def _as_it_is(state: Tensor) -> Tensor:
    return state


def _linear(read: WeightReader, name: str) -> Part:
    """A layer of the size that it is stored in, which the files have been checked for."""
    return read.linear(name, *read.files.shape(f"{name}.weight"), bias=read.has(f"{name}.bias"))
