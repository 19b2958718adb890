"""Gemma 4's assistants: a small model of queries alone, which reads the target's own keys and values.

Source: the published checkpoints google/gemma-4-*-it-assistant. Its input is the target's embedding of the last token beside a
state: the target's last normed one, then its own output, brought back to the target's width. It has no rows of its own, so
nothing is prefilled and nothing rolled back, and all tokens of a draft are made at one position.

Which position that is, is read in two ways. `last`, the default, takes that of the newest token with a state, and keys and
values up to it (as vLLM and SGLang do). `newest` takes that of the newest token (as transformers does), one further, with what
the last pass left: one row of a refused token on full layers; those of all on sliding ones, and one row more than the window.

Letters: `h` head size, `H`, `K` query and key heads, `C` rows read, `d` width of the target, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import ChainSampler, Committed, Context, Draft, Needs, Shape, Target
from outrider.core.formats.config import ConfigReader
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.blocks.rope import rotate_
from outrider.core.model.build import Builder
from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, CacheConfig, State
from outrider.core.model.families import read_spec
from outrider.core.model.families.common import HEADS, PLAIN
from outrider.core.model.families.spec import AttentionSpec, LayerSpec, TargetSpec
from outrider.core.model.kernels.linear import Linear, Table
from outrider.core.model.load import tables

from .readings import ASSISTANT, told

if TYPE_CHECKING:
    from outrider.core.formats.checkpoint import Checkpoint

MOST = 8  # tokens of a draft
OTHER = "Take the assistant of this very model."
# what may lie in the files unread: a copy of the table, and clusters that the config does not ask for
UNREAD = (
    "lm_head.weight",
    "rotary_emb.inv_freq",
    "masked_embedding.token_ordering",
    "masked_embedding.centroids.weight",
)


class Reading:
    """Attention of one row over keys and values that somebody else wrote."""

    def __init__(self, attention: Attention, source: int) -> None:
        self.spec, self.source = attention.spec, source
        self._q, self._q_norm, self._out = attention.mix, attention.q_norm, attention.out
        self.keys = self.values = torch.empty(0)  # [K, C, h]

    def new_state(self, room: CacheConfig) -> State | None:
        """None: it keeps nothing."""
        return None

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[1, d] -> [1, d], plus the residual if there is one."""
        spec, kv_heads = self.spec, self.keys.shape[0]
        q = self._q(x).view(1, spec.heads, spec.head_dim)
        if self._q_norm is not None:
            q = self._q_norm(q)
        if spec.rope is not None:
            rotate_(q, *where.rope(spec.rope, spec.head_dim))
        q = q.view(1, kv_heads, -1, spec.head_dim)  # a group's queries are its rows
        y = F.scaled_dot_product_attention(q, self.keys[None], self.values[None], scale=spec.scale)
        y = self._out(y.reshape(1, -1))
        return y if residual is None else residual + y


@dataclass(frozen=True, slots=True)
class Clusters:
    """A head that scores only the tokens of the best clusters; all others get one less than the worst of these."""

    centroids: Linear  # h -> clusters
    members: Tensor  # [clusters, V / clusters] ids
    top: int
    vectors: Table  # [V, h]

    def __call__(self, x: Tensor) -> Tensor:
        """[1, h] -> [1, V]."""
        best = self.centroids(x)[0].topk(self.top).indices
        ids = self.members[best].flatten()
        scores = self.vectors(ids) @ x[0]
        return scores.new_full((1, self.members.numel()), float(scores.min()) - 1).index_copy_(1, ids, scores[None])


@dataclass(frozen=True, slots=True)
class Parts:
    """Weights of an assistant."""

    spec: TargetSpec
    before: Linear  # 2 d -> h
    blocks: tuple[tuple[Block, Reading], ...]
    norm: Norm
    head: Linear | Clusters
    after: Linear  # h -> d
    tables: Tables


