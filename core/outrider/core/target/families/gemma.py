"""Gemma 3 and 4, and Muse Glimmer: norms on both sides of both mixers, sliding layers between full ones."""

from __future__ import annotations

import dataclasses
from typing import Any

from outrider.core.target.spec import AttentionSpec, DenseSpec, ExpertsSpec, LayerSpec, Names, RopeSpec, TargetSpec

from .common import Config, activation, attention, dense, head_dim, kinds, rope, target

SANDWICH = Names(
    after_mixer="post_attention_layernorm",
    before_channel="pre_feedforward_layernorm",
    after_channel="post_feedforward_layernorm",
)


def gemma3(config: Config) -> TargetSpec:
    """Five sliding layers to one full; the two kinds have ropes of their own; norm weights are stored minus one."""
    size = config.get("head_dim", 256)
    scale = config.get("query_pre_attn_scalar", 256) ** -0.5
    layers = []
    for kind in kinds(config, config.get("sliding_window_pattern", 6)):
        slides = kind == "sliding_attention"
        mixer = attention(
            config,
            _gemma3_rope(config, size, kind),
            head_dim=size,
            qk_norm="head",
            scale=scale,
            window=config["sliding_window"] if slides else 0,
        )
        layers.append(LayerSpec(mixer, dense(config, activation="gelu_tanh")))
    return target(
        config,
        "gemma3",
        layers,
        names=SANDWICH,
        norm_plus_one=True,
        embed_scale=config["hidden_size"] ** 0.5,
        logit_cap=config.get("final_logit_softcapping"),
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def _gemma3_rope(config: Config, size: int, kind: str) -> RopeSpec:
    """In the published form the scaling belongs to full layers, and sliding ones have a base of their own."""
    if "rope_parameters" in config or kind != "sliding_attention":
        return rope({"rope_theta": 1_000_000.0, **config}, size, kind)
    return RopeSpec(float(config.get("rope_local_base_freq", 10000.0)), size)


def gemma4(config: Config) -> TargetSpec:
    """Per-kind head sizes, values normed, shared keys and values at the end, experts or an extra embedding in some sizes."""
    types = kinds(config, 6)
    shared_from = len(types) - (config.get("num_kv_shared_layers") or 0)
    layers = []
    for index, kind in enumerate(types):
        mixer = _gemma4_attention(config, index, kind)
        if index >= shared_from:
            source = max(i for i in range(shared_from) if types[i] == kind)
            mixer = dataclasses.replace(mixer, source=source)
        wide = bool(config.get("use_double_wide_mlp")) and index >= shared_from
        layers.append(LayerSpec(mixer, _gemma4_channel(config, wide)))
    return target(
        config,
        "gemma4",
        layers,
        names=SANDWICH,
        embed_scale=config["hidden_size"] ** 0.5,
        logit_cap=config.get("final_logit_softcapping"),
        layer_scalar=True,
        per_layer_width=config.get("hidden_size_per_layer_input") or 0,
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def _gemma4_attention(config: Config, index: int, kind: str) -> AttentionSpec:
    full = kind == "full_attention"
    own: dict[str, Any] = (config.get("per_layer_config") or {}).get(str(index), {})
    size, kv = head_dim(config), config.get("num_key_value_heads") or config["num_attention_heads"]
    same = full and bool(config.get("attention_k_eq_v"))
    if full:
        size = own.get("head_dim") or config.get("global_head_dim") or size
        if same:
            kv = own.get("num_key_value_heads") or config.get("num_global_key_value_heads") or kv
    return attention(
        config,
        _gemma4_rope(config, size, kind),
        head_dim=size,
        kv_heads=kv,
        qk_norm="head",
        value_norm=True,
        value_is_key=same,
        scale=1.0,
        window=0 if full else config["sliding_window"],
    )


def _gemma4_rope(config: Config, size: int, kind: str) -> RopeSpec:
    if config.get("rope_parameters"):
        return rope(config, size, kind)
    if kind == "full_attention":
        share = config.get("partial_rotary_factor", 0.25)
        return RopeSpec(float(config.get("rope_theta", 1e6)), size, "proportional", (("partial_rotary_factor", share),))
    return RopeSpec(float(config.get("rope_local_base_freq", 10000.0)), size)


def _gemma4_channel(config: Config, wide: bool) -> DenseSpec | ExpertsSpec:
    mlp = DenseSpec(config["intermediate_size"] * (2 if wide else 1), "gelu_tanh")
    if not config.get("enable_moe_block"):
        return mlp
    return ExpertsSpec(
        config["num_experts"],
        config["top_k_experts"],
        config["moe_intermediate_size"],
        activation="gelu_tanh",
        parallel=mlp,
    )


def muse_glimmer(config: Config) -> TargetSpec:
    """Normed embedding, weightless norms on queries and keys, a gate on the attention output; full layers without rope."""
    size = head_dim(config)
    thetas = config.get("layer_rope_theta")
    layers = []
    for index, kind in enumerate(kinds(config, 4)):
        slides = kind == "sliding_attention"
        turns = bool(thetas[index]) if thetas else slides
        mixer = attention(
            config,
            rope=rope(config, size) if turns else None,
            qk_norm="head",
            qk_norm_weight=False,
            qk_factor=config.get("qk_scale_factor", 1.0),
            gate="own",
            window=config["sliding_window"] if slides else 0,
        )
        layers.append(LayerSpec(mixer, DenseSpec(config["intermediate_size"], activation(config))))
    return target(
        config,
        "muse_glimmer",
        layers,
        names=SANDWICH,
        norm_plus_one=True,
        final_plus_one=False,
        post_eps=config.get("post_norm_eps"),
        embed_norm=True,
        logit_scale=config.get("output_multiplier", 1.0),
        logit_cap=config.get("final_logit_softcapping"),
    )
