"""What a decoder is, frozen: built once from a checkpoint's config by the reader of its family.

A decoder is a stack of blocks; a block has a token mixer (attention, latent attention, gated delta net, Mamba-2, short
convolution) and a channel mixer (dense or mixture of experts), or one of the two. Everything that differs between families is
a field here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh", "clamped", "relu2"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: `kind` as published under `rope_type`, `scaling` its other keys. Hashable, so layers can share it."""

    theta: float
    width: int  # rotated dims of a head
    kind: str = "default"
    scaling: tuple[tuple[str, Any], ...] = ()
    divisors: tuple[float, ...] | None = None  # [width / 2] factors of the inverse frequencies, as GGUF stores them
    interleaved: bool = False  # the file pairs (0, 1), (2, 3) …; rows are reordered at load

    @property
    def settings(self) -> dict[str, Any]:
        """`scaling` as a dict."""
        return dict(self.scaling)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec | None  # None: no position
    scale: float
    window: int = 0  # a token sees itself and window - 1 before it; 0 = all
    bias: bool = False  # on queries, keys and values
    output_bias: bool = False
    qk_norm: Literal["", "head", "whole"] = ""
    qk_norm_weight: bool = True
    qk_factor: float = 1.0  # on normed queries
    value_dim: int | None = None  # stored size of values where it is not that of keys; filled up at load
    value_scale: float = 1.0  # of values of such a size
    value_norm: bool = False  # weightless, over each head
    value_is_key: bool = False  # values are the raw key projection
    gate: Literal["", "in_q", "own"] = ""  # sigmoid gate on the output, from extra rows of q_proj or from gate_proj
    sinks: bool = False
    source: int | None = None  # uses the keys and values of that layer
    reads: int = 0  # columns of what it reads in place of the normed residual; 0: it reads that
    temperature: tuple[float, int] | None = None  # queries times 1 + beta ln(1 + floor(position / original))


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int | None
    rope: RopeSpec
    scale: float
    bias: bool = False  # on the output and on what makes latents


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """Gated delta net (arXiv 2412.06464)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """Mamba-2 (arXiv 2405.21060)."""

    heads: int
    head_dim: int
    groups: int  # that share keys and queries
    state: int  # size of keys and queries
    kernel: int
    conv_bias: bool = True
    bias: bool = False  # on both projections
    norm_groups: int = 1  # channels are normed in so many groups


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """Gated short convolution (LFM2)."""

    kernel: int
    bias: bool = False  # of the convolution and on both projections


@dataclass(frozen=True, slots=True)
class Absent:
    """A mixer that a block does not have."""


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """MLP, gated unless its activation is `relu2`."""

    width: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Mixture of experts: one router with four settings, and an optional branch that every token takes."""

    experts: int
    top: int
    width: int
    activation: Activation = "silu"
    score: Literal["softmax", "sigmoid", "after"] = "softmax"  # `after`: softmax over the chosen logits
    renormalise: bool = True
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    bias: bool = False  # router and experts have biases
    shared: int = 0  # width of the shared branch
    shared_bias: bool = False
    shared_gate: bool = False  # its output is weighted by a sigmoid
    parallel: DenseSpec | None = None  # Gemma 4: a dense MLP beside the experts, with norms of its own


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One block."""

    mixer: AttentionSpec | LatentSpec | DeltaSpec | MambaSpec | ConvSpec | Absent
    channel: DenseSpec | ExpertsSpec | Absent


@dataclass(frozen=True, slots=True)
class Names:
    """Where a family keeps its tensors, below `model.layers.N.`; an empty norm name means there is none."""

    before_mixer: str = "input_layernorm"
    after_mixer: str = ""
    before_channel: str = "post_attention_layernorm"
    after_channel: str = ""
    attention: str = "self_attn"
    mamba: str = "mamba"
    mlp: str = "mlp"
    output: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    sinks: str = "sinks"
    embedding: str = "embed_tokens"
    final: str = "norm"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "gate_up_proj"


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The whole decoder."""

    family: str
    width: int  # d
    vocab: int
    context: int  # tokens the checkpoint was made for
    eps: float
    layers: tuple[LayerSpec, ...]
    tied: bool
    names: Names = field(default_factory=Names)
    parallel: bool = False  # one norm feeds both mixers, both are added at once
    centred: bool = False  # norms take the mean away first
    norm_plus_one: bool = False  # files store norm weights minus one
    final_plus_one: bool | None = None  # the same for the final norm; None = as the others
    post_eps: float | None = None  # eps of norms after a mixer
    embed_scale: float = 1.0
    embed_norm: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    layer_scalar: bool = False  # a stored factor at the end of each block
    per_layer_width: int = 0  # Gemma 4 E sizes: an extra embedding for every layer
