"""Llama and what shares its layout: SmolLM2, MiniCPM5, R1-distill-Llama, most finetunes.

Format: config.json with `rope_parameters` (new) or `rope_theta` + `rope_scaling` (published); tensors `model.layers.N.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.core.target.spec import RopeSpec, TargetSpec


def read_rope(config: Mapping[str, Any], head_dim: int) -> RopeSpec:
    """Rope settings in either published form."""
    if config.get("rope_parameters"):
        scaling = dict(config["rope_parameters"])
    else:
        scaling = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    theta = float(scaling.pop("rope_theta", 10000.0))
    share = scaling.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    divisors = config.get("rope_freqs")
    return RopeSpec(theta, int(head_dim * share), kind, scaling, tuple(map(float, divisors)) if divisors else None)


def read(config: Mapping[str, Any]) -> TargetSpec:
    """The spec of a llama checkpoint."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    bias = bool(config.get("attention_bias", False))
    return TargetSpec(
        family="llama",
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        mlp_width=config["intermediate_size"],
        vocab=config["vocab_size"],
        eps=config.get("rms_norm_eps", 1e-6),
        rope=read_rope(config, head_dim),
        context=config.get("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        activation=config.get("hidden_act", "silu"),
    )
