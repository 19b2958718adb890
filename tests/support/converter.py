"""A converter from a published checkpoint to GGUF, for the families of the golden checkpoints: what llama.cpp's does to names,
metadata and weights, done in our own words and in float32.

Letters: `E` experts, `H` heads, `h` head size, `r` value heads of one key head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf_writer import write_gguf
from torch import Tensor

Config = Mapping[str, Any]
Named = Iterator[tuple[str, Tensor]]

ARCHITECTURES = {
    **{"llama": "llama", "mistral": "llama", "ministral3": "mistral3", "qwen2": "qwen2", "qwen3": "qwen3"},
    **{"qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"},
    **{"gemma3": "gemma3", "gemma4": "gemma4", "gpt_oss": "gpt-oss", "smollm3": "smollm3", "phi3": "phi3"},
    **{"granite": "granite", "olmo2": "olmo2", "olmo3": "olmo2", "glm4": "glm4", "glm4_moe": "glm4moe"},
    **{"deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "lfm2": "lfm2", "cohere2": "cohere2"},
    "muse_glimmer": "muse-glimmer",
}
PAIRED = {"llama", "mistral3", "smollm3", "granite", "muse-glimmer"}  # queries and keys have their rows in pairs
PLUS_ONE = {"gemma3", "qwen3next", "qwen35", "qwen35moe"}
SLIDING = {"gemma3", "gemma4", "gpt-oss", "cohere2", "olmo2", "phi3", "muse-glimmer"}
PATTERN = {"gemma4", "olmo2", "muse-glimmer"}  # the file says which layers slide

KEYS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "output_multiplier": "logit_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "conv_L_cache": "shortconv.l_cache",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "v_head_dim": "attention.value_length_mla",
}

OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
BLOCK = {
    **{"input_layernorm": "attn_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm"},
    **{"post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm"},
    **{"post_feedforward_layernorm": "post_ffw_norm", "pre_feedforward_layernorm_2": "pre_ffw_norm_2"},
    **{f"post_feedforward_layernorm_{n}": f"post_ffw_norm_{n}" for n in (1, 2)},
    **{"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in ("q", "k", "v", "qkv", "gate", "q_a", "q_b")},
    **{f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"},
    **{f"self_attn.{x}_layernorm": f"attn_{x}_norm" for x in ("q", "k", "q_a", "kv_a")},
    **{"self_attn.o_proj": "attn_output", "self_attn.out_proj": "attn_output", "self_attn.sinks": "attn_sinks.weight"},
    **{"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa"},
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
    **{f"feed_forward.w{n}": f"ffn_{x}" for n, x in ((1, "gate"), (2, "down"), (3, "up"))},
    **{"mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp"},
    **{"mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"},
    **{f"mlp.shared_expert{s}.{x}_proj": f"ffn_{x}_shexp" for s in ("", "s") for x in ("gate", "up", "down")},
    **{f"mlp.experts.{x}_proj": f"ffn_{x}_exps" for x in ("gate", "up", "down")},
    **{
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
        "layer_scalar": "layer_output_scale.weight",
    },
    **{"router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight"},
    **{"experts.down_proj": "ffn_down_exps.weight", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj"},
    **{"post_per_layer_input_norm": "post_norm", "conv.conv": "shortconv.conv"},
    **{f"conv.{x}_proj": f"shortconv.{x}_proj" for x in ("in", "out")},
    **{"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_ba": "ssm_ba"},
    **{"linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.conv1d": "ssm_conv1d"},
    **{"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm": "ssm_norm"},
    **{"linear_attn.out_proj": "ssm_out", "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm"},
    **{"embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head"},
    **{"shared_head.norm": "nextn.shared_head_norm"},
}
MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
BEFORE_MLP = {"llama", "mistral3", "qwen2", "qwen3", "qwen3moe", "smollm3", "phi3", "granite", "deepseek2", "glm4"}


def convert(config: Config, tensors: Mapping[str, Tensor], path: Path) -> Path:
    """The GGUF file of a checkpoint; `config` has the text settings on top."""
    kind = ARCHITECTURES[str(config["model_type"]).removesuffix("_text")]
    stored = dict(_stacked(_tensors(kind, config, tensors)))
    layers = 1 + max(int(name.split(".")[1]) for name in stored if name.startswith("blk."))
    stored |= _rope_rows(kind, config)
    settings = _settings(kind, config) | {"block_count": layers}
    if layers > config["num_hidden_layers"]:
        settings["nextn_predict_layers"] = layers - config["num_hidden_layers"]
    named = {f"{kind}.{key}": value for key, value in settings.items() if value is not None}
    rows = {name: (tuple(t.shape), "F32", t.float().contiguous().numpy().tobytes()) for name, t in stored.items()}
    return write_gguf(path, {"general.architecture": kind, **named, **_vocabulary(config["vocab_size"])}, rows)


def _vocabulary(size: int) -> dict[str, Any]:
    signs = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*signs, *(f"[{i}]" for i in range(size))][:size],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": ["a b"],
    }


# ---------------------------------------------------------------------- metadata


def _settings(kind: str, config: Config) -> dict[str, Any]:
    found = {stored: config[key] for key, stored in KEYS.items() if config.get(key) is not None}
    slides = [layer == "sliding_attention" for layer in config.get("layer_types") or []]
    if kind in SLIDING and config.get("sliding_window"):
        found["attention.sliding_window"] = config["sliding_window"]
        if kind in PATTERN:
            found["attention.sliding_window_pattern"] = slides
    if "linear_num_value_heads" in config:
        found["ssm.inner_size"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        found["attention.recurrent_layers"] = [layer == "linear_attention" for layer in config["layer_types"]]
    if kind == "lfm2":
        heads = config["num_key_value_heads"]
        found["attention.head_count_kv"] = [0 if layer == "conv" else heads for layer in config["layer_types"]]
    elif kind == "gpt-oss":
        found["expert_feed_forward_length"] = config["intermediate_size"]
    elif kind == "deepseek2":
        found |= _latent(config)
    elif kind == "gemma4":
        found |= _gemma4(config, slides)
    elif kind == "mistral3":
        found["attention.temperature_scale"] = config["rope_parameters"]["llama_4_scaling_beta"]
    return found | _rope(kind, config)


def _latent(config: Config) -> dict[str, Any]:
    rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turning,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turning,
        "expert_gating_func": 2,
    }


def _gemma4(config: Config, slides: list[bool]) -> dict[str, Any]:
    shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
    own = next(iter(config["per_layer_config"].values()))
    heads = config["num_key_value_heads"]
    widths = [width * (1 + (i >= len(slides) - shared)) for i in range(len(slides))]
    return {
        "attention.key_length": own["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.head_count_kv": [heads if slid else own.get("num_key_value_heads", heads) for slid in slides],
        "feed_forward_length": widths if config["use_double_wide_mlp"] else width,
    }


def _rope(kind: str, config: Config) -> dict[str, Any]:
    told = config["rope_parameters"]
    rope = told.get("full_attention", told)
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = {"rope.freq_base": float(rope["rope_theta"])}
    if kind == "deepseek2":
        found["rope.dimension_count"] = config["qk_rope_head_dim"]
    elif kind != "gemma4":
        share = 0.5 if kind in ("glm4", "glm4moe") else 1.0
        found["rope.dimension_count"] = int(size * rope.get("partial_rotary_factor", share))
    if "sliding_attention" in told:
        found["rope.freq_base_swa"] = float(told["sliding_attention"]["rope_theta"])
    scaling = rope.get("rope_type")
    if scaling in ("linear", "yarn"):
        found |= {"rope.scaling.type": scaling, "rope.scaling.factor": rope["factor"]}
    if scaling in ("yarn", "longrope"):
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    for key, stored in {
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
        "attention_factor": "yarn_attn_factor",
    }.items():
        if scaling == "yarn" and rope.get(key) is not None:
            found[f"rope.scaling.{stored}"] = float(rope[key])
    if rope.get("mscale_all_dim") is not None:
        found["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"] * (0.1 if kind == "deepseek2" else 1.0)
    return found


def _rope_rows(kind: str, config: Config) -> dict[str, Tensor]:
    told = config["rope_parameters"]
    rope = told.get("full_attention", told)
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{x}.weight": torch.tensor(rope[f"{x}_factor"]) for x in ("long", "short")}
    if rope.get("rope_type") == "proportional":
        half = next(iter(config["per_layer_config"].values()))["head_dim"] // 2
        turning = int(half * rope["partial_rotary_factor"])
        return {"rope_freqs.weight": torch.tensor([1.0] * turning + [1e30] * (half - turning))}
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3(rope, config["head_dim"])}
    return {}


def _llama3(rope: Config, size: int) -> Tensor:
    wavelengths = 2 * math.pi * float(rope["rope_theta"]) ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    turns = rope["original_max_position_embeddings"] / wavelengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / rope["factor"] + smooth)


# ---------------------------------------------------------------------- tensors


def _tensors(kind: str, config: Config, tensors: Mapping[str, Tensor]) -> Named:
    """Stored names with what they hold; single experts still apart, as `NAME@EXPERT`."""
    for name, tensor in tensors.items():
        name = re.sub(r"^mtp\.layers\.0\.", f"model.layers.{config['num_hidden_layers']}.", name)
        name = re.sub(r"^mtp\.(\w+)\.", lambda m: f"model.layers.{config['num_hidden_layers']}.{MTP[m[1]]}.", name)
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        stem, _, ending = name.rpartition(".")
        if match:
            for stored, part in _block(kind, config, match[2], tensor):
                yield f"blk.{match[1]}.{stored}", part
        elif stem in OUTER:
            yield f"{OUTER[stem]}.{ending}", tensor + 1 if kind in PLUS_ONE and stem == "model.norm" else tensor


def _stacked(named: Named) -> Named:
    groups: dict[str, list[Tensor]] = {}
    for name, tensor in named:
        if "@" in name:
            groups.setdefault(name.partition("@")[0], []).append(tensor)
        else:
            yield name, tensor
    yield from ((name, torch.stack(tensors)) for name, tensors in groups.items())


def _block(kind: str, config: Config, name: str, tensor: Tensor) -> Named:
    """One tensor of a layer, below the layer's own prefix."""
    if name.startswith("linear_attn."):
        yield from _delta(kind, config, name, tensor)
    elif name == "self_attn.kv_b_proj.weight":
        each = tensor.view(config["num_attention_heads"], -1, tensor.shape[1])
        nope = config["qk_nope_head_dim"]
        yield "attn_k_b.weight", each[:, :nope].transpose(1, 2)
        yield "attn_v_b.weight", each[:, nope:]
    elif kind == "gpt-oss" and name.startswith("mlp.experts."):
        yield from _gpt_oss(name, tensor)
    elif name == "mlp.experts.gate_up_proj":
        gate, up = tensor.chunk(2, 1)
        yield "ffn_gate_exps.weight", gate
        yield "ffn_up_exps.weight", up
    elif name == "mlp.experts.down_proj":
        yield "ffn_down_exps.weight", tensor
    else:
        yield from _plain(kind, config, name, tensor)