class Assistant:
    """Follows one conversation by the newest state alone."""

    def __init__(self, target: Target, parts: Parts, reading: str) -> None:
        self._target, self._parts, self._newest = target, parts, reading == "newest"
        self.needs = Needs(hidden=(target.info.layers,), kv=tuple(sorted({r.source for _, r in parts.blocks})))
        self.shape = Shape(nodes=MOST, depth=MOST)
        self.reset()

    def reset(self) -> None:
        """Forget the state."""
        self._state: Tensor | None = None  # [1, d], which produced the newest token
        self._known = 0
        self._proposed = 0
        self._refused = 0  # rows behind the true ones that refused tokens of the last draft left

    def advance(self, step: Committed) -> None:
        """Keep the state that produced the newest token."""
        self._known = step.start + step.tokens.shape[0]
        self._refused = self._proposed - step.path.shape[0]
        self._proposed = 0
        told = step.hidden is not None and step.hidden.shape[0] > 0
        self._state = self._target.norm(step.hidden[-1:, 0]) if told and step.hidden is not None else None

    def rewind(self, length: int) -> None:
        """The state belongs to a token that is cut."""
        if length < self._known:
            self.reset()

    def fork(self) -> Assistant:
        """Same weights, the same newest state."""
        other = Assistant(self._target, self._parts, "newest" if self._newest else "last")
        other._state, other._known = self._state, self._known
        return other

    def close(self) -> None:
        """Let go of the state; the weights go with the last reference."""
        self.reset()

    def propose(self, context: Context) -> Draft | None:
        """A chain of up to `context.nodes` tokens, with `probs` [n, V] if they are wanted; None while no state is known."""
        count = min(context.nodes, MOST)
        if self._state is None:
            return None
        where = self._look()
        picks = ChainSampler(context, count, weighs=self._target.graphs is None)
        logits, state = self._pass(context.tokens[-1], self._state, where)
        while picks.add(logits):
            logits, state = self._pass(picks.path[-1], state, where)
        self._proposed = len(picks.path)
        return picks.draft()

    def _look(self) -> PassLayout:
        """Show every layer the target's rows; where the draft stands."""
        position = 0
        for _, reading in self._parts.blocks:
            keys, values, length = self._target.kv(reading.source)
            first, stop = max(0, length - keys.shape[1]), length  # position of the first row held, and behind the last
            position, window = length - 1, reading.spec.window
            start = max(first, stop - window) if window else first
            if self._newest:
                position += 1
                stop += self._refused if window else min(1, self._refused)
                start = max(first, stop - window - 1) if window else first
            reading.keys, reading.values = (part[:, start - first : stop - first] for part in (keys, values))
        return PassLayout(position, 1, self._parts.tables, self._target.dtype, self._target.device)

    @torch.inference_mode()
    def _pass(self, token: int, state: Tensor, where: PassLayout) -> tuple[Tensor, Tensor]:
        """The token behind `token` as logits [V], and the next state [1, d]."""
        parts = self._parts
        embedded = self._target.embed(torch.tensor([token], device=state.device))
        x = parts.before(torch.cat((embedded, state), -1))
        for block, _ in parts.blocks:
            x = block.run(x, where, None, parts.spec)
            x = x if block.scalar is None else x * block.scalar
        x = parts.norm(x)
        logits, cap = parts.head(x)[0], parts.spec.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap, parts.after(x)


def load(target: Target, checkpoint: Checkpoint, options: Mapping[str, object]) -> Assistant:
    """The assistant in a checkpoint; option `position` chooses the reading. Raises ModelError, BrokenFileError, UsageError."""
    return Assistant(target, _build(target, checkpoint), told(options, ASSISTANT)["position"])


