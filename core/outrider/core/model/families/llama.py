"""Llama and what shares its decoder: Qwen2, MiMo and Qwen3, Mistral and Ministral 3, SmolLM3, Phi-3 and Phi-4, Granite, OLMo.

Each differs from llama by a switch or two.
"""

from __future__ import annotations

import dataclasses

from outrider.core.formats.config import ConfigReader

from .common import (
    KERNEL,
    attention,
    biased,
    dense,
    eps,
    head_dim,
    kinds,
    layer_count,
    rope,
    rope_table,
    target,
    window,
)
from .spec import ConvSpec, LayerSpec, Names, TargetSpec


def llama(config: ConfigReader) -> TargetSpec:
    """Also SmolLM2, MiniCPM5, R1-distill-Llama and most finetunes."""
    layer = LayerSpec(attention(config, **biased(config)), dense(config, bias=config.flag("mlp_bias")))
    return target(config, "llama", [layer] * layer_count(config))


def qwen2(config: ConfigReader) -> TargetSpec:
    """Biases on queries, keys and values only; no config key says so."""
    types = _optional_window(config)
    return target(
        config,
        "qwen2",
        [LayerSpec(attention(config, bias=True, window=window(config, t)), dense(config)) for t in types],
    )


def mimo(config: ConfigReader) -> TargetSpec:
    """MiMo-7B: Qwen2, with layers for multi-token prediction beside it."""
    return dataclasses.replace(qwen2(config), family="mimo")


def qwen3(config: ConfigReader) -> TargetSpec:
    """A norm over each head of queries and keys."""
    types = _optional_window(config)
    return target(
        config,
        "qwen3",
        [
            LayerSpec(attention(config, qk_norm="head", window=window(config, t), **biased(config)), dense(config))
            for t in types
        ],
    )


def _optional_window(config: ConfigReader) -> list[str]:
    """Qwen sets a window that counts only if it is switched on, and then from `max_window_layers` on."""
    count = layer_count(config)
    if not config.flag("use_sliding_window"):
        return ["full_attention"] * count
    if config.has("layer_types"):
        return kinds(config)
    first = config.integer("max_window_layers", 0, default=0)
    return ["full_attention" if i < first else "sliding_attention" for i in range(count)]


def mistral(config: ConfigReader) -> TargetSpec:
    """A window on every layer where it is set."""
    layer = LayerSpec(attention(config, window=window(config)), dense(config))
    return target(config, "mistral", [layer] * layer_count(config))


def ministral3(config: ConfigReader) -> TargetSpec:
    """Yarn, and queries that grow with the position."""
    settings = rope_table(config)
    beta = settings.number("llama_4_scaling_beta", 0.0, 1e6, 0.0)
    heat = (beta, settings.integer("original_max_position_embeddings")) if beta else None
    layer = LayerSpec(attention(config, window=window(config), temperature=heat), dense(config))
    return target(config, "ministral3", [layer] * layer_count(config))


def smollm3(config: ConfigReader) -> TargetSpec:
    """Every fourth layer without position; `no_rope_layers` is 1 where there is one."""
    count = layer_count(config)
    every = config.integer("no_rope_layer_interval", default=4)
    turns = [int((i + 1) % every != 0) for i in range(count)]
    if config.has("no_rope_layers"):
        turns = config.integers("no_rope_layers", 0, 1, count)
    types = kinds(config) if config.flag("use_sliding_window") else ["full_attention"] * count
    layers = [
        LayerSpec(
            attention(
                config,
                rope=rope(config, head_dim(config)) if turn else None,
                window=window(config, kind),
                **biased(config),
            ),
            dense(config, bias=config.flag("mlp_bias")),
        )
        for turn, kind in zip(turns, types, strict=True)
    ]
    return target(config, "smollm3", layers)


def phi3(config: ConfigReader) -> TargetSpec:
    """Fused projections in the file; partial rotary and longrope in some."""
    layer = LayerSpec(attention(config, window=window(config)), dense(config))
    return target(config, "phi3", [layer] * layer_count(config))