def _plain(kind: str, config: Config, name: str, tensor: Tensor) -> Named:
    expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(\w+)\.weight", name)
    if expert:
        yield f"{BLOCK['mlp.experts.' + expert[2]]}.weight@{expert[1]}", tensor
        return
    stem, _, ending = name.rpartition(".")
    table = BLOCK if kind in BEFORE_MLP else BLOCK | {"post_attention_layernorm": "post_attention_norm"}
    stored = table.get(name) or f"{table[stem]}.{ending}"
    if kind in PAIRED and stored.startswith(("attn_q.", "attn_k.")):
        heads = config["num_attention_heads" if stored[5] == "q" else "num_key_value_heads"]
        tensor = tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        if kind == "muse-glimmer":
            size = config["head_dim"]
            yield (
                f"{stored[:6]}_norm.weight",
                torch.full((size,), config["qk_scale_factor"] if stored[5] == "q" else 1.0),
            )
    if (kind in PLUS_ONE and name.endswith("norm.weight")) or (
        kind == "muse-glimmer" and name.endswith("layernorm.weight")
    ):
        tensor = tensor + 1
    yield stored, tensor.squeeze(1) if stored == "shortconv.conv.weight" else tensor


def _gpt_oss(name: str, tensor: Tensor) -> Named:
    part, _, bias = name.removeprefix("mlp.experts.").partition("_proj")
    ending = "bias" if bias else "weight"
    if part == "down":
        yield f"ffn_down_exps.{ending}", tensor if bias else tensor.transpose(1, 2)
        return
    for turn, half in enumerate(("gate", "up")):
        rows = tensor[..., turn::2]
        yield f"ffn_{half}_exps.{ending}", rows if bias else rows.transpose(1, 2)


