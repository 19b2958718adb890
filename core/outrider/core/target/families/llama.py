"""Llama and what shares its decoder: Qwen2, MiMo and Qwen3, Mistral and Ministral 3, SmolLM3, Phi-3 and Phi-4, Granite, OLMo.

Each differs from llama by a switch or two.
"""

from __future__ import annotations

import dataclasses

from outrider.core.target.spec import ConvSpec, LayerSpec, Names, TargetSpec

from .common import Config, attention, dense, head_dim, kinds, rope, target


def llama(config: Config) -> TargetSpec:
    """Also SmolLM2, MiniCPM5, R1-distill-Llama and most finetunes."""
    bias = bool(config.get("attention_bias", False))
    layer = LayerSpec(
        attention(config, bias=bias, output_bias=bias), dense(config, bias=bool(config.get("mlp_bias", False)))
    )
    return target(config, "llama", [layer] * config["num_hidden_layers"])


def _windowed(config: Config, kind: str) -> int:
    return config.get("sliding_window") or 0 if kind == "sliding_attention" else 0


def qwen2(config: Config) -> TargetSpec:
    """Biases on queries, keys and values only; no config key says so."""
    types = _optional_window(config)
    return target(
        config,
        "qwen2",
        [LayerSpec(attention(config, bias=True, window=_windowed(config, t)), dense(config)) for t in types],
    )


def mimo(config: Config) -> TargetSpec:
    """MiMo-7B: Qwen2, with layers for multi-token prediction beside it."""
    return dataclasses.replace(qwen2(config), family="mimo")


def qwen3(config: Config) -> TargetSpec:
    """A norm over each head of queries and keys."""
    types = _optional_window(config)
    bias = bool(config.get("attention_bias", False))
    return target(
        config,
        "qwen3",
        [
            LayerSpec(
                attention(config, qk_norm="head", bias=bias, output_bias=bias, window=_windowed(config, t)),
                dense(config),
            )
            for t in types
        ],
    )


def _optional_window(config: Config) -> list[str]:
    """Qwen sets a window that counts only if it is switched on, and then from `max_window_layers` on."""
    if not config.get("use_sliding_window"):
        return ["full_attention"] * config["num_hidden_layers"]
    if config.get("layer_types"):
        return kinds(config)
    first = config.get("max_window_layers", 0)
    return ["full_attention" if i < first else "sliding_attention" for i in range(config["num_hidden_layers"])]


def mistral(config: Config) -> TargetSpec:
    """A window on every layer where it is set."""
    layer = LayerSpec(attention(config, window=config.get("sliding_window") or 0), dense(config))
    return target(config, "mistral", [layer] * config["num_hidden_layers"])


