"""Families with a mixture of experts: Qwen3 MoE, Qwen3-Next and Qwen3.5 (gated delta net), gpt-oss, GLM, DeepSeek, MiMo-V2."""

from __future__ import annotations

import math
from typing import Any

from outrider.core.target.spec import DeltaSpec, DenseSpec, ExpertsSpec, LatentSpec, LayerSpec, Names, TargetSpec

from .common import Config, attention, dense, head_dim, kinds, rope, target


def qwen3_moe(config: Config) -> TargetSpec:
    """Qwen3's attention; experts on every layer but those the config leaves dense."""
    experts = ExpertsSpec(
        config.get("num_experts") or config["num_local_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        renormalise=bool(config.get("norm_topk_prob", False)),
    )
    bias = bool(config.get("attention_bias", False))
    mixer = attention(config, qk_norm="head", bias=bias, output_bias=bias)
    plain = set(config.get("mlp_only_layers") or [])
    step = config.get("decoder_sparse_step", 1)
    layers = [
        LayerSpec(mixer, experts if i not in plain and (i + 1) % step == 0 else dense(config))
        for i in range(config["num_hidden_layers"])
    ]
    return target(config, "qwen3_moe", layers)


def qwen3_next(config: Config) -> TargetSpec:
    """Qwen3-Next, Qwen3.5, 3.6 and 3.8: three of four layers are gated delta nets; gated attention with partial rope."""
    family = str(config["model_type"]).removesuffix("_text")
    delta = DeltaSpec(
        config["linear_num_key_heads"],
        config["linear_num_value_heads"],
        config["linear_key_head_dim"],
        config["linear_value_head_dim"],
        config.get("linear_conv_kernel_dim", 4),
    )
    size = head_dim(config)
    told = config if "rope_parameters" in config else {"partial_rotary_factor": 0.25, **config}
    full = attention(config, rope(told, size), qk_norm="head", gate="in_q")
    types = kinds(config, config.get("full_attention_interval", 4), slid="linear_attention")
    channel: DenseSpec | ExpertsSpec
    if config.get("num_experts"):
        channel = ExpertsSpec(
            config["num_experts"],
            config["num_experts_per_tok"],
            config["moe_intermediate_size"],
            renormalise=bool(config.get("norm_topk_prob", family == "qwen3_5_moe")),
            shared=config["shared_expert_intermediate_size"],
            shared_gate=True,
        )
    else:
        channel = dense(config)
    layers = [LayerSpec(delta if kind == "linear_attention" else full, channel) for kind in types]
    return target(config, family, layers, norm_plus_one=True)


def gpt_oss(config: Config) -> TargetSpec:
    """Attention sinks, every other layer sliding, experts with biases and a bounded activation."""
    experts = ExpertsSpec(
        config["num_local_experts"],
        config.get("num_experts_per_tok") or config["experts_per_token"],
        config["intermediate_size"],
        activation="clamped",
        score="after",
        bias=True,
    )
    types = config.get("layer_types") or [
        "full_attention" if i % 2 else "sliding_attention" for i in range(config["num_hidden_layers"])
    ]
    layers = [
        LayerSpec(
            attention(
                config,
                bias=True,
                output_bias=True,
                sinks=True,
                window=config["sliding_window"] if kind == "sliding_attention" else 0,
            ),
            experts,
        )
        for kind in types
    ]
    return target(config, "gpt_oss", layers)


def _sigmoid_experts(config: Config) -> ExpertsSpec:
    return ExpertsSpec(
        config["n_routed_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        score="sigmoid",
        renormalise=bool(config.get("norm_topk_prob", True)),
        factor=config.get("routed_scaling_factor") or 1.0,
        groups=config.get("n_group") or 1,
        top_groups=config.get("topk_group") or 1,
        shared=(config.get("n_shared_experts") or 0) * config["moe_intermediate_size"],
    )


def _channels(config: Config) -> list[DenseSpec | ExpertsSpec]:
    """Dense layers first, as `mlp_layer_types` or `first_k_dense_replace` says."""
    count = config["num_hidden_layers"]
    types = config.get("mlp_layer_types")
    if not types:
        first = config.get("first_k_dense_replace", 1 if config["model_type"] == "glm4_moe_lite" else 0)
        types = ["dense" if i < first else "sparse" for i in range(count)]
    return [dense(config) if kind == "dense" else _sigmoid_experts(config) for kind in types[:count]]


def glm4_moe(config: Config) -> TargetSpec:
    """GLM-4.5 and 4.6: sigmoid router over ordinary attention with partial rope."""
    size = head_dim(config)
    told = config if "rope_parameters" in config else {"partial_rotary_factor": 0.5, **config}
    mixer = attention(
        config,
        rope(told, size),
        bias=bool(config.get("attention_bias", False)),
        qk_norm="head" if config.get("use_qk_norm") else "",
    )
    return target(config, "glm4_moe", [LayerSpec(mixer, channel) for channel in _channels(config)])


def deepseek(config: Config) -> TargetSpec:
    """DeepSeek-V3 and GLM-4.7-Flash: latent attention, sigmoid router with groups."""
    rope_dim = config["qk_rope_head_dim"]
    turned = rope(config, rope_dim, interleaved=bool(config.get("rope_interleave", True)))
    scale = (config["qk_nope_head_dim"] + rope_dim) ** -0.5
    settings: dict[str, Any] = turned.settings
    factor = settings.get("factor") or 1.0
    if settings.get("mscale_all_dim") and factor > 1:
        scale *= (0.1 * settings["mscale_all_dim"] * math.log(factor) + 1) ** 2
    mixer = LatentSpec(
        heads=config["num_attention_heads"],
        nope_dim=config["qk_nope_head_dim"],
        rope_dim=rope_dim,
        value_dim=config["v_head_dim"],
        kv_rank=config["kv_lora_rank"],
        q_rank=config.get("q_lora_rank"),
        rope=turned,
        scale=scale,
        bias=bool(config.get("attention_bias", False)),
    )
    return target(config, config["model_type"], [LayerSpec(mixer, channel) for channel in _channels(config)])


def mimo_v2(config: Config) -> TargetSpec:
    """MiMo-V2 Flash: small, scaled values; sliding layers have twice the key heads, sinks and a rope of their own."""
    count, size = config["num_hidden_layers"], head_dim(config)
    told = config.get("rope_parameters") or {
        kind: {"rope_theta": theta, "partial_rotary_factor": config.get("partial_rotary_factor", 0.334)}
        for kind, theta in (
            ("full_attention", config.get("rope_theta", 5e6)),
            ("sliding_attention", config.get("swa_rope_theta", 1e4)),
        )
    }
    before = config.get("sliding_window_size")  # the token itself is not counted
    window = config["sliding_window"] if before is None else before + 1
    types = config.get("layer_types") or [
        "full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)
    ]
    mixers = {
        kind: attention(
            config,
            rope({"rope_parameters": told}, size, kind),
            kv_heads=config["num_key_value_heads"] * (2 if slides else 1),
            value_dim=config["v_head_dim"],
            value_scale=config.get("attention_value_scale") or 1.0,
            bias=bool(config.get("attention_bias", False)),
            sinks=slides,
            window=window if slides else 0,
        )
        for kind, slides in (("full_attention", False), ("sliding_attention", True))
    }
    channels = _channels({"mlp_layer_types": ["dense"] + ["sparse"] * (count - 1), **config})
    return target(
        config,
        "mimo_v2_flash",
        [LayerSpec(mixers[kind], channel) for kind, channel in zip(types, channels, strict=True)],
        names=Names(sinks="attention_sink_bias"),
        eps=config.get("rms_norm_eps", 1e-5),
    )
