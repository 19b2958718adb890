"""Families with Mamba-2 layers: Granite 4 H and Nemotron-H."""

from __future__ import annotations

from outrider.core.formats.config import LAYERS, ConfigReader, divides

from .common import (
    EXPERTS,
    HEAD,
    HEADS,
    KERNEL,
    activation,
    attention,
    biased,
    eps,
    head_dim,
    layer_count,
    rope,
    target,
    top_experts,
)
from .experts import sigmoid_experts
from .spec import Absent, DenseSpec, ExpertsSpec, LayerSpec, MambaSpec, Names, TargetSpec

KINDS = {"linear_attention": "mamba", "full_attention": "attention"}  # as transformers calls them since version 5
SIGNS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def granite(config: ConfigReader) -> TargetSpec:
    """Granite 4: Granite's multipliers, Mamba-2 between a few attention layers; a shared MLP, beside experts or alone."""
    mamba = _granite_mamba(config)
    turns = config.has("position_embedding_type") and config.word("position_embedding_type") == "rope"
    full = attention(
        config,
        rope=rope(config, head_dim(config)) if turns else None,
        scale=config.factor("attention_multiplier"),
        **biased(config),
    )
    shared, count = config.integer("shared_intermediate_size"), config.integer("num_local_experts", 0, EXPERTS, 0)
    channel: DenseSpec | ExpertsSpec = DenseSpec(shared, activation(config))
    if count:
        channel = ExpertsSpec(
            count,
            top_experts(config, count, "num_experts_per_tok"),
            config.integer("intermediate_size"),
            activation(config),
            "after",
            shared=shared,
        )
    types = _named(config.words("layer_types", (*KINDS, "mamba", "attention"), layer_count(config)))
    return target(
        config,
        "granitemoehybrid",
        [LayerSpec(mamba if kind == "mamba" else full, channel) for kind in types],
        names=Names(mlp="block_sparse_moe" if count else "shared_mlp", gate_up="input_linear", down="output_linear"),
        embed_scale=config.factor("embedding_multiplier", 1.0),
        residual_scale=config.factor("residual_multiplier", 1.0),
        logit_scale=1.0 / config.factor("logits_scaling", 1.0),
    )


def _named(told: list[str]) -> list[str]:
    """Names of blocks, from one of two dialects."""
    return [KINDS.get(kind, kind) for kind in told]


def _unbounded(config: ConfigReader) -> None:
    """Refuse models whose time steps were bounded in training; those that are published were not."""
    key = "time_step_limit"
    if config.has(key):
        low, high = config.interval(key)
        if low > 0 or high != float("inf"):
            config.wrong(key, "time steps are not bounded here")


def _granite_mamba(config: ConfigReader) -> MambaSpec:
    _unbounded(config)
    heads, groups = config.integer("mamba_n_heads", 1, HEADS), config.integer("mamba_n_groups", 1, HEADS)
    divides(config, ("mamba_n_groups", groups), ("mamba_n_heads", heads))
    if config.is_word("mamba_d_head", "auto") or not config.has("mamba_d_head"):
        size = config.integer("mamba_expand", 1, 1 << 10) * config.integer("hidden_size") // heads
        if size < 1:
            config.wrong("mamba_n_heads", "there is no width left for each of them")
    else:
        size = config.integer("mamba_d_head", 1, HEAD)
    return MambaSpec(
        heads,
        size,
        groups,
        config.integer("mamba_d_state", 1, HEAD),
        config.integer("mamba_d_conv", 1, KERNEL),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias"),
        norm_groups=groups,
    )


def nemotron(config: ConfigReader) -> TargetSpec:
    """Nemotron-H and Nemotron 3: one mixer a block, attention without position, MLPs and experts of squared relu.

    `time_step_min`, `time_step_max` and `time_step_floor` only set the range that time steps were initialised in. transformers
    5 clamps the time step at `time_step_min` in each pass; mamba_ssm, by which these models were trained, and vLLM do not: their
    `dt_limit` is (0, inf). So no value of these keys is read here, and logits differ from those of transformers where a time step
    is below it.
    """
    if config.has("moe_latent_size") and config.integer("moe_latent_size", 0):
        config.fail("describes latent experts (moe_latent_size), which Outrider cannot run")
    size = head_dim(config, config.first("head_dim", "attention_head_dim"))
    blocks = {
        "mamba": LayerSpec(_nemotron_mamba(config), Absent()),
        "attention": LayerSpec(attention(config, rope=None, head_dim=size), Absent()),
    }
    kinds = _nemotron_kinds(config)
    if "mlp" in kinds:
        width, bias = config.integer("intermediate_size"), config.flag("mlp_bias")
        blocks["mlp"] = LayerSpec(Absent(), DenseSpec(width, "relu2", bias))
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
        eps=eps(config, "layer_norm_epsilon", 1e-5),
    )


def _nemotron_kinds(config: ConfigReader) -> list[str]:
    """Names of all blocks; their number need not be said elsewhere."""
    if config.has("layers_block_type"):
        found = _named(config.words("layers_block_type", (*KINDS, *SIGNS, *SIGNS.values())))
    else:
        found = list(config.word("hybrid_override_pattern"))
    key = config.first("layers_block_type", "hybrid_override_pattern")
    made = [SIGNS.get(kind, kind) for kind in found]
    if not 1 <= len(made) <= LAYERS or not set(made) <= set(SIGNS.values()):
        config.wrong(key, f"it must name a block by one of {', '.join(SIGNS)} for each layer")
    if config.has("num_hidden_layers") and layer_count(config) != len(made):
        config.wrong("num_hidden_layers", f"{key} names {len(made)} layers")
    return made


def _nemotron_mamba(config: ConfigReader) -> MambaSpec:
    _unbounded(config)
    heads, groups = config.integer("mamba_num_heads", 1, HEADS), config.integer("n_groups", 1, HEADS)
    divides(config, ("n_groups", groups), ("mamba_num_heads", heads))
    return MambaSpec(
        heads,
        config.integer("mamba_head_dim", 1, HEAD),
        groups,
        config.integer("ssm_state_size", 1, HEAD),
        config.integer("conv_kernel", 1, KERNEL),
        conv_bias=config.flag("use_conv_bias", True),
        bias=config.flag("use_bias"),
        norm_groups=groups,
    )


def _nemotron_experts(config: ConfigReader) -> ExpertsSpec:
    """`mlp_bias` gives biases to the shared branch, not to the experts."""
    shared = config.integer("n_shared_experts", 0, EXPERTS, 0)
    return sigmoid_experts(
        config,
        activation="relu2",
        shared=config.integer("moe_shared_expert_intermediate_size") if shared else 0,
        shared_bias=config.flag("mlp_bias"),
    )
