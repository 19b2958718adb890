"""The contract between the engine and a drafting method. Importing this module loads no torch.

A *method* is what an entry point of the group `outrider.drafters` names; it says whether it fits a target and builds a
*drafter*, which follows one conversation and guesses tokens. The engine is lossless whatever a drafter proposes.

Letters: `n` draft nodes, `m` accepted nodes, `V` vocabulary of the target, `d` hidden size of the target.

Three rules carry everything:
- What `advance` did not name did not happen. Rollback is never signalled.
- `hidden[i]` is the target state that produced `tokens[i]`; states are numbered 0 (embedding output) to L (last residual).
- A draft without `probs` cannot change the law of the text. `probs` is honoured only from trusted drafters, and only when
  whether a node is kept depended on nothing but what was known before its token was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from outrider.core.base.model_info import ModelInfo
from outrider.core.sampling.draft_tree import DraftTree

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch import Tensor

    from outrider.core.model.capture import Capture
    from outrider.core.model.kernels.forms import WeightFormat

Result = TypeVar("Result")

API = 1  # contract version; a method with another `api` is listed as incompatible and not used


class Fit(IntEnum):
    """How well a method fits a target, in the order of automatic selection. Who drafts is then decided by measured rates."""

    NO = 0
    ANY = 1  # works with every model
    FAMILY = 2  # same tokenizer or architecture
    EXACT = 3  # trained for this checkpoint


@dataclass(frozen=True, slots=True)
class Match:
    """A method's answer to "do you fit this model?". `reason` is shown to the user as it is."""

    fit: Fit
    reason: str
    gain: float = 1.0
    """Tokens per target pass that the author expects, and shown as that. A guess: among methods of equal fit it decides which
    ones `auto` takes along; who drafts is decided by measured rates. Drafters trained here have a measured figure instead."""
    nbytes: int = 0  # extra device memory
    weights: str | None = None  # checkpoint needed; None = nothing to load
    ready: bool = True  # False: needs something first, as `reason` says


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter wants of the target, read once after loading."""

    hidden: tuple[int, ...] = ()  # numbers of the states to export
    early: int = 0  # may run the target's first `early` layers
    kv: tuple[int, ...] = ()  # layers whose K/V it reads
    choices: bool = False  # wants Committed.choices


@dataclass(frozen=True, slots=True)
class Shape:
    """Upper bounds of every draft."""

    nodes: int
    depth: int
    parents: tuple[int, ...] | None = None  # fixed topology


Draft = DraftTree
"""What `propose` gives: a chain or tree of guesses under the last committed token. The engine hands it on unchanged."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became true. At prefill `tokens` is a run of the prompt (and, last, the first sampled token)."""

    start: int  # position of tokens[0] in the conversation
    tokens: Tensor  # [m + 1] accepted tokens, then the target's own
    path: Tensor  # [m] accepted node indices of the last draft; empty at prefill
    hidden: Tensor | None = None  # [<= m + 1, states asked for, d], aligned at the end
    choices: Tensor | None = (
        None  # [1 + n] the target's choice at the root and at every node of the last draft; -1: unseen
    )


class Stream(Protocol):
    """Private noise of one position, of the key `draft`.

    It is the same noise at every call: drawing anew without the ids drawn before gives siblings without replacement.
    """

    def draw(self, probs: Tensor) -> int:
        """One id drawn from `probs` [V]."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """Read-only view for one proposal."""

    tokens: Sequence[int]  # all committed tokens; the last is the root
    nodes: int  # this round's budget, at least 1
    probs: bool  # probs are wanted: the rule is rejection and the drafter is trusted
    sample: Callable[[Tensor, int, Sequence[int]], Tensor]
    """`sample(logits [r, V], position, path) -> ids [r]`: the engine's processors, distribution and target noise.
    Row i is drawn for `position + i` after the draft tokens `path` and the draws of the rows before it."""
    to_probs: Callable[[Tensor, Sequence[int]], Tensor]
    """`to_probs(logits [V], path) -> [V]` float64: the engine's own distribution after `path` (a one-hot at temperature 0)."""
    rng: Callable[[int], Stream]
    """`rng(position)`: the private `draft` stream; every draw whose `probs` are returned comes from it."""
    worth_drafting: Callable[[int, float], bool] | None = None
    """`worth_drafting(depth, confidence)`: whether a token at that depth (from 0) is worth drafting where its confidence is
    that; None: always. A drafter that makes one token after another asks before it draws each one, and ends its draft at the
    first no: what it decides by was known before, so that the draft keeps its `probs`."""
    worth_extending: Callable[[int], bool] | None = None
    """`worth_extending(depth)`: whether it is worth the time to find out what a token at that depth would be, the previous one
    it having been drawn; None: always. Only for a drafter that asks `worth_drafting` too."""


Choose = Callable[["Tensor", "Tensor | int"], "Tensor"]


@dataclass(slots=True)
class InFlight:
    """A round that was launched and has not been read: of its `W` rows the first `count` will have become true."""

    start: int  # position of tokens[0] in the conversation
    tokens: Tensor  # [W] int64
    count: Tensor  # [1]
    hidden: Tensor | None  # [W, states asked for, d], each the state that produced its token
    taken: int = 0  # once it was read: `count`; 0 before that, and where it did not happen


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """What a proposal on the device is made from."""

    tokens: Sequence[int]  # all that are known to the host
    nodes: int  # this round's budget, at least 1
    in_flight: InFlight | None  # None: all is known
    choose: Choose
    """`choose(logits [r, V], depths [r] or int) -> ids [r]`: as `Context.sample`, for guesses at these depths (from 0). It
    reads no value and may be part of what is captured, one graph for each `key`. -1 where a row is no numbers."""
    key: Hashable


