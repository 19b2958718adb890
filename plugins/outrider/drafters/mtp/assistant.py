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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import ChainSampler, Committed, Context, Draft, Needs, Shape, Target
from outrider.core.drafting.files import DraftConfig, DraftFiles
from outrider.core.drafting.layers import (
    BorrowedAttention,
    DraftLayers,
    Layout,
    Part,
    WeightReader,
    borrowing_spec,
    load_layers,
)

from .readings import ASSISTANT, choices_of

MOST = 8  # tokens of a draft
HEADS = 1 << 14  # of keys: no config has more
OTHER = "Take the assistant of this very model."
# what may be in the files unread: a copy of the table, and clusters that the config does not ask for
UNREAD = (
    "lm_head.weight",
    "rotary_emb.inv_freq",
    "masked_embedding.token_ordering",
    "masked_embedding.centroids.weight",
)


@dataclass(frozen=True, slots=True)
class Clusters:
    """A head that scores only the tokens of the best clusters; all others get one less than the worst of these."""

    centroids: Part  # h -> clusters
    members: Tensor  # [clusters, V / clusters] ids
    top: int
    vectors: Part  # [V, h]

    def __call__(self, x: Tensor) -> Tensor:
        """[1, h] -> [1, V]."""
        best = self.centroids(x)[0].topk(self.top).indices
        ids = self.members[best].flatten()
        scores = self.vectors(ids) @ x[0]
        return scores.new_full((1, self.members.numel()), float(scores.min()) - 1).index_copy_(1, ids, scores[None])


@dataclass(frozen=True, slots=True)
class Parts:
    """Weights of an assistant."""

    before: Part  # 2 d -> h
    layers: DraftLayers
    readings: tuple[BorrowedAttention, ...]  # of the layers
    norm: Part
    head: Part | Clusters
    after: Part  # h -> d


class Assistant:
    """Follows one conversation by the newest state alone."""

    def __init__(self, target: Target, parts: Parts, reading: str) -> None:
        self._target, self._parts, self._newest = target, parts, reading == "newest"
        self.needs = Needs(
            hidden=(target.info.layers,), kv=tuple(sorted({reading.source for reading in parts.readings}))
        )
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

    def _look(self) -> Layout:
        """Show every layer the target's rows; where the draft stands."""
        position = 0
        for reading in self._parts.readings:
            keys, values, length = self._target.kv(reading.source)
            first, stop = max(0, length - keys.shape[1]), length  # position of the first row held, and after the last
            position, window = length - 1, reading.spec.window
            start = max(first, stop - window) if window else first
            if self._newest:
                position += 1
                stop += self._refused if window else min(1, self._refused)
                start = max(first, stop - window - 1) if window else first
            reading.keys, reading.values = (part[:, start - first : stop - first] for part in (keys, values))
        return self._parts.layers.at(position, self._target)

    @torch.inference_mode()
    def _pass(self, token: int, state: Tensor, where: Layout) -> tuple[Tensor, Tensor]:
        """The token behind `token` as logits [V], and the next state [1, d]."""
        parts = self._parts
        embedded = self._target.embed(torch.tensor([token], device=state.device))
        x = parts.norm(parts.layers(parts.before(torch.cat((embedded, state), -1)), where, ()))
        logits, cap = parts.head(x)[0], parts.layers.spec.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap, parts.after(x)


def load(target: Target, files: DraftFiles, options: Mapping[str, object]) -> Assistant:
    """The assistant in a checkpoint; option `position` chooses the reading. Raises ModelError, BrokenFileError, UsageError."""
    return Assistant(target, _build(target, files), choices_of(options, ASSISTANT)["position"])


def decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the assistant's own decoder, whose layers all lack keys and values. Raises ModelError."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelError("The assistant's config has no text_config.", "Download it again, whole.")
    return {**config, "text_config": {**text, "num_kv_shared_layers": 0, **_unused(text)}}


def _unused(text: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to keys, which are the target's: any ropes and any number of heads will do."""
    ropes = text.get("rope_parameters")
    heads = text.get("num_key_value_heads")
    found: dict[str, Any] = {}
    if isinstance(ropes, Mapping) and any(isinstance(rope, Mapping) for rope in ropes.values()):
        found["rope_parameters"] = {"full_attention": {}, "sliding_attention": {}, **ropes}
    if type(heads) is int and 0 < heads <= HEADS:
        found["num_key_value_heads"] = None
    return found


@torch.inference_mode()
def _build(target: Target, files: DraftFiles) -> Parts:
    read = WeightReader(files, borrowing_spec(decoder(files.config)), target)
    wide, width, bits = target.info.width, read.spec.width, target.beside.quantize
    vectors, readings = read.embedding(), list[BorrowedAttention]()
    layers = load_layers(read, change=lambda _, block: readings.append(BorrowedAttention.of(block, target)))
    before = read.layer(read.stored("pre_projection.weight", width, 2 * wide, bits))
    after = read.layer(read.stored("post_projection.weight", wide, width, bits))
    head = _clusters(read, vectors) or read.head(vectors)
    parts = Parts(before, layers, tuple(readings), read.final_norm(), head, after)
    left = [name for name in read.unread if not name.endswith(UNREAD)]
    if left:
        raise ModelError(f"{files.name} holds {min(left)}, which no assistant of Gemma 4 has.", OTHER)
    return parts


def _clusters(read: WeightReader, vectors: Part) -> Clusters | None:
    """The head by clusters, where the config asks for it."""
    files, spec, name = read.files, read.spec, "masked_embedding.token_ordering"
    config = DraftConfig(files.config, f"{files.name}: the config", OTHER)
    if not config.flag("use_ordered_embeddings"):
        return None
    count, top = (config.integer(key) for key in ("num_centroids", "centroid_intermediate_top_k"))
    order = files.load(name).long() if name in files.holds else torch.empty(0, dtype=torch.int64)
    if top > count or spec.vocab % count or order.numel() != spec.vocab:
        raise ModelError(f"{files.name}: {name} does not fit {count} clusters of {spec.vocab} tokens.", OTHER)
    if not torch.equal(order.flatten().sort().values, torch.arange(spec.vocab)):
        raise ModelError(f"{files.name}: {name} does not name every token once.", "Download it again, whole.")
    rows = read.stored("masked_embedding.centroids.weight", count, spec.width, read.form.quantize)
    return Clusters(read.layer(rows), order.view(count, -1).to(read.form.device), top, vectors)
