"""Gemma 3 and 4, and Muse Glimmer: norms on both sides of both mixers, sliding layers between full ones."""

from __future__ import annotations

import dataclasses

from outrider.core.formats.config import ConfigReader

from .common import (
    EXPERTS,
    HEADS,
    activation,
    attention,
    biased,
    head_dim,
    kinds,
    kv_heads,
    optional_factor,
    rope,
    target,
    top_experts,
)
from .spec import Activation, AttentionSpec, DenseSpec, ExpertsSpec, LayerSpec, Names, RopeSpec, TargetSpec

SANDWICH = Names(
    after_mixer="post_attention_layernorm",
    before_channel="pre_feedforward_layernorm",
    after_channel="post_feedforward_layernorm",
)


def gemma3(config: ConfigReader) -> TargetSpec:
    """Five sliding layers to one full; the two kinds have ropes of their own; norm weights are stored minus one."""
    config = config.defaults(head_dim=256)
    scale = config.factor("query_pre_attn_scalar", 256.0) ** -0.5
    mlp = DenseSpec(config.integer("intermediate_size"), _activation(config))
    layers = []
    for kind in kinds(config, config.integer("sliding_window_pattern", default=6)):
        mixer = attention(
            config,
            _gemma3_rope(config, head_dim(config), kind),
            qk_norm="head",
            scale=scale,
            window=_window(config, kind),
            **biased(config),
        )
        layers.append(LayerSpec(mixer, mlp))
    return target(
        config,
        "gemma3",
        layers,
        names=SANDWICH,
        norm_plus_one=True,
        embed_scale=config.integer("hidden_size") ** 0.5,
        logit_cap=optional_factor(config, "final_logit_softcapping"),
        tied=config.flag("tie_word_embeddings", True),
    )


def _activation(config: ConfigReader) -> Activation:
    return activation(config, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh")


def _window(config: ConfigReader, kind: str) -> int:
    """Where layers slide, the config has to say how far they see."""
    return config.integer("sliding_window") if kind == "sliding_attention" else 0


def _gemma3_rope(config: ConfigReader, size: int, kind: str) -> RopeSpec:
    """In the published form the scaling belongs to full layers, and sliding ones have a base of their own."""
    if config.has("rope_parameters") or kind != "sliding_attention":
        return rope(config.defaults(rope_theta=1_000_000.0), size, kind)
    return _sliding_rope(config, size)


def _sliding_rope(config: ConfigReader, size: int) -> RopeSpec:
    return RopeSpec(config.number("rope_local_base_freq", 2.0, default=10000.0), size)


def gemma4(config: ConfigReader) -> TargetSpec:
    """Per-kind head sizes, values normed, shared keys and values at the end, experts or an extra embedding in some sizes."""
    types = kinds(config, 6)
    shared = config.integer("num_kv_shared_layers", 0, len(types) - 1, 0)
    double = config.flag("use_double_wide_mlp")
    layers = []
    for index, kind in enumerate(types):
        mixer = _gemma4_attention(config, index, kind)
        shares = index >= len(types) - shared
        if shares:
            own = [i for i in range(len(types) - shared) if types[i] == kind]
            if not own:
                config.wrong("num_kv_shared_layers", f"no layer of kind {kind} has keys of its own")
            mixer = dataclasses.replace(mixer, source=own[-1])
        layers.append(LayerSpec(mixer, _gemma4_channel(config, double and shares)))
    return target(
        config,
        "gemma4",
        layers,
        names=SANDWICH,
        embed_scale=config.integer("hidden_size") ** 0.5,
        logit_cap=optional_factor(config, "final_logit_softcapping"),
        layer_scalar=True,
        per_layer_width=config.integer("hidden_size_per_layer_input", 0, default=0),
        tied=config.flag("tie_word_embeddings", True),
    )


def _gemma4_attention(config: ConfigReader, index: int, kind: str) -> AttentionSpec:
    full = kind == "full_attention"
    same = full and config.flag("attention_k_eq_v")
    size, kv = head_dim(config), kv_heads(config)
    if full:
        own = config.table("per_layer_config").table(str(index))
        own = own.given(num_attention_heads=config.integer("num_attention_heads", 1, HEADS))
        size = head_dim(own) if own.has("head_dim") else head_dim(config, config.first("global_head_dim", "head_dim"))
        if same:
            kv = kv_heads(config, config.first("num_global_key_value_heads", "num_key_value_heads"))
            kv = kv_heads(own) if own.has("num_key_value_heads") else kv
    return attention(
        config,
        _gemma4_rope(config, size, kind),
        head_dim=size,
        kv_heads=kv,
        qk_norm="head",
        value_norm=True,
        value_is_key=same,
        scale=1.0,
        window=_window(config, kind),
        **biased(config),
    )


def _gemma4_rope(config: ConfigReader, size: int, kind: str) -> RopeSpec:
    if config.has("rope_parameters"):
        return rope(config, size, kind)
    if kind == "full_attention":
        share = config.number("partial_rotary_factor", 0.0, 1.0, 0.25)
        theta = config.number("rope_theta", 2.0, default=1e6)
        return RopeSpec(theta, size, "proportional", (("partial_rotary_factor", share),))
    return _sliding_rope(config, size)


def _gemma4_channel(config: ConfigReader, wide: bool) -> DenseSpec | ExpertsSpec:
    mlp = DenseSpec(config.integer("intermediate_size") * (2 if wide else 1), _activation(config))
    if not config.flag("enable_moe_block"):
        return mlp
    count = config.integer("num_experts", 1, EXPERTS)
    return ExpertsSpec(
        count,
        top_experts(config, count, "top_k_experts"),
        config.integer("moe_intermediate_size"),
        activation=_activation(config),
        parallel=mlp,
    )


def muse_glimmer(config: ConfigReader) -> TargetSpec:
    """Normed embedding, weightless norms on queries and keys, a gate on the attention output; full layers without rope."""
    types, size = kinds(config, 4), head_dim(config)
    thetas = config.numbers("layer_rope_theta", layers=len(types)) if config.has("layer_rope_theta") else None
    layers = []
    for index, kind in enumerate(types):
        slides = kind == "sliding_attention"
        turns = bool(thetas[index]) if thetas else slides
        mixer = attention(
            config,
            rope=rope(config, size) if turns else None,
            qk_norm="head",
            qk_norm_weight=False,
            qk_factor=config.factor("qk_scale_factor", 1.0),
            gate="own",
            window=_window(config, kind),
            **biased(config),
        )
        layers.append(LayerSpec(mixer, DenseSpec(config.integer("intermediate_size"), activation(config))))
    return target(
        config,
        "muse_glimmer",
        layers,
        names=SANDWICH,
        norm_plus_one=True,
        final_plus_one=False,
        post_eps=config.number("post_norm_eps", 0.0, 1.0) if config.has("post_norm_eps") else None,
        embed_norm=True,
        logit_scale=config.factor("output_multiplier", 1.0),
        logit_cap=optional_factor(config, "final_logit_softcapping"),
    )