class Target(Protocol):
    """All that a drafter may touch of the target."""

    info: ModelInfo
    context: int  # tokens the session is opened with; a pass may reach 64 beyond
    dtype: torch.dtype
    device: torch.device

    @property
    def form(self) -> WeightFormat:
        """How its matrices are kept; for layers that belong to it and are to be kept alike."""
        ...

    @property
    def beside(self) -> WeightFormat:
        """How a drafter keeps matrices of its own: rounded where the target's are, since a draft has to cost little of a pass."""
        ...

    @property
    def trees(self) -> bool:
        """Whether a pass may verify a tree; else only the line of its first children is verified."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] with the target's own embedding scale."""
        ...

    def embed_raw(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] rows of the embedding table as they are."""
        ...

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm alone."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[n, d] -> [n, V]: output projection with the target's cap and multiplier, without norm."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """[n] -> [n, d] rows of the output layer that `head` multiplies by, its multiplier included and its cap not."""
        ...

    def early(self, ids: Tensor, start: int, layers: int) -> Tensor:
        """Residual [n, d] after the first `layers` layers for `ids` at `start`; writes their K/V as scratch.

        On a CPU a pass that then verifies these very tokens, one call's behind the other's from the root on, goes on from here:
        the first layers run for no token but its last one. On a GPU it runs all layers, where rows cost next to nothing.
        """
        ...

    def kv(self, layer: int) -> tuple[Tensor, Tensor, int]:
        """Keys and values [H, rows, d_head] of a layer, row i of position max(0, length - rows) + i, and the committed length.

        Read-only. A sliding layer may give no more than its window.
        """
        ...

    @property
    def graphs(self) -> Capture | None:
        """What records work of fixed shape where that pays, on a GPU; None where all runs as it is."""
        ...

    def capture(self, function: Callable[..., Result], *examples: Tensor) -> Callable[..., Result]:
        """A CUDA graph of `function` on a GPU, the function itself elsewhere; what it gives is good until the next call.

        It gives a tensor or several, asks the device for no value, and may be tried out: whatever else it writes is scratch.
        """
        ...


class Drafter(Protocol):
    """Loaded; follows one conversation. One that drafts on the device is a `DeviceDrafter` too.

    It may say `free = True`: what it proposes depends on the tokens alone and costs microseconds, and `propose` changes nothing
    of its state. The engine may then ask it at any time, and judge it by text that was verified anyway. And `block = True`: all
    tokens of a draft come from one pass, so that a longer draft costs it no more. And `line = n`: its drafts are chains of up to
    n tokens, and longer ones are trees.
    """

    needs: Needs
    shape: Shape

    def reset(self) -> None:
        """Forget the conversation."""
        ...

    def advance(self, step: Committed) -> None:
        """Hear what became true."""
        ...

    def propose(self, context: Context) -> Draft | None:
        """Guess at most `context.nodes` nodes, or None."""
        ...

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        ...

    def fork(self) -> Drafter:
        """Same weights, own state: a copy that follows another continuation."""
        ...

    def close(self) -> None:
        """Free what was loaded."""
        ...


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter that can also draft without the host reading a value, so that a round may start before the last one is read.

    It says `device = True`. What it gets by `advance` is committed as ever; `context.in_flight` is what is not read yet.
    """

    device: bool

    def propose_device(self, context: DeviceContext) -> Draft | None:
        """At most `context.nodes` nodes as tensors on the device; None where it has to be asked by `propose` instead.

        The number of nodes depends on nothing that only the device knows. `parents` may be on the host where they are always the
        same. There are no `probs`. A chain ends before the first id below 0; -1 there says that a row was no numbers.
        """
        ...


class Method(Protocol):
    """What an entry point names: a class without arguments or an instance.

    One whose drafters are `free` where they are given no weights says `free = True` too.

    A method that takes weights may also have `check(model, weights) -> Match`: how well the weights at that path or of
    that name fit, from their config alone. Where the files leave open how they are to be read, it may have
    `readings(model, match) -> sequence of mappings`: options for `load`, one set for each reading, and first the one that
    `load` takes without options. `outrider drafters test` tries all of them and names the one that gets most accepted.

    One that has options says `options = {name: what it means}`: `outrider drafters show` lists them, and any other option is
    refused before anything is loaded. Without `options` a method gets whatever the user set.
    """

    api: int

    def matches(self, model: ModelInfo) -> Match:
        """Microseconds, no torch, no file. Any thread may ask, also while a drafter of the same method drafts; so of `check`."""
        ...

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Drafter:
        """Build a drafter. `options`: `weights` (path or None) and what the user set for this method."""
        ...


class Stateless:
    """Convenience for drafters that look only at `context.tokens`: write `propose` and set `shape`."""

    needs = Needs()
    shape = Shape(nodes=1, depth=1)

    def reset(self) -> None:
        """Nothing to forget."""

    def advance(self, step: Committed) -> None:
        """Nothing to keep."""

    def propose(self, context: Context) -> Draft | None:
        """Nothing, until a subclass says otherwise."""
        return None

    def rewind(self, length: int) -> None:
        """Nothing to cut."""

    def fork(self) -> Self:
        """A drafter without state is its own copy."""
        return self

    def close(self) -> None:
        """Nothing to free."""
