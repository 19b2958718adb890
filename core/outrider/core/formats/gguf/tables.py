"""GGUF names and published names, and what the converter changed, one entry for each architecture.

A key is the stored name below `blk.N.` with or without its ending; without, `.weight` and `.bias` keep theirs. A value is the
published name below `model.layers.N.`, or a whole one where it begins with `mtp.`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import places, settings
from .metadata import Metadata
from .places import Rule

OUTER = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
ASIDE = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}  # go into the config

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = {**_ATTENTION, **_DENSE, "ffn_norm": "post_attention_layernorm"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA = {**_ATTENTION, **_HEAD_NORMS, **_DENSE, **_SANDWICH}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_up_exps": "mlp.experts.*.?_proj",
}
_SIGMOID = {
    **_EXPERTS,
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_QWEN_EXPERTS = {
    **_EXPERTS,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_DELTA = {
    **_ATTENTION,
    **_HEAD_NORMS,
    **_DENSE,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}
_QWEN3_5 = {**_DELTA, "ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b"}

_PAIRS = {"attn_q": places.halves("num_attention_heads"), "attn_k": places.halves("num_key_value_heads")}
_STACKED = {
    "ffn_gate_exps": places.experts(),
    "ffn_up_exps": places.experts(),
    "ffn_down_exps": places.experts(),
    "ffn_gate_up_exps": places.experts(("gate", "up")),
}
_SANDWICH_SHIFTED = dict.fromkeys(("attn_norm", *_SANDWICH), places.minus_one)
_DELTA_SHIFTED = dict.fromkeys(
    (
        *("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm"),
        *("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"),
    ),
    places.minus_one,
)
_DELTA_RULES = {
    **_DELTA_SHIFTED,
    **_STACKED,
    "ffn_gate_inp_shexp": places.one_row,
    "ssm_a": places.decay,
    "ssm_conv1d": places.filters,
    "ssm_ba": places.beta_and_alpha,
}
_QWEN3_5_RULES = {
    **_DELTA_RULES,
    "attn_qkv": places.grouped(places.plain, "linear_value_head_dim"),
    "attn_gate": places.grouped(places.plain, "linear_value_head_dim"),
    "ssm_conv1d": places.grouped(places.filters, "linear_value_head_dim"),
    "ssm_alpha": places.grouped(places.plain),
    "ssm_beta": places.grouped(places.plain),
    "ssm_a": places.grouped(places.decay),
    "ssm_dt.bias": places.grouped(places.plain),
    "ssm_out": places.grouped_inputs,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one GGUF architecture is called when published, how its metadata, its names and its numbers are read."""

    model_type: str
    title: str  # the class name that published configs give
    settings: Callable[[Metadata], dict[str, Any]] = settings.plain
    block: Mapping[str, str] = field(default_factory=lambda: _LLAMA)
    rules: Mapping[str, Rule] = field(default_factory=dict)  # keys as in `block` and OUTER; the others are plain
    experts: bool = False  # files with experts are read


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", rules=_PAIRS),
    "mistral3": Architecture("ministral3", "Ministral3ForCausalLM", settings.mistral3, rules=_PAIRS),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", block={**_LLAMA, **_HEAD_NORMS}),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        settings.qwen3_moe,
        {**_LLAMA, **_HEAD_NORMS, **_EXPERTS},
        _STACKED,
        experts=True,
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        settings.qwen3_next,
        {
            **_DELTA,
            **_QWEN_EXPERTS,
            "ssm_ba": "linear_attn.in_proj_ba",
        },
        _DELTA_RULES,
        experts=True,
    ),
    "qwen35": Architecture("qwen3_5", "Qwen3_5ForCausalLM", settings.qwen3_next, _QWEN3_5, _QWEN3_5_RULES),
    "qwen35moe": Architecture(
        "qwen3_5_moe",
        "Qwen3_5MoeForCausalLM",
        settings.qwen3_next,
        {**_QWEN3_5, **_QWEN_EXPERTS},
        _QWEN3_5_RULES,
        experts=True,
    ),
    "gemma3": Architecture(
        "gemma3",
        "Gemma3ForCausalLM",
        settings.gemma3,
        _GEMMA,
        {**_SANDWICH_SHIFTED, **dict.fromkeys((*_HEAD_NORMS, "output_norm"), places.minus_one)},
    ),
    "gemma4": Architecture(
        "gemma4",
        "Gemma4ForCausalLM",
        settings.gemma4,
        {
            **_GEMMA,
            **{stored: name.removeprefix("mlp.") for stored, name in _EXPERTS.items()},
            "ffn_gate_inp.weight": "router.proj.weight",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "layer_output_scale.weight": "layer_scalar",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
        },
        _STACKED,
        experts=True,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        settings.gpt_oss,
        {
            **_ATTENTION,
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps.weight": "mlp.experts.gate_up_proj",
            "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
            "ffn_up_exps": "mlp.experts.up_proj",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        {
            "ffn_gate_exps.weight": places.interleaved,
            "ffn_gate_exps.bias": places.interleaved,
            "ffn_up_exps": places.absent,
            "ffn_down_exps.weight": places.turned,
        },
        experts=True,
    ),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", rules=_PAIRS),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        settings.phi3,
        {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "granite": Architecture("granite", "GraniteForCausalLM", settings.granite, rules=_PAIRS),
    "olmo2": Architecture(
        "olmo2",
        "Olmo2ForCausalLM",
        settings.olmo,
        {
            **_ATTENTION,
            **_HEAD_NORMS,
            **_DENSE,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
    "glm4": Architecture(
        "glm4",
        "Glm4ForCausalLM",
        settings.glm4,
        {
            **_LLAMA,
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        settings.glm4_moe,
        {**_LLAMA, **_HEAD_NORMS, **_SIGMOID, "post_attention_norm": "post_attention_layernorm"},
        _STACKED,
        experts=True,
    ),
    "deepseek2": Architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        settings.deepseek,
        {
            **_LLAMA,
            **_SIGMOID,
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_k_b": "self_attn.kv_b_proj",
            "attn_v_b": "self_attn.v_b_proj",
            "attn_kv_b": "self_attn.kv_b_proj",  # files from before the two were split
        },
        {**_STACKED, "attn_k_b": places.key_value_up, "attn_v_b": places.absent},
        experts=True,
    ),
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        settings.lfm2,
        {
            **_ATTENTION,
            "attn_norm": "operator_norm",
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.conv": "conv.conv",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_norm": "ffn_norm",
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
        },
        {"shortconv.conv": places.filters},
    ),
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", settings.cohere2, {**_ATTENTION, **_DENSE}),
    "muse-glimmer": Architecture(
        "muse_glimmer",
        "MuseGlimmerForConditionalGeneration",
        settings.muse_glimmer,
        {**_GEMMA, "attn_gate": "self_attn.gate_proj"},
        {**_PAIRS, **_SANDWICH_SHIFTED, **dict.fromkeys(_HEAD_NORMS, places.absent)},
    ),
}