def granite(config: ConfigReader) -> TargetSpec:
    """Four multipliers."""
    mixer = attention(config, scale=config.factor("attention_multiplier"), **biased(config))
    layer = LayerSpec(mixer, dense(config, bias=config.flag("mlp_bias")))
    return target(
        config,
        "granite",
        [layer] * layer_count(config),
        embed_scale=config.factor("embedding_multiplier", 1.0),
        residual_scale=config.factor("residual_multiplier", 1.0),
        logit_scale=1.0 / config.factor("logits_scaling", 1.0),
    )


def olmo(config: ConfigReader) -> TargetSpec:
    """OLMo 2 and 3: norms after the mixers only, and over whole queries and keys; in 3 three of four layers slide."""
    family = config.word("model_type")
    types = kinds(config, 4 if family == "olmo3" else None)

    def plain(kind: str) -> ConfigReader:
        """OLMo 3 scales the rope of its full layers only."""
        if family == "olmo3" and kind == "sliding_attention" and not config.has("rope_parameters"):
            return config.given(rope_scaling=None)
        return config

    layers = [
        LayerSpec(
            attention(
                config,
                rope(plain(kind), head_dim(config), kind),
                qk_norm="whole",
                window=window(config, kind),
                **biased(config),
            ),
            dense(config),
        )
        for kind in types
    ]
    names = Names(
        before_mixer="",
        after_mixer="post_attention_layernorm",
        before_channel="",
        after_channel="post_feedforward_layernorm",
    )
    return target(config, family, layers, names=names)


def glm4(config: ConfigReader) -> TargetSpec:
    """GLM-4 dense: norms on both sides of both mixers, interleaved rope over half of each head."""
    turned = rope(config.defaults(partial_rotary_factor=0.5), head_dim(config), interleaved=True)
    layer = LayerSpec(attention(config, turned, bias=config.flag("attention_bias")), dense(config))
    names = Names(
        after_mixer="post_self_attn_layernorm",
        before_channel="post_attention_layernorm",
        after_channel="post_mlp_layernorm",
    )
    return target(config, "glm4", [layer] * layer_count(config), names=names)


def cohere2(config: ConfigReader) -> TargetSpec:
    """Command R7B: one centred norm feeds both mixers; rope on sliding layers only."""
    turned = rope(config, head_dim(config), interleaved=True)
    layers = []
    for kind in kinds(config, config.integer("sliding_window_pattern", default=4)):
        slides = kind == "sliding_attention"
        mixer = attention(config, rope=turned if slides else None, window=window(config, kind), **biased(config))
        layers.append(LayerSpec(mixer, dense(config)))
    return target(
        config,
        "cohere2",
        layers,
        names=Names(before_channel=""),
        parallel=True,
        centred=True,
        eps=eps(config, "layer_norm_eps", 1e-5),
        logit_scale=config.factor("logit_scale", 1.0),
        tied=config.flag("tie_word_embeddings", True),
    )


def lfm2(config: ConfigReader) -> TargetSpec:
    """LFM2 dense: gated short convolutions between attention layers."""
    conv = ConvSpec(config.integer("conv_L_cache", 1, KERNEL, 3), config.flag("conv_bias"))
    width = _lfm2_width(config)
    layers = [
        LayerSpec(conv if kind == "conv" else attention(config, qk_norm="head"), dense(config, width))
        for kind in _lfm2_kinds(config)
    ]
    names = Names(
        before_mixer="operator_norm",
        before_channel="ffn_norm",
        mlp="feed_forward",
        output="out_proj",
        q_norm="q_layernorm",
        k_norm="k_layernorm",
        final="embedding_norm",
        gate="w1",
        up="w3",
        down="w2",
    )
    return target(
        config,
        "lfm2",
        layers,
        names=names,
        eps=eps(config, "norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings", True),
    )


def _lfm2_kinds(config: ConfigReader) -> list[str]:
    if config.has("layer_types"):
        return kinds(config, known=("conv", "full_attention"))
    count = layer_count(config)
    full = config.integers("full_attn_idxs", 0, count - 1)
    return ["full_attention" if i in full else "conv" for i in range(count)]


def _lfm2_width(config: ConfigReader) -> int:
    width = config.integer(config.first("intermediate_size", "block_ff_dim"))
    if config.flag("block_auto_adjust_ff_dim"):
        width = int(2 * width / 3 * config.factor("block_ffn_dim_multiplier", 1.0))
        multiple = config.integer("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return width
