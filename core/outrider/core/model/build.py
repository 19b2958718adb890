"""Reads the tensors of one checkpoint into the parts of a decoder: checks shapes, fuses, splits, reorders, adds one to norms.

What the file holds decides where forms differ: fused or separate projections, stacked or single experts.

Letters: `d` width, `H`, `K` query and key heads, `h` head size, `E` experts, `I` inner width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.formats.quantized import Grouped
from outrider.core.model.blocks.absent import NoChannel, NoMixer
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block, Channel, ExtraEmbedding, Mixer, ParallelExperts, PerLayer
from outrider.core.model.blocks.conv import ShortConv
from outrider.core.model.blocks.delta import DeltaNet
from outrider.core.model.blocks.latent import LatentAttention
from outrider.core.model.blocks.mamba import Mamba
from outrider.core.model.blocks.mlp import Dense, Experts, Router, Ungated
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.blocks.rope import order
from outrider.core.model.families.spec import (
    Absent,
    AttentionSpec,
    ConvSpec,
    DeltaSpec,
    DenseSpec,
    ExpertsSpec,
    LatentSpec,
    MambaSpec,
)
from outrider.core.model.kernels.linear import Linear, Table

from .reader import Reader


class Builder(Reader):
    """Makes the parts of a decoder."""

    # ------------------------------------------------------------------ ends

    def embedding(self) -> Table:
        """The token table [V, d]."""
        return self.table(f"{self.names.embedding}.weight", self.spec.width)

    def final_norm(self) -> Norm:
        """The norm before the head."""
        return self.norm(self.names.final, final=True)

    def head(self, embedding: Table) -> Linear:
        """The output projection: stored, or the token table where the file has none of its own.

        It decides between words, so it keeps 8 bits where 4 are asked for the rest.
        """
        shape, bits = (self.spec.vocab, self.spec.width), self.form.quantize and 8
        for name in ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"):
            if name in self.names_there:
                return self.layer(self.stored(name, *shape, bits))
        if not self.spec.tied:
            raise ModelError(
                f"{self.origin} has no lm_head.weight though its config says the head is not tied.",
                "Download the model again, whole.",
            )
        if isinstance(embedding.weight, Tensor) and not bits:  # one tensor for both, unless the device wants it packed
            layer = self.layer(embedding.weight)
            self.nbytes -= layer.nbytes if layer.weight is embedding.weight else 0
            return layer
        counted = self.parameters
        weight = self.stored(f"{self.prefix}{self.names.embedding}.weight", *shape, bits)
        self.parameters = counted
        return self.layer(weight)

    def extra_embedding(self) -> ExtraEmbedding | None:
        """Gemma 4 E sizes."""
        each = self.spec.per_layer_width
        if not each:
            return None
        whole = each * len(self.spec.layers)
        return ExtraEmbedding(
            self.table("embed_tokens_per_layer.weight", whole),
            self.linear("per_layer_model_projection", whole, self.spec.width),
            self.norm("per_layer_projection_norm", each),
        )

    # ------------------------------------------------------------------ blocks

    def block(self, index: int) -> Block:
        """Everything of one layer."""
        layer, names, at = self.spec.layers[index], self.names, f"layers.{index}."

        def norm(name: str, eps: float | None = None) -> Norm | None:
            return self.norm(at + name, None, eps) if name else None

        source = layer.mixer.source if isinstance(layer.mixer, AttentionSpec) else None
        unnormed = layer.mixer.reads > 0 if isinstance(layer.mixer, AttentionSpec) else isinstance(layer.mixer, Absent)
        block = Block(
            mixer=self._mixer(index, at),
            channel=self._channel(layer.channel, at),
            source=index if source is None else source,
            before_mixer=norm("" if unnormed else names.before_mixer),
            after_mixer=norm(names.after_mixer, self.spec.post_eps),
            before_channel=norm("" if isinstance(layer.channel, Absent) else names.before_channel),
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
        if isinstance(mixer, MambaSpec):
            return self._mamba(mixer, f"{at}{self.names.mamba}.")
        if isinstance(mixer, Absent):
            return NoMixer()
        return self._conv(mixer, f"{at}conv.")

    def _channel(self, channel: DenseSpec | ExpertsSpec | Absent, at: str) -> Channel:
        where = f"{at}{self.names.mlp}."
        if isinstance(channel, Absent):
            return NoChannel()
        if isinstance(channel, DenseSpec):
            return self._dense(channel, where)
        if channel.parallel is not None:
            return self._dense(channel.parallel, where)
        return self._experts(channel, where)

    # ------------------------------------------------------------------ token mixers

    def _attention(self, spec: AttentionSpec, at: str) -> Attention:
        h = spec.head_dim
        parts, biases = self._projections(spec, at)
        moved = order(spec.rope, h) if spec.rope is not None else None
        if moved is not None:
            for part in range(1 if spec.source is not None else 2):
                parts[part] = parts[part][_in_heads(moved, h, parts[part].shape[0])]
                if biases:
                    biases[part] = biases[part][_in_heads(moved, h, biases[part].shape[0])]
        mix = self.fused(parts, biases)
        attention = Attention(spec, mix, self._output(spec, at + self.names.output))
        if spec.qk_norm:
            attention.q_norm = self._head_norm(spec, at + self.names.q_norm, spec.heads, moved)
            if spec.source is None:
                attention.k_norm = self._head_norm(spec, at + self.names.k_norm, spec.kv_heads, moved)
        if spec.value_norm:
            attention.v_norm = self.plain_norm(h)
        if spec.sinks:
            attention.sinks = self.tensor(at + self.names.sinks, spec.heads)
        return attention

    def _projections(self, spec: AttentionSpec, at: str) -> tuple[list[Tensor | Grouped], list[Tensor]]:
        """Rows of queries, keys, values and gate, as far as this layer has them, and their biases."""
        h, d = spec.head_dim, spec.reads or self.spec.width
        q, kv = spec.heads * h, spec.kv_heads * h
        if self.has(at + "qkv_proj.weight"):
            biases = list(self.tensor(at + "qkv_proj.bias", q + 2 * kv).split([q, kv, kv])) if spec.bias else []
            return list(self.matrix(at + "qkv_proj.weight", q + 2 * kv, d).split([q, kv, kv])), biases
        gate: list[Tensor | Grouped] = []
        if spec.gate == "in_q":  # per head: queries, then gate
            both = self.matrix(at + "q_proj.weight", 2 * q, d)
            first = torch.arange(2 * q).view(spec.heads, 2, h)
            queries, gate = both[first[:, 0].flatten()], [both[first[:, 1].flatten()]]
        else:
            queries = self.matrix(at + "q_proj.weight", q, d)
            if spec.gate == "own":
                gate = [self.matrix(at + "gate_proj.weight", q, d)]
        biases = self._biases(spec, at) if spec.bias else []
        if spec.source is not None:
            return [queries], biases
        parts = [queries, self.matrix(at + "k_proj.weight", kv, d)]
        parts += [*([] if spec.value_is_key else [self._values(spec, at + "v_proj.weight")]), *gate]
        return parts, biases

    def _biases(self, spec: AttentionSpec, at: str) -> list[Tensor]:
        """Those of the parts of `_projections`, in their order."""
        h, q, kv = spec.head_dim, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        gate: list[Tensor] = []
        if spec.gate == "in_q":
            both = self.tensor(at + "q_proj.bias", 2 * q).view(spec.heads, 2, h)
            queries, gate = both[:, 0].flatten(), [both[:, 1].flatten()]
        else:
            queries = self.tensor(at + "q_proj.bias", q)
            if spec.gate == "own":  # the gate has none
                gate = [torch.zeros(q, dtype=queries.dtype, device=queries.device)]
        if spec.source is not None:
            return [queries]
        keys = self.tensor(at + "k_proj.bias", kv)
        if spec.value_is_key:
            return [queries, keys, *gate]
        size = spec.value_dim
        values = self.tensor(at + "v_proj.bias", spec.kv_heads * (size or h))
        if size is not None:
            values = F.pad(values.view(-1, size) * spec.value_scale, (0, h - size)).flatten()
        return [queries, keys, values, *gate]

    def _values(self, spec: AttentionSpec, name: str) -> Tensor | Grouped:
        """Rows of values; smaller heads are filled up with zeros to the size of keys, so that one state holds both."""
        h, d, size = spec.head_dim, spec.reads or self.spec.width, spec.value_dim
        if size is None:
            return self.matrix(name, spec.kv_heads * h, d)
        rows = self.matrix(name, spec.kv_heads * size, d, exact=True)
        assert isinstance(rows, Tensor)
        return F.pad(rows.view(-1, size, d) * spec.value_scale, (0, 0, 0, h - size)).flatten(0, 1)

    def _output(self, spec: AttentionSpec, name: str) -> Linear:
        """The projection of all heads, with zeros where `_values` filled up."""
        h, d, size = spec.head_dim, self.spec.width, spec.value_dim
        if size is None:
            return self.linear(name, d, spec.heads * h, spec.output_bias)
        columns = self.matrix(f"{name}.weight", d, spec.heads * size, exact=True)
        assert isinstance(columns, Tensor)
        return self.layer(F.pad(columns.view(d, -1, size), (0, h - size)).flatten(1))

    def _head_norm(self, spec: AttentionSpec, name: str, heads: int, moved: Tensor | None) -> Norm:
        if not spec.qk_norm_weight:
            return self.plain_norm(spec.head_dim)
        width = heads * spec.head_dim if spec.qk_norm == "whole" else spec.head_dim
        norm = self.norm(name, width)
        if moved is not None and norm.weight is not None:
            norm = Norm(width, norm.weight[_in_heads(moved, spec.head_dim, width)], norm.eps)
        return norm

    def _latent(self, spec: LatentSpec, at: str) -> LatentAttention:
        d, head = self.spec.width, spec.nope_dim + spec.rope_dim
        moved = order(spec.rope, spec.rope_dim)
        fan_in = spec.q_rank or d
        q_up = self.matrix(at + ("q_b_proj.weight" if spec.q_rank else "q_proj.weight"), spec.heads * head, fan_in)
        kv_down = self.matrix(at + "kv_a_proj_with_mqa.weight", spec.kv_rank + spec.rope_dim, d)
        kv_shift = self.tensor(at + "kv_a_proj_with_mqa.bias", spec.kv_rank + spec.rope_dim) if spec.bias else None
        if moved is not None:
            q_up = q_up[_in_heads(torch.cat((torch.arange(spec.nope_dim), spec.nope_dim + moved)), head, q_up.shape[0])]
            latents = torch.cat((torch.arange(spec.kv_rank), spec.kv_rank + moved))
            kv_down, kv_shift = kv_down[latents], None if kv_shift is None else kv_shift[latents]
        up = self.tensor(at + "kv_b_proj.weight", spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_rank)
        k_up, v_up = up.view(spec.heads, -1, spec.kv_rank).split([spec.nope_dim, spec.value_dim], 1)
        q_rank = spec.q_rank
        return LatentAttention(
            spec,
            q_down=self.linear(at + "q_a_proj", q_rank, d, spec.bias) if q_rank else None,
            q_norm=self.norm(at + "q_a_layernorm", q_rank, 1e-6) if q_rank else None,
            q_up=self.layer(q_up),
            kv_down=self.layer(kv_down, kv_shift),
            kv_norm=self.norm(at + "kv_a_layernorm", spec.kv_rank, 1e-6),
            k_up=k_up.contiguous(),
            v_up=v_up.transpose(1, 2).contiguous(),
            out=self.linear(at + "o_proj", d, spec.heads * spec.value_dim, spec.bias),
        )

    def _delta(self, spec: DeltaSpec, at: str) -> DeltaNet:
        d, nk, nv, dk, dv = self.spec.width, spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim
        r, channels = nv // nk, 2 * nk * dk + nv * dv
        if self.has(at + "in_proj_qkvz.weight"):  # grouped by key head: q, k, r values, r gates
            both = self.matrix(at + "in_proj_qkvz.weight", channels + nv * dv, d)
            rows = torch.arange(channels + nv * dv).view(nk, -1).split([dk, dk, r * dv, r * dv], 1)
            qkv, z = both[torch.cat([part.flatten() for part in rows[:3]])], both[rows[3].flatten()]
            ba = self.matrix(at + "in_proj_ba.weight", 2 * nv, d, exact=True)
            ba = ba[torch.arange(2 * nv).view(nk, 2, r).transpose(0, 1).flatten()]
        else:
            qkv = self.matrix(at + "in_proj_qkv.weight", channels, d)
            z = self.matrix(at + "in_proj_z.weight", nv * dv, d)
            parts = [self.matrix(f"{at}in_proj_{name}.weight", nv, d, exact=True) for name in ("b", "a")]
            ba = torch.cat([part for part in parts if isinstance(part, Tensor)])
        weight = self.tensor(at + "norm.weight", dv)  # this one is stored as it is used
        return DeltaNet(
            spec,
            qkv=self.layer(qkv),
            z=self.layer(z),
            ba=self.layer(ba),
            conv=self.tensor(at + "conv1d.weight", channels, 1, spec.kernel)[:, 0].contiguous(),
            a_log=self.tensor(at + "A_log", nv, exact=True),
            dt_bias=self.tensor(at + "dt_bias", nv, exact=True),
            norm=Norm(dv, weight, self.spec.eps),
            out=self.linear(at + "out_proj", d, nv * dv),
        )

    def _mamba(self, spec: MambaSpec, at: str) -> Mamba:
        d, inner, heads = self.spec.width, spec.heads * spec.head_dim, spec.heads
        channels = inner + 2 * spec.groups * spec.state
        return Mamba(
            spec,
            mix=self.linear(at + "in_proj", inner + channels + heads, d, spec.bias),
            conv=self.tensor(at + "conv1d.weight", channels, 1, spec.kernel)[:, 0].contiguous(),
            conv_bias=self.tensor(at + "conv1d.bias", channels) if spec.conv_bias else None,
            a_log=self.tensor(at + "A_log", heads, exact=True),
            dt_bias=self.tensor(at + "dt_bias", heads, exact=True),
            skip=self.tensor(at + "D", heads, exact=True),
            norm=self.tensor(at + "norm.weight", inner),
            eps=self.spec.eps,
            out=self.linear(at + "out_proj", d, inner, spec.bias),
        )

    def _conv(self, spec: ConvSpec, at: str) -> ShortConv:
        d = self.spec.width
        weight = self.tensor(at + "conv.weight", d, 1, spec.kernel)[:, 0].contiguous()
        return ShortConv(
            spec,
            mix=self.linear(at + "in_proj", 3 * d, d, spec.bias),
            conv=weight,
            out=self.linear(at + "out_proj", d, d, spec.bias),
            conv_bias=self.tensor(at + "conv.bias", d) if spec.bias else None,
        )

    # ------------------------------------------------------------------ channel mixers

    def _dense(self, spec: DenseSpec, at: str) -> Dense | Ungated:
        d, n, wide = self.spec.width, self.names, spec.width
        down = self.linear(at + n.down, d, wide, spec.bias)
        if spec.activation == "relu2":
            return Ungated(self.linear(at + n.up, wide, d, spec.bias), down)
        if self.has(f"{at}{n.gate_up}.weight"):
            gate_up = self.linear(at + n.gate_up, 2 * wide, d, spec.bias)
        else:
            halves = [self.matrix(f"{at}{name}.weight", wide, d) for name in (n.gate, n.up)]
            biases = [self.tensor(f"{at}{name}.bias", wide) for name in (n.gate, n.up)] if spec.bias else []
            gate_up = self.fused(halves, biases)
        return Dense(gate_up, down, spec.activation)

    def _experts(self, spec: ExpertsSpec, at: str) -> Experts:
        d = self.spec.width
        if self.has(at + "router.layer.weight"):
            return self._granite_experts(spec, at)
        name = "router" if self.has(at + "router.weight") else "gate"
        router = Router(spec, self.linear(at + name, spec.experts, d, spec.bias, exact=True))
        if self.has(at + "gate.e_score_correction_bias"):
            router.correction = self.tensor(at + "gate.e_score_correction_bias", spec.experts, exact=True)
        experts = Experts(router, self._each(spec, at + "experts."))
        if spec.shared:
            where = at + ("shared_expert." if spec.shared_gate else "shared_experts.")
            experts.shared = self._dense(DenseSpec(spec.shared, spec.activation, spec.shared_bias), where)
            if spec.shared_gate:
                experts.shared_gate = self.linear(at + "shared_expert_gate", 1, d, exact=True)
        return experts

    def _each(self, spec: ExpertsSpec, at: str) -> Sequence[Dense | Ungated]:
        """One MLP for each expert, from stacked tensors or single ones."""
        if not self.has(at + "gate_up_proj"):
            return [self._dense(DenseSpec(spec.width, spec.activation), f"{at}{e}.") for e in range(spec.experts)]
        d, wide, count, act = self.spec.width, spec.width, spec.experts, spec.activation
        if not spec.bias:
            return self._stacked(spec, at + "gate_up_proj", at + "down_proj")
        # gpt-oss: gate and up interleaved
        gate_up, down = (
            self.turned(at + "gate_up_proj", count, 2 * wide, d),
            self.turned(at + "down_proj", count, d, wide),
        )
        shift = self.tensor(at + "gate_up_proj_bias", count, 2 * wide)
        down_shift = self.tensor(at + "down_proj_bias", count, d)
        halves = torch.arange(2 * wide).view(wide, 2).T.reshape(-1)
        return [
            Dense(self.layer(g[halves], s[halves]), self.layer(w, t), act)
            for g, s, w, t in zip(gate_up, shift, down, down_shift, strict=True)
        ]

    def _stacked(self, spec: ExpertsSpec, gate_up: str, down: str) -> list[Dense]:
        d, wide, count, act = self.spec.width, spec.width, spec.experts, spec.activation
        uppers = self.matrix(gate_up, count * 2 * wide, d).split([2 * wide] * count)
        lowers = self.matrix(down, count * d, wide).split([d] * count)
        return [Dense(self.layer(g), self.layer(w), act) for g, w in zip(uppers, lowers, strict=True)]

    def _granite_experts(self, spec: ExpertsSpec, at: str) -> Experts:
        """Granite names them its own way; the shared branch is beside them."""
        router = Router(spec, self.linear(at + "router.layer", spec.experts, self.spec.width, exact=True))
        each = self._stacked(spec, at + "input_linear.weight", at + "output_linear.weight")
        beside = at.removesuffix("block_sparse_moe.") + "shared_mlp."
        return Experts(router, each, self._dense(DenseSpec(spec.shared, spec.activation), beside))

    def _beside(self, spec: ExpertsSpec, at: str) -> ParallelExperts:
        d = self.spec.width
        scale = self.tensor(at + "router.scale", d) * d**-0.5
        router = Router(
            spec, self.linear(at + "router.proj", spec.experts, d, exact=True), norm=Norm(d, scale, self.spec.eps)
        )
        router.per_expert = self.tensor(at + "router.per_expert_scale", spec.experts, exact=True)
        norms = [
            self.norm(at + name)
            for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1")
        ]
        return ParallelExperts(Experts(router, self._each(spec, at + "experts.")), *norms)

    def _per_layer(self, at: str) -> PerLayer:
        d, each = self.spec.width, self.spec.per_layer_width
        return PerLayer(
            self.linear(at + "per_layer_input_gate", each, d),
            self.linear(at + "per_layer_projection", d, each),
            self.norm(at + "post_per_layer_input_norm"),
        )


def _in_heads(moved: Tensor, head_dim: int, rows: int) -> Tensor:
    """Row indices that put the dims of every head into another order."""
    return (torch.arange(0, rows, head_dim)[:, None] + moved.cpu()).flatten()
