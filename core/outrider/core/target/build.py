"""Reads the tensors of one checkpoint into the parts of a decoder: checks shapes, fuses, splits, reorders, adds one to norms.

What the file holds decides where forms differ: fused or separate projections, stacked or single experts.

Letters: `d` width, `H`, `K` query and key heads, `h` head size, `E` experts, `I` inner width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.core.errors import ModelError

from .attention import Attention
from .conv import ShortConv
from .decoder import Beside, Block, ExtraEmbedding, Mixer, PerLayer
from .delta import DeltaNet
from .latent import LatentAttention
from .linear import Linear, packs
from .mlp import ACTIVATIONS, Dense, Experts, Router
from .norm import Norm
from .rope import order
from .spec import AttentionSpec, ConvSpec, DeltaSpec, DenseSpec, ExpertsSpec, LatentSpec, TargetSpec

if TYPE_CHECKING:
    from outrider.core.weights.checkpoint import Checkpoint

PREFIXES = ("model.language_model.", "language_model.model.", "backbone.", "model.")


class Builder:
    """Makes parts of a decoder in one dtype on one device; `nbytes` counts what was read."""

    def __init__(self, checkpoint: Checkpoint, spec: TargetSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec, self.names = spec, spec.names
        self._checkpoint, self._dtype, self._device = checkpoint, dtype, device
        self._exact = torch.float64 if dtype == torch.float64 else torch.float32
        self._all = frozenset(checkpoint.names())
        self._prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in self._all)), "model.")
        self.nbytes = 0

    # ------------------------------------------------------------------ tensors

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name below the model's prefix."""
        return self._prefix + name in self._all

    def tensor(self, name: str, *shape: int, exact: bool = False) -> Tensor:
        """A tensor of that shape. Raises ModelError if it is missing or has another."""
        return self._read(self._prefix + name, shape, exact)

    def _read(self, name: str, shape: tuple[int, ...], exact: bool = False) -> Tensor:
        if name not in self._all:
            raise ModelError(f"{self._checkpoint.path.name} has no tensor {name}.", "Download the model again, whole.")
        tensor = self._checkpoint.load(name, self._exact if exact else self._dtype)
        if tuple(tensor.shape) != shape:
            found, told = ("x".join(map(str, some)) for some in (tensor.shape, shape))
            raise ModelError(
                f"{self._checkpoint.path.name}: {name} is {found}, the config says {told}.",
                "The config belongs to another model; download both again.",
            )
        self.nbytes += tensor.nbytes
        return tensor.to(self._device)

    def _linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return Linear(weight.contiguous(), bias, pack=packs(self._dtype, self._device))

    def linear(self, name: str, rows: int, columns: int, bias: bool = False) -> Linear:
        """One stored projection."""
        shift = self.tensor(f"{name}.bias", rows) if bias else None
        return self._linear(self.tensor(f"{name}.weight", rows, columns), shift)

    def norm(
        self, name: str, width: int | None = None, eps: float | None = None, *, final: bool = False
    ) -> Norm | None:
        """A norm, None for an empty name."""
        if not name:
            return None
        plus = self.spec.norm_plus_one
        if final and self.spec.final_plus_one is not None:
            plus = self.spec.final_plus_one
        weight = self.tensor(f"{name}.weight", width or self.spec.width, exact=plus)
        if plus:
            weight = (weight + 1).to(self._dtype)
        return Norm(width or self.spec.width, weight, eps or self.spec.eps, centred=self.spec.centred)

    def plain_norm(self, width: int | None = None) -> Norm:
        """A norm without weight."""
        return Norm(width or self.spec.width, None, self.spec.eps)

    # ------------------------------------------------------------------ ends

    def embedding(self) -> Tensor:
        """The token table [V, d]."""
        return self.tensor("embed_tokens.weight", self.spec.vocab, self.spec.width)

    def final_norm(self) -> Norm:
        """The norm before the head."""
        norm = self.norm(self.names.final, final=True)
        assert norm is not None
        return norm

    def head(self, embedding: Tensor) -> Linear:
        """The output projection: stored, or the token table where the file has none of its own."""
        for name in ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"):
            if name in self._all:
                return self._linear(self._read(name, (self.spec.vocab, self.spec.width)))
        if not self.spec.tied:
            raise ModelError(
                f"{self._checkpoint.path.name} has no lm_head.weight though its config says the head is not tied.",
                "Download the model again, whole.",
            )
        return self._linear(embedding)

    def extra_embedding(self) -> ExtraEmbedding | None:
        """Gemma 4 E sizes."""
        each = self.spec.per_layer_width
        if not each:
            return None
        whole = each * len(self.spec.layers)
        norm = self.norm("per_layer_projection_norm", each)
        assert norm is not None
        return ExtraEmbedding(
            self.tensor("embed_tokens_per_layer.weight", self.spec.vocab, whole),
            self.linear("per_layer_model_projection", whole, self.spec.width),
            norm,
        )

    # ------------------------------------------------------------------ blocks

    def block(self, index: int) -> Block:
        """Everything of one layer."""
        layer, names, at = self.spec.layers[index], self.names, f"layers.{index}."

        def norm(name: str, eps: float | None = None) -> Norm | None:
            return self.norm(at + name if name else "", None, eps)

        source = layer.mixer.source if isinstance(layer.mixer, AttentionSpec) else None
        block = Block(
            mixer=self._mixer(index, at),
            channel=self._channel(layer.channel, at),
            source=index if source is None else source,
            before_mixer=norm(names.before_mixer),
            after_mixer=norm(names.after_mixer, self.spec.post_eps),
            before_channel=norm(names.before_channel),
            after_channel=norm(names.after_channel, self.spec.post_eps),
        )
        if isinstance(layer.channel, ExpertsSpec) and layer.channel.parallel is not None:
            block.beside = self._beside(layer.channel, at)
        if self.spec.per_layer_width:
            block.per_layer = self._per_layer(at)
        if self.spec.layer_scalar:
            block.scalar = self.tensor(at + "layer_scalar", 1)[0]
        return block

    def _mixer(self, index: int, at: str) -> Mixer:
        mixer = self.spec.layers[index].mixer
        if isinstance(mixer, AttentionSpec):
            return self._attention(mixer, f"{at}{self.names.attention}.")
        if isinstance(mixer, LatentSpec):
            return self._latent(mixer, f"{at}{self.names.attention}.")
        if isinstance(mixer, DeltaSpec):
            return self._delta(mixer, f"{at}linear_attn.")
        return self._conv(mixer, f"{at}conv.")

    def _channel(self, channel: DenseSpec | ExpertsSpec, at: str) -> Dense | Experts:
        where = f"{at}{self.names.mlp}."
        if isinstance(channel, DenseSpec):
            return self._dense(channel, where)
        if channel.parallel is not None:
            return self._dense(channel.parallel, where)
        return self._experts(channel, where)

    # ------------------------------------------------------------------ token mixers

    def _attention(self, spec: AttentionSpec, at: str) -> Attention:
        h, d = spec.head_dim, self.spec.width
        parts, biases = self._projections(spec, at)
        moved = order(spec.rope, h) if spec.rope is not None else None
        if moved is not None:
            for part in range(1 if spec.source is not None else 2):
                parts[part] = _reordered(parts[part], h, moved)
                if biases:
                    biases[part] = _reordered(biases[part], h, moved)
        mix = self._linear(torch.cat(parts), torch.cat(biases) if biases else None)
        attention = Attention(spec, mix, self.linear(at + self.names.output, d, spec.heads * h, spec.output_bias))
        if spec.qk_norm:
            attention.q_norm = self._head_norm(spec, at + self.names.q_norm, spec.heads, moved)
            if spec.source is None:
                attention.k_norm = self._head_norm(spec, at + self.names.k_norm, spec.kv_heads, moved)
        if spec.value_norm:
            attention.v_norm = self.plain_norm(h)
        if spec.sinks:
            attention.sinks = self.tensor(at + "sinks", spec.heads)
        return attention

    def _projections(self, spec: AttentionSpec, at: str) -> tuple[list[Tensor], list[Tensor]]:
        """Rows of queries, keys, values and gate, as far as this layer has them, and their biases."""
        h, d = spec.head_dim, self.spec.width
        q, kv = spec.heads * h, spec.kv_heads * h
        if self.has(at + "qkv_proj.weight"):
            return list(self.tensor(at + "qkv_proj.weight", q + 2 * kv, d).split([q, kv, kv])), []
        gate = []
        if spec.gate == "in_q":  # per head: queries, then gate
            both = self.tensor(at + "q_proj.weight", 2 * q, d).view(spec.heads, 2, h, d)
            queries, gate = both[:, 0].reshape(q, d), [both[:, 1].reshape(q, d)]
        else:
            queries = self.tensor(at + "q_proj.weight", q, d)
            if spec.gate == "own":
                gate = [self.tensor(at + "gate_proj.weight", q, d)]
        if spec.source is not None:
            return [queries], []
        names = ["k"] if spec.value_is_key else ["k", "v"]
        parts = [queries, *(self.tensor(f"{at}{name}_proj.weight", kv, d) for name in names), *gate]
        biases = []
        if spec.bias:
            biases = [self.tensor(f"{at}{name}_proj.bias", size) for name, size in (("q", q), ("k", kv), ("v", kv))]
        return parts, biases

    def _head_norm(self, spec: AttentionSpec, name: str, heads: int, moved: Tensor | None) -> Norm:
        if not spec.qk_norm_weight:
            return self.plain_norm(spec.head_dim)
        width = heads * spec.head_dim if spec.qk_norm == "whole" else spec.head_dim
        norm = self.norm(name, width)
        assert norm is not None and norm.weight is not None
        if moved is not None:
            norm = Norm(width, _reordered(norm.weight, spec.head_dim, moved), norm.eps)
        return norm

    def _latent(self, spec: LatentSpec, at: str) -> LatentAttention:
        d, head = self.spec.width, spec.nope_dim + spec.rope_dim
        moved = order(spec.rope, spec.rope_dim)
        fan_in = spec.q_rank or d
        q_up = self.tensor(at + ("q_b_proj.weight" if spec.q_rank else "q_proj.weight"), spec.heads * head, fan_in)
        kv_down = self.tensor(at + "kv_a_proj_with_mqa.weight", spec.kv_rank + spec.rope_dim, d)
        if moved is not None:
            q_up = q_up.view(spec.heads, head, fan_in).clone()
            q_up[:, spec.nope_dim :] = q_up[:, spec.nope_dim :][:, moved]
            q_up = q_up.view(-1, fan_in)
            kv_down = torch.cat((kv_down[: spec.kv_rank], kv_down[spec.kv_rank :][moved]))
        up = self.tensor(at + "kv_b_proj.weight", spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_rank)
        k_up, v_up = up.view(spec.heads, -1, spec.kv_rank).split([spec.nope_dim, spec.value_dim], 1)
        q_rank = spec.q_rank
        kv_norm = self.norm(at + "kv_a_layernorm", spec.kv_rank, 1e-6)
        assert kv_norm is not None
        return LatentAttention(
            spec,
            q_down=self.linear(at + "q_a_proj", q_rank, d, spec.bias) if q_rank else None,
            q_norm=self.norm(at + "q_a_layernorm", q_rank, 1e-6) if q_rank else None,
            q_up=self._linear(q_up),
            kv_down=self._linear(kv_down),
            kv_norm=kv_norm,
            k_up=k_up.contiguous(),
            v_up=v_up.transpose(1, 2).contiguous(),
            out=self.linear(at + "o_proj", d, spec.heads * spec.value_dim),
        )

    def _delta(self, spec: DeltaSpec, at: str) -> DeltaNet:
        d, nk, nv, dk, dv = self.spec.width, spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim
        r, channels = nv // nk, 2 * nk * dk + nv * dv
        if self.has(at + "in_proj_qkvz.weight"):  # grouped by key head: q, k, r values, r gates
            grouped = self.tensor(at + "in_proj_qkvz.weight", channels + nv * dv, d).view(nk, -1, d)
            q, k, v, z = (part.reshape(-1, d) for part in grouped.split([dk, dk, r * dv, r * dv], 1))
            b, a = (
                part.reshape(-1, d)
                for part in self.tensor(at + "in_proj_ba.weight", 2 * nv, d).view(nk, -1, d).split(r, 1)
            )
            qkv = torch.cat((q, k, v))
        else:
            qkv, z = (
                self.tensor(at + "in_proj_qkv.weight", channels, d),
                self.tensor(at + "in_proj_z.weight", nv * dv, d),
            )
            b, a = self.tensor(at + "in_proj_b.weight", nv, d), self.tensor(at + "in_proj_a.weight", nv, d)
        weight = self.tensor(at + "norm.weight", dv)  # this one is stored as it is used
        return DeltaNet(
            spec,
            qkv=self._linear(qkv),
            z=self._linear(z),
            ba=self._linear(torch.cat((b, a))),
            conv=self.tensor(at + "conv1d.weight", channels, 1, spec.kernel)[:, 0].contiguous(),
            a_log=self.tensor(at + "A_log", nv, exact=True),
            dt_bias=self.tensor(at + "dt_bias", nv, exact=True),
            norm=Norm(dv, weight, self.spec.eps),
            out=self.linear(at + "out_proj", d, nv * dv),
        )

    def _conv(self, spec: ConvSpec, at: str) -> ShortConv:
        d = self.spec.width
        weight = self.tensor(at + "conv.weight", d, 1, spec.kernel)[:, 0].contiguous()
        return ShortConv(spec, self.linear(at + "in_proj", 3 * d, d), weight, self.linear(at + "out_proj", d, d))

    # ------------------------------------------------------------------ channel mixers

    def _dense(self, spec: DenseSpec, at: str) -> Dense:
        d, n, wide = self.spec.width, self.names, spec.width
        if self.has(at + "gate_up_proj.weight"):
            weight, bias = self.tensor(at + "gate_up_proj.weight", 2 * wide, d), None
        else:
            weight = torch.cat([self.tensor(f"{at}{name}.weight", wide, d) for name in (n.gate, n.up)])
            bias = torch.cat([self.tensor(f"{at}{name}.bias", wide) for name in (n.gate, n.up)]) if spec.bias else None
        down = self.linear(at + n.down, d, wide, spec.bias)
        return Dense(self._linear(weight, bias), down, ACTIVATIONS[spec.activation])

    def _experts(self, spec: ExpertsSpec, at: str) -> Experts:
        d = self.spec.width
        name = "router" if self.has(at + "router.weight") else "gate"
        router = Router(spec, self.linear(at + name, spec.experts, d, spec.bias))
        if self.has(at + "gate.e_score_correction_bias"):
            router.correction = self.tensor(at + "gate.e_score_correction_bias", spec.experts, exact=True)
        experts = Experts(router, self._each(spec, at + "experts."))
        if spec.shared:
            where = at + ("shared_expert." if spec.shared_gate else "shared_experts.")
            experts.shared = self._dense(DenseSpec(spec.shared, spec.activation), where)
            if spec.shared_gate:
                experts.shared_gate = self.linear(at + "shared_expert_gate", 1, d)
        return experts

    def _each(self, spec: ExpertsSpec, at: str) -> list[Dense]:
        """One MLP for each expert, from stacked tensors or single ones."""
        if not self.has(at + "gate_up_proj"):
            return [self._dense(DenseSpec(spec.width, spec.activation), f"{at}{e}.") for e in range(spec.experts)]
        d, wide, act = self.spec.width, spec.width, ACTIVATIONS[spec.activation]
        if not spec.bias:
            gate_up = self.tensor(at + "gate_up_proj", spec.experts, 2 * wide, d)
            down = self.tensor(at + "down_proj", spec.experts, d, wide)
            return [Dense(self._linear(g), self._linear(w), act) for g, w in zip(gate_up, down, strict=True)]
        # gpt-oss: stored [in, out], gate and up interleaved
        gate_up = self.tensor(at + "gate_up_proj", spec.experts, d, 2 * wide).transpose(1, 2)
        down = self.tensor(at + "down_proj", spec.experts, wide, d).transpose(1, 2)
        shift = self.tensor(at + "gate_up_proj_bias", spec.experts, 2 * wide)
        down_shift = self.tensor(at + "down_proj_bias", spec.experts, d)
        halves = torch.arange(2 * wide).view(wide, 2).T.reshape(-1)
        return [
            Dense(self._linear(g[halves], s[halves]), self._linear(w, t), act)
            for g, s, w, t in zip(gate_up, shift, down, down_shift, strict=True)
        ]

    def _beside(self, spec: ExpertsSpec, at: str) -> Beside:
        d = self.spec.width
        scale = self.tensor(at + "router.scale", d) * d**-0.5
        router = Router(spec, self.linear(at + "router.proj", spec.experts, d), norm=Norm(d, scale, self.spec.eps))
        router.per_expert = self.tensor(at + "router.per_expert_scale", spec.experts, exact=True)
        norms = [
            self.norm(at + name)
            for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1")
        ]
        before, after, after_dense = (norm for norm in norms if norm is not None)
        return Beside(Experts(router, self._each(spec, at + "experts.")), before, after, after_dense)

    def _per_layer(self, at: str) -> PerLayer:
        d, each = self.spec.width, self.spec.per_layer_width
        norm = self.norm(at + "post_per_layer_input_norm")
        assert norm is not None
        return PerLayer(
            self.linear(at + "per_layer_input_gate", each, d), self.linear(at + "per_layer_projection", d, each), norm
        )


def _reordered(rows: Tensor, head_dim: int, moved: Tensor) -> Tensor:
    """[heads h, ...] with the dims of every head in another order."""
    return rows.view(-1, head_dim, *rows.shape[1:])[:, moved].reshape(rows.shape)
