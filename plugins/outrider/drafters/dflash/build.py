"""From a checkpoint to the network and its heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.drafting import Target
from outrider.core.formats.checkpoint import Checkpoint
from outrider.core.formats.stored import words
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.families.spec import AttentionSpec, DenseSpec
from outrider.core.model.kernels.linear import Linear, Stacked, Table
from outrider.core.model.load import tables
from outrider.core.model.reader import Reader

from . import format
from .format import Plan
from .heads import Confidence, Markov, Selector
from .model import Conv, Layer, Network, stack


@dataclass(frozen=True, slots=True)
class Head:
    """An output layer of its own over a reduced vocabulary."""

    linear: Linear  # d -> Vd
    ids: Tensor  # [Vd] of the target
    scale: float
    cap: float | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """[n, d] -> [n, Vd]."""
        logits = self.linear(hidden) * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True, slots=True)
class Parts:
    """All that a checkpoint gives."""

    network: Network
    head: Head | None
    follower: Markov | Selector | None
    confidence: Confidence | None


@torch.inference_mode()
def build(checkpoint: Checkpoint, plan: Plan, target: Target, capacity: int) -> Parts:
    """Read every tensor. Raises ModelError, BrokenFileError."""
    return _Builder(checkpoint, plan, target).parts(capacity)


class _Builder:
    def __init__(self, checkpoint: Checkpoint, plan: Plan, target: Target) -> None:
        self.checkpoint, self.plan, self.target = checkpoint, plan, target
        self.read = Reader(checkpoint, plan.spec, target.beside)
        self.read.prefix = plan.prefix

    def parts(self, capacity: int) -> Parts:
        plan, target = self.plan, self.target
        d = plan.spec.width
        fc, fuse_norm = next(pair for pair in format.FUSED if self.read.has(pair[0]))
        layers = tuple(self._layer(index) for index in range(len(plan.sights)))
        ropes = tables(plan.spec, capacity, target.dtype, target.device)
        network = Network(
            plan=plan,
            fuse=self.read.linear(fc.removesuffix(".weight"), d, len(plan.states) * d),
            fuse_norm=self._norm(fuse_norm.removesuffix(".weight")),
            layers=layers,
            norm=self._norm("norm"),
            tables=ropes,
            stack=stack(layers, ropes, torch.empty(0, dtype=target.dtype, device=target.device)),
        )
        before = Table(self._tensor(format.W1, self._vocab, plan.markov), target.dtype) if plan.markov else None
        follower: Markov | Selector | None = self._selector() if plan.selector else None
        if before is not None:
            bias = self._tensor(format.W2, plan.reduced or self._vocab, plan.markov)
            follower = Markov(before, self.read.layer(bias))
        return Parts(network, self._head(), follower, self._confidence(before))

    @property
    def _vocab(self) -> int:
        return self.target.info.vocab

    def _tensor(self, names: tuple[str, ...], *shape: int) -> Tensor:
        return self.read.tensor(next((name for name in names if self.read.has(name)), names[0]), *shape)

    def _norm(self, name: str, width: int | None = None) -> Norm:
        norm = self.read.norm(name, width)
        assert norm is not None
        return norm

    # ------------------------------------------------------------------ layers

    def _layer(self, index: int) -> Layer:
        read, at = self.read, f"layers.{index}."
        layer = self.plan.spec.layers[index]
        mixer, channel = layer.mixer, layer.channel
        assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
        d, inner = self.plan.spec.width, channel.width
        attention, context = self._attention(mixer, at + "self_attn.")
        gate_up = [read.matrix(f"{at}mlp.{name}_proj.weight", inner, d) for name in ("gate", "up")]
        return Layer(
            sight=self.plan.sights[index],
            attention=attention,
            context=context,
            dense=Dense(read.fused(gate_up, []), read.linear(at + "mlp.down_proj", d, inner), channel.activation),
            before_attention=self._norm(at + "input_layernorm"),
            before_dense=self._norm(at + "post_attention_layernorm"),
            attention_conv=self._conv(at + "attention_conv."),
            dense_conv=self._conv(at + "mlp_conv."),
        )

    def _attention(self, spec: AttentionSpec, at: str) -> tuple[Attention, Linear]:
        """Queries apart from keys and values: context rows need only these."""
        read, d, h = self.read, self.plan.spec.width, spec.head_dim
        q, kv = spec.heads * h, spec.kv_heads * h
        queries = read.linear(at + "q_proj", q, d, spec.bias)
        biases = [read.tensor(f"{at}{name}_proj.bias", kv) for name in "kv"] if spec.bias else []
        context = read.fused([read.matrix(f"{at}{name}_proj.weight", kv, d) for name in "kv"], biases)
        attention = Attention(spec, Stacked([queries, context]), read.linear(at + "o_proj", d, q, spec.output_bias))
        if spec.qk_norm:
            attention.q_norm, attention.k_norm = self._norm(at + "q_norm", h), self._norm(at + "k_norm", h)
        return attention, context

    def _conv(self, at: str) -> Conv | None:
        plan = self.plan
        if not plan.taps:
            return None
        d = plan.spec.width
        base = self.read.tensor(at + "base_kernel", 2, plan.taps, d)
        return Conv(base, self.read.linear(at + "kernel_projection", 2 * plan.taps * (d // plan.group), d))

    # ------------------------------------------------------------------ heads

    def _head(self) -> Head | None:
        plan = self.plan
        if not plan.reduced:
            return None
        marks = self.checkpoint.load(plan.prefix + "t2d") if self.read.has("t2d") else None
        ids = words(self.checkpoint.load(plan.prefix + "d2t"), marks, self._vocab, plan.name)
        rows = self.read.own(self.target.rows(ids)) if plan.tied else None
        head = rows or self.read.linear("lm_head", plan.reduced, plan.spec.width)
        return Head(head, ids.to(self.target.device), plan.logit_scale, plan.logit_cap)

    def _selector(self) -> Selector:
        rank = self.plan.selector
        before, after = (self._tensor(names, self._vocab, rank) for names in (format.BEFORE, format.AFTER))
        query = self.read.linear(format.QUERY.removesuffix(".weight"), rank, self.plan.spec.width)
        return Selector(before, after, query, self.plan.candidates)

    def _confidence(self, before: Table | None) -> Confidence | None:
        plan = self.plan
        if not plan.sure:
            return None
        name = next(name for name in format.SURE if self.read.has(name))
        bias = name.replace(".weight", ".bias")
        shift = self.read.tensor(bias, 1) if self.read.has(bias) else None
        looks = before if plan.sure > plan.spec.width else None
        return Confidence(self.read.tensor(name, 1, plan.sure)[0], shift, looks)
