"""Families with a mixture of experts: Qwen3 MoE, Qwen3-Next and Qwen3.5 (gated delta net), gpt-oss, GLM, DeepSeek, MiMo-V2."""

from __future__ import annotations

import math

from outrider.core.formats.config import ConfigReader, divides

from .common import (
    EXPERTS,
    HEAD,
    HEADS,
    KERNEL,
    PLAIN,
    attention,
    biased,
    dense,
    eps,
    head_dim,
    kinds,
    kv_heads,
    layer_count,
    rope,
    target,
    top_experts,
)
from .spec import Activation, AttentionSpec, DeltaSpec, DenseSpec, ExpertsSpec, LatentSpec, LayerSpec, Names, TargetSpec


def qwen3_moe(config: ConfigReader) -> TargetSpec:
    """Qwen3's attention; experts on every layer but those the config leaves dense."""
    count = config.integer(config.first("num_experts", "num_local_experts"), 1, EXPERTS)
    experts = ExpertsSpec(
        count,
        top_experts(config, count, "num_experts_per_tok"),
        config.integer("moe_intermediate_size"),
        renormalise=config.flag("norm_topk_prob"),
    )
    mixer = attention(config, qk_norm="head", **biased(config))
    plain = set(config.integers("mlp_only_layers")) if config.has("mlp_only_layers") else set()
    step = config.integer("decoder_sparse_step", default=1)
    layers = [
        LayerSpec(mixer, experts if i not in plain and (i + 1) % step == 0 else dense(config))
        for i in range(layer_count(config))
    ]
    return target(config, "qwen3_moe", layers)


def qwen3_next(config: ConfigReader) -> TargetSpec:
    """Qwen3-Next, Qwen3.5, 3.6 and 3.8: three of four layers are gated delta nets; gated attention with partial rope."""
    family = config.word("model_type").removesuffix("_text")
    delta = _delta(config)
    rope_config = config if config.has("rope_parameters") else config.defaults(partial_rotary_factor=0.25)
    full = attention(config, rope(rope_config, head_dim(config)), qk_norm="head", gate="in_q", **biased(config))
    types = kinds(config, config.integer("full_attention_interval", default=4), slid="linear_attention")
    count = config.integer("num_experts", 0, EXPERTS, 0)
    channel: DenseSpec | ExpertsSpec
    if count:
        channel = ExpertsSpec(
            count,
            top_experts(config, count, "num_experts_per_tok"),
            config.integer("moe_intermediate_size"),
            renormalise=config.flag("norm_topk_prob", family == "qwen3_5_moe"),
            shared=config.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        )
    else:
        channel = dense(config)
    layers = [LayerSpec(delta if kind == "linear_attention" else full, channel) for kind in types]
    return target(config, family, layers, norm_plus_one=True)


def _delta(config: ConfigReader) -> DeltaSpec:
    keys, values = (config.integer(f"linear_num_{part}_heads", 1, HEADS) for part in ("key", "value"))
    divides(config, ("linear_num_key_heads", keys), ("linear_num_value_heads", values))
    return DeltaSpec(
        keys,
        values,
        config.integer("linear_key_head_dim", 1, HEAD),
        config.integer("linear_value_head_dim", 1, HEAD),
        config.integer("linear_conv_kernel_dim", 1, KERNEL, 4),
    )


def gpt_oss(config: ConfigReader) -> TargetSpec:
    """Attention sinks, every other layer sliding, experts with biases and a bounded activation."""
    count = config.integer("num_local_experts", 1, EXPERTS)
    experts = ExpertsSpec(
        count,
        top_experts(config, count, "num_experts_per_tok", "experts_per_token"),
        config.integer("intermediate_size"),
        activation="clamped",
        score="after",
        bias=True,
    )
    mixers = {
        kind: attention(
            config,
            bias=True,
            output_bias=True,
            sinks=True,
            window=config.integer("sliding_window") if kind == "sliding_attention" else 0,
        )
        for kind in PLAIN
    }
    return target(config, "gpt_oss", [LayerSpec(mixers[kind], experts) for kind in kinds(config, 2)])


