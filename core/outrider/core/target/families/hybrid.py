"""Families with Mamba-2 layers: Granite 4 H and Nemotron-H."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.core.errors import ModelError
from outrider.core.target.spec import Absent, DenseSpec, ExpertsSpec, LayerSpec, MambaSpec, Names, TargetSpec

from .common import Config, activation, attention, head_dim, rope, target

KINDS = {
    "M": "mamba",
    "*": "attention",
    "E": "moe",
    "-": "mlp",
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def _kinds(told: Iterable[str]) -> list[str]:
    """Names of blocks, from a list of one of two dialects or a string of signs."""
    return [KINDS.get(kind, kind) for kind in told]


def granite(config: Config) -> TargetSpec:
    """Granite 4: Granite's multipliers, Mamba-2 between a few attention layers; a shared MLP, beside experts or alone."""
    heads = config["mamba_n_heads"]
    size = config.get("mamba_d_head", "auto")
    bias = bool(config.get("attention_bias", False))
    mamba = MambaSpec(
        heads,
        config["mamba_expand"] * config["hidden_size"] // heads if size == "auto" else size,
        config["mamba_n_groups"],
        config["mamba_d_state"],
        config["mamba_d_conv"],
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        bias=bool(config.get("mamba_proj_bias", False)),
    )
    turns = config.get("position_embedding_type") == "rope"
    full = attention(
        config,
        rope=rope(config, head_dim(config)) if turns else None,
        scale=config["attention_multiplier"],
        bias=bias,
        output_bias=bias,
    )
    shared, count = config["shared_intermediate_size"], config.get("num_local_experts") or 0
    channel: DenseSpec | ExpertsSpec = DenseSpec(shared, activation(config))
    if count:
        channel = ExpertsSpec(
            count,
            config["num_experts_per_tok"],
            config["intermediate_size"],
            activation(config),
            "after",
            shared=shared,
        )
    types = _kinds(config["layer_types"])
    return target(
        config,
        "granitemoehybrid",
        [LayerSpec(mamba if kind == "mamba" else full, channel) for kind in types],
        names=Names(mlp="block_sparse_moe" if count else "shared_mlp", gate_up="input_linear", down="output_linear"),
        embed_scale=config.get("embedding_multiplier", 1.0),
        residual_scale=config.get("residual_multiplier", 1.0),
        logit_scale=1.0 / config.get("logits_scaling", 1.0),
    )


def nemotron(config: Config) -> TargetSpec:
    """Nemotron-H and Nemotron 3: one mixer a block, attention without position, MLPs and experts of squared relu."""
    if config.get("moe_latent_size"):
        raise ModelError("This Nemotron has latent experts, which Outrider cannot run.", "Take a smaller Nemotron 3.")
    bias = bool(config.get("use_bias", False))
    mamba = MambaSpec(
        config["mamba_num_heads"],
        config["mamba_head_dim"],
        config["n_groups"],
        config["ssm_state_size"],
        config["conv_kernel"],
        conv_bias=bool(config.get("use_conv_bias", True)),
        bias=bias,
        norm_groups=config["n_groups"],
    )
    size = config.get("head_dim") or config.get("attention_head_dim")
    mlp = DenseSpec(config["intermediate_size"], "relu2", bool(config.get("mlp_bias", False)))
    blocks = {
        "mamba": LayerSpec(mamba, Absent()),
        "attention": LayerSpec(attention(config, rope=None, head_dim=size), Absent()),
        "mlp": LayerSpec(Absent(), mlp),
    }
    kinds = _kinds(config.get("layers_block_type") or config["hybrid_override_pattern"])
    if "moe" in kinds:
        blocks["moe"] = LayerSpec(Absent(), _nemotron_experts(config))
    return target(
        config,
        "nemotron_h",
        [blocks[kind] for kind in kinds],
        names=Names(
            before_mixer="norm",
            before_channel="norm",
            attention="mixer",
            mamba="mixer",
            mlp="mixer",
            final="norm_f",
            embedding="embeddings",
        ),
        eps=config.get("layer_norm_epsilon", 1e-5),
    )


def _nemotron_experts(config: Config) -> ExpertsSpec:
    return ExpertsSpec(
        config["n_routed_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        "relu2",
        score="sigmoid",
        renormalise=bool(config.get("norm_topk_prob", True)),
        factor=config.get("routed_scaling_factor") or 1.0,
        groups=config.get("n_group") or 1,
        top_groups=config.get("topk_group") or 1,
        shared=config["moe_shared_expert_intermediate_size"] if config.get("n_shared_experts") else 0,
    )