def spec_of(config: Mapping[str, Any]) -> TargetSpec:
    """The assistant's own decoder, whose layers all lack keys and values. Raises ModelError."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelError("The assistant's config has no text_config.", "Download it again, whole.")
    own = {**text, "num_kv_shared_layers": 0, **_unused(text)}
    spec = read_spec({**config, "text_config": own})
    layers = []
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.mixer, AttentionSpec)
        layers.append(LayerSpec(replace(layer.mixer, source=index), layer.channel))
    return replace(spec, layers=tuple(layers))


def _unused(text: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to keys, which are the target's: any ropes and any number of heads will do."""
    ropes = text.get("rope_parameters")
    heads = text.get("num_key_value_heads")
    found: dict[str, Any] = {}
    if isinstance(ropes, Mapping) and any(isinstance(rope, Mapping) for rope in ropes.values()):
        found["rope_parameters"] = {**{kind: {} for kind in PLAIN}, **ropes}
    if type(heads) is int and 0 < heads <= HEADS:
        found["num_key_value_heads"] = None
    return found


def _source(target: TargetSpec, mixer: AttentionSpec) -> int:
    """The last layer of the target, of the same kind and size, that has keys and values of its own."""
    found = [
        index
        for index, layer in enumerate(target.layers)
        if isinstance(layer.mixer, AttentionSpec)
        and layer.mixer.source is None
        and (layer.mixer.window, layer.mixer.head_dim) == (mixer.window, mixer.head_dim)
    ]
    if not found:
        kind = f"sliding layers of window {mixer.window}" if mixer.window else "full attention layers"
        raise ModelError(f"The target has no {kind} with heads of {mixer.head_dim} for this assistant to read.", OTHER)
    read = target.layers[found[-1]].mixer
    if isinstance(read, AttentionSpec) and mixer.heads % read.kv_heads:
        raise ModelError(f"{mixer.heads} heads cannot share the target's {read.kv_heads} heads of keys.", OTHER)
    return found[-1]


@torch.inference_mode()
def _build(target: Target, checkpoint: Checkpoint) -> Parts:
    spec, theirs = spec_of(checkpoint.config), read_spec(target.info.config)
    build = Builder(checkpoint, spec, target.beside)
    wide, width = target.info.width, spec.width
    vectors = build.embedding()
    blocks = []
    for index in range(len(spec.layers)):
        block = build.block(index)
        assert isinstance(block.mixer, Attention)
        reading = Reading(block.mixer, _source(theirs, block.mixer.spec))
        block.mixer = reading
        blocks.append((block, reading))
    bits = target.beside.quantize
    before = build.layer(build.stored("pre_projection.weight", width, 2 * wide, bits))
    after = build.layer(build.stored("post_projection.weight", wide, width, bits))
    head = _clusters(checkpoint, build, vectors) or build.head(vectors)
    made = tables(spec, target.context + MAX_DRAFT_ROWS, target.dtype, target.device)
    parts = Parts(spec, before, tuple(blocks), build.final_norm(), head, after, made)
    left = [name for name in build.unread if not name.endswith(UNREAD)]
    if left:
        raise ModelError(f"{build.origin} holds {min(left)}, which no assistant of Gemma 4 has.", OTHER)
    return parts


def _clusters(checkpoint: Checkpoint, build: Builder, vectors: Table) -> Clusters | None:
    """The head by clusters, where the config asks for it."""
    config, spec, name = checkpoint.config, build.spec, "masked_embedding.token_ordering"
    read = ConfigReader(config, f"{build.origin}: the config", OTHER)
    if not read.flag("use_ordered_embeddings"):
        return None
    count, top = (read.integer(key) for key in ("num_centroids", "centroid_intermediate_top_k"))
    order = checkpoint.load(name).long() if name in build.names_there else torch.empty(0, dtype=torch.int64)
    if top > count or spec.vocab % count or order.numel() != spec.vocab:
        raise ModelError(f"{build.origin}: {name} does not fit {count} clusters of {spec.vocab} tokens.", OTHER)
    if not torch.equal(order.flatten().sort().values, torch.arange(spec.vocab)):
        raise ModelError(f"{build.origin}: {name} does not name every token once.", "Download it again, whole.")
    rows = build.stored("masked_embedding.centroids.weight", count, spec.width, build.form.quantize)
    return Clusters(build.layer(rows), order.view(count, -1).to(build.form.device), top, vectors)