def sigmoid_experts(
    config: ConfigReader, activation: Activation = "silu", shared: int | None = None, *, shared_bias: bool = False
) -> ExpertsSpec:
    """Experts as DeepSeek-V3 has them, and the width of the shared branch, if not that of `n_shared_experts` of them."""
    count, wide = config.integer("n_routed_experts", 1, EXPERTS), config.integer("moe_intermediate_size")
    groups = config.integer("n_group", 1, EXPERTS, 1)
    divides(config, ("n_group", groups), ("n_routed_experts", count))
    if groups > 1 and count // groups < 2:
        config.wrong("n_group", f"a group of {count} experts must have at least 2")
    top_groups = config.integer("topk_group", 1, groups, 1)
    if shared is None:
        shared = config.integer("n_shared_experts", 0, EXPERTS, 0) * wide
    return ExpertsSpec(
        count,
        top_experts(config, count // groups * top_groups if groups > 1 else count, "num_experts_per_tok"),
        wide,
        activation,
        score="sigmoid",
        renormalise=config.flag("norm_topk_prob", True),
        factor=config.factor("routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=top_groups,
        shared=shared,
        shared_bias=shared_bias,
    )


def _channels(config: ConfigReader, first: int = 0) -> list[DenseSpec | ExpertsSpec]:
    """Dense layers first, as `mlp_layer_types` or `first_k_dense_replace` says, else so many."""
    count = layer_count(config)
    if config.has("mlp_layer_types"):
        types = config.words("mlp_layer_types", ("dense", "sparse"), count)
    else:
        first = config.integer("first_k_dense_replace", 0, default=first)
        types = ["dense" if i < first else "sparse" for i in range(count)]
    made = {"dense": dense, "sparse": sigmoid_experts}
    channels = {kind: made[kind](config) for kind in set(types)}
    return [channels[kind] for kind in types]


def glm4_moe(config: ConfigReader) -> TargetSpec:
    """GLM-4.5 and 4.6: sigmoid router over ordinary attention with partial rope."""
    rope_config = config if config.has("rope_parameters") else config.defaults(partial_rotary_factor=0.5)
    mixer = attention(
        config,
        rope(rope_config, head_dim(config)),
        bias=config.flag("attention_bias"),
        qk_norm="head" if config.flag("use_qk_norm") else "",
    )
    return target(config, "glm4_moe", [LayerSpec(mixer, channel) for channel in _channels(config)])


def deepseek(config: ConfigReader) -> TargetSpec:
    """DeepSeek-V3 and GLM-4.7-Flash: latent attention, sigmoid router with groups."""
    family = config.word("model_type")
    rope_dim, nope_dim = config.integer("qk_rope_head_dim", 2, HEAD), config.integer("qk_nope_head_dim", 1, HEAD)
    turned = rope(config, rope_dim, interleaved=config.flag("rope_interleave", True))
    scale = (nope_dim + rope_dim) ** -0.5
    factor, mscale = turned.settings.get("factor", 1.0), turned.settings.get("mscale_all_dim")
    if mscale and factor > 1:
        scale *= (0.1 * mscale * math.log(factor) + 1) ** 2
    mixer = LatentSpec(
        heads=config.integer("num_attention_heads", 1, HEADS),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=config.integer("v_head_dim", 1, HEAD),
        kv_rank=config.integer("kv_lora_rank"),
        q_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
        rope=turned,
        scale=scale,
        bias=config.flag("attention_bias"),
    )
    channels = _channels(config, 1 if family == "glm4_moe_lite" else 0)
    return target(config, family, [LayerSpec(mixer, channel) for channel in channels])


def mimo_v2(config: ConfigReader) -> TargetSpec:
    """MiMo-V2 Flash: small, scaled values; sliding layers have twice the key heads, sinks and a rope of their own.

    Biases are on queries, keys and values; those of values are as small as values and scaled with them.
    """
    count = layer_count(config)
    types = kinds(config, known=PLAIN)
    if not config.has("layer_types"):
        types = ["full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)]
    mixers = {kind: _mimo_attention(config, kind) for kind in PLAIN}
    types_of_mlp = ["dense"] + ["sparse"] * (count - 1)
    channels = _channels(config.defaults(mlp_layer_types=types_of_mlp))
    return target(
        config,
        "mimo_v2_flash",
        [LayerSpec(mixers[kind], channel) for kind, channel in zip(types, channels, strict=True)],
        names=Names(sinks="attention_sink_bias"),
        eps=eps(config, "rms_norm_eps", 1e-5),
    )


def _mimo_attention(config: ConfigReader, kind: str) -> AttentionSpec:
    slides, size = kind == "sliding_attention", head_dim(config)
    keys = kv_heads(config) * (2 if slides else 1)
    divides(config, ("num_key_value_heads", keys), ("num_attention_heads", config.integer("num_attention_heads")))
    told = config
    if not config.has("rope_parameters"):
        own = config.values("swa_rope_theta") if slides else config.values("rope_theta")
        theta = next(iter(own.values()), 1e4 if slides else 5e6)
        told = config.given(rope_theta=theta, rope_scaling=None).defaults(partial_rotary_factor=0.334)
    return attention(
        config,
        rope(told, size, kind),
        kv_heads=keys,
        value_dim=config.integer("v_head_dim", 1, size),
        value_scale=config.factor("attention_value_scale", 1.0),
        bias=config.flag("attention_bias"),
        sinks=slides,
        window=_mimo_window(config) if slides else 0,
    )


def _mimo_window(config: ConfigReader) -> int:
    """`sliding_window_size` does not count the token itself."""
    if config.has("sliding_window_size"):
        return config.integer("sliding_window_size") + 1
    return config.integer("sliding_window")