def ministral3(config: Config) -> TargetSpec:
    """Yarn, and queries that grow with the position."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    beta = settings.get("llama_4_scaling_beta")
    heat = (float(beta), int(settings["original_max_position_embeddings"])) if beta else None
    layer = LayerSpec(attention(config, window=config.get("sliding_window") or 0, temperature=heat), dense(config))
    return target(config, "ministral3", [layer] * config["num_hidden_layers"])


def smollm3(config: Config) -> TargetSpec:
    """Every fourth layer without position; `no_rope_layers` is 1 where there is one."""
    count = config["num_hidden_layers"]
    every = config.get("no_rope_layer_interval", 4)
    turns = config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(count)]
    types = kinds(config) if config.get("use_sliding_window") else ["full_attention"] * count
    bias = bool(config.get("attention_bias", False))
    layers = [
        LayerSpec(
            attention(
                config,
                rope=rope(config, head_dim(config)) if turn else None,
                bias=bias,
                output_bias=bias,
                window=_windowed(config, kind),
            ),
            dense(config, bias=bool(config.get("mlp_bias", False))),
        )
        for turn, kind in zip(turns, types, strict=True)
    ]
    return target(config, "smollm3", layers)


def phi3(config: Config) -> TargetSpec:
    """Fused projections in the file; partial rotary and longrope in some."""
    layer = LayerSpec(attention(config, window=config.get("sliding_window") or 0), dense(config))
    return target(config, "phi3", [layer] * config["num_hidden_layers"])


def granite(config: Config) -> TargetSpec:
    """Four multipliers."""
    bias = bool(config.get("attention_bias", False))
    mixer = attention(config, scale=config["attention_multiplier"], bias=bias, output_bias=bias)
    layer = LayerSpec(mixer, dense(config, bias=bool(config.get("mlp_bias", False))))
    return target(
        config,
        "granite",
        [layer] * config["num_hidden_layers"],
        embed_scale=config.get("embedding_multiplier", 1.0),
        residual_scale=config.get("residual_multiplier", 1.0),
        logit_scale=1.0 / config.get("logits_scaling", 1.0),
    )


def olmo(config: Config) -> TargetSpec:
    """OLMo 2 and 3: norms behind the mixers only, and over whole queries and keys; in 3 three of four layers slide."""
    family = config["model_type"]
    types = kinds(config, 4 if family == "olmo3" else None)
    bias = bool(config.get("attention_bias", False))

    def plain(kind: str) -> Config:
        """OLMo 3 scales the rope of its full layers only."""
        if family == "olmo3" and kind == "sliding_attention" and "rope_parameters" not in config:
            return {**config, "rope_scaling": None}
        return config

    layers = [
        LayerSpec(
            attention(
                config,
                rope(plain(kind), head_dim(config), kind),
                qk_norm="whole",
                bias=bias,
                output_bias=bias,
                window=_windowed(config, kind),
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


def glm4(config: Config) -> TargetSpec:
    """GLM-4 dense: norms on both sides of both mixers, interleaved rope over half of each head."""
    size = head_dim(config)
    turned = rope({"partial_rotary_factor": 0.5, **config}, size, interleaved=True)
    layer = LayerSpec(attention(config, turned, bias=bool(config.get("attention_bias", False))), dense(config))
    names = Names(
        after_mixer="post_self_attn_layernorm",
        before_channel="post_attention_layernorm",
        after_channel="post_mlp_layernorm",
    )
    return target(config, "glm4", [layer] * config["num_hidden_layers"], names=names)


def cohere2(config: Config) -> TargetSpec:
    """Command R7B: one centred norm feeds both mixers; rope on sliding layers only."""
    size = head_dim(config)
    turned = rope(config, size, interleaved=True)
    layers = []
    for kind in kinds(config, config.get("sliding_window_pattern", 4)):
        slides = kind == "sliding_attention"
        mixer = attention(config, rope=turned if slides else None, window=_windowed(config, kind))
        layers.append(LayerSpec(mixer, dense(config)))
    return target(
        config,
        "cohere2",
        layers,
        names=Names(before_channel=""),
        parallel=True,
        centred=True,
        eps=config.get("layer_norm_eps", 1e-5),
        logit_scale=config.get("logit_scale", 1.0),
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def lfm2(config: Config) -> TargetSpec:
    """LFM2 dense: gated short convolutions between attention layers."""

    types = config.get("layer_types") or [
        "full_attention" if i in config["full_attn_idxs"] else "conv" for i in range(config["num_hidden_layers"])
    ]
    width = config.get("intermediate_size") or config["block_ff_dim"]
    if config.get("block_auto_adjust_ff_dim", False):
        width = int(2 * width / 3 * (config.get("block_ffn_dim_multiplier") or 1.0))
        multiple = config.get("block_multiple_of", 256)
        width = -(-width // multiple) * multiple
    layers = [
        LayerSpec(
            ConvSpec(config.get("conv_L_cache", 3)) if kind == "conv" else attention(config, qk_norm="head"),
            dense(config, width=width),
        )
        for kind in types
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
        eps=config.get("norm_eps", 1e-5),
        tied=bool(config.get("tie_word_embeddings", True)),
    )