def _delta(kind: str, config: Config, name: str, tensor: Tensor) -> Named:
    stem = name if name in BLOCK else name.rpartition(".")[0]
    stored = BLOCK.get(stem, "") + ("" if name in BLOCK else ".weight")
    keys, dk, dv = config["linear_num_key_heads"], config["linear_key_head_dim"], config["linear_value_head_dim"]
    r = config["linear_num_value_heads"] // keys
    if stem.endswith("qkvz"):
        q, k, v, z = tensor.view(keys, -1, tensor.shape[1]).split([dk, dk, r * dv, r * dv], 1)
        yield "attn_qkv.weight", torch.cat([part.flatten(0, 1) for part in (q, k, v)])
        yield "attn_gate.weight", z.flatten(0, 1)
        return
    if stored == "ssm_a":
        tensor = -tensor.exp()
    elif stored == "ssm_conv1d.weight":
        tensor = tensor.squeeze(1)
    if kind != "qwen3next" and stored == "ssm_out.weight":
        tensor = tensor.view(-1, keys, r, dv).transpose(1, 2).reshape(tensor.shape)
    elif kind != "qwen3next" and stored != "ssm_norm.weight":
        first = 2 * keys * dk if stored in ("attn_qkv.weight", "ssm_conv1d.weight") else 0
        values = tensor[first:].view(keys, r, -1, *tensor.shape[1:]).transpose(0, 1)
        tensor = torch.cat((tensor[:first], values.reshape(-1, *tensor.shape[1:])))
    yield stored, tensor
