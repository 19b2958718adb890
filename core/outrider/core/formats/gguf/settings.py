"""From the metadata of a GGUF file to a published config, one function for each group of architectures.

Where the file says nothing, what holds for every model of the architecture is filled in.
"""

from __future__ import annotations

import math
from typing import Any

from outrider.core.base.errors import BrokenFileError

from .metadata import Metadata
from .reader import AGAIN

Config = dict[str, Any]


def plain(read: Metadata) -> Config:
    """Grouped-query attention, one rope and a gated MLP."""
    return {
        **attention(read),
        **rope(read, head_dim(read)),
        "intermediate_size": read.count("feed_forward_length"),
        "num_key_value_heads": read.count("attention.head_count_kv", read.heads),
        "mlp_bias": read.has("ffn_down.bias"),
    }


def attention(read: Metadata) -> Config:
    """What also those share whose layers differ in heads and widths."""
    return {
        "head_dim": head_dim(read),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": any(read.having("attn_q.bias")),
    }


def head_dim(read: Metadata) -> int:
    """Size of a head."""
    return read.count("attention.key_length", read.width // read.heads)


def rope(read: Metadata, size: int) -> Config:
    """The rope keys of a published config, for heads of `size`."""
    found: Config = {"rope_theta": read.number("rope.freq_base", 10000.0)}
    turning = read.count("rope.dimension_count", size)
    if turning > size or turning % 2:
        read.fail("rope.dimension_count", turning)
    share = turning / size
    found["partial_rotary_factor"] = share if int(size * share) == turning else math.nextafter(share, 1)
    scaling = _scaling(read, turning)
    if scaling:
        found["rope_scaling"] = scaling
    divisors = read.row("rope_freqs.weight")
    if divisors is not None:
        _check_row(read, "rope_freqs.weight", divisors, turning)
        found["rope_freqs"] = divisors
    return found


def _scaling(read: Metadata, turning: int) -> Config:
    long, short = read.row("rope_factors_long.weight"), read.row("rope_factors_short.weight")
    if long and short:
        return _long(read, turning, long, short)
    kind = read.get("rope.scaling.type", "linear")
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 1.0))
    if kind == "linear" and factor not in (0.0, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(read, factor)
    if kind not in ("linear", "none"):
        read.refuse(f"scales its positions by {kind!r}")
    return {}


def _long(read: Metadata, turning: int, long: list[float], short: list[float]) -> Config:
    for name, row in (("long", long), ("short", short)):
        _check_row(read, f"rope_factors_{name}.weight", row, turning)
    found = {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": read.count("rope.scaling.original_context_length"),
    }
    attention_factor = read.maybe("rope.scaling.attn_factor")
    return found if attention_factor is None else {**found, "attention_factor": attention_factor}


def _yarn(read: Metadata, factor: float) -> Config:
    found: Config = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": read.count("rope.scaling.original_context_length"),
        "beta_fast": read.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": read.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    attention_factor = read.maybe("rope.scaling.yarn_attn_factor")
    if attention_factor is not None:
        found["attention_factor"] = attention_factor
    multiplier = read.maybe("rope.scaling.yarn_log_multiplier")
    if multiplier is not None:
        found |= {"mscale": 1.0, "mscale_all_dim": multiplier}
    return found


def _check_row(read: Metadata, name: str, row: list[float], turning: int) -> None:
    if 2 * len(row) != turning or not all(0 < abs(value) < 1e38 for value in row):
        raise BrokenFileError(f"{read.file.path}: {name} does not fit {turning} rotated dims.", AGAIN)


def mistral3(read: Metadata) -> Config:
    """Queries may grow with the position."""
    found = plain(read)
    beta = read.maybe("attention.temperature_scale")
    if beta:
        if "rope_scaling" not in found:
            read.fail("rope.scaling.type", None)
        found["rope_scaling"]["llama_4_scaling_beta"] = beta
    return found


def phi3(read: Metadata) -> Config:
    """A window on every layer in some sizes; 0 stands for none."""
    return {**plain(read), "sliding_window": read.whole("attention.sliding_window", 0) or None}


def granite(read: Metadata) -> Config:
    """Four multipliers."""
    found = plain(read)
    if read.get("rope.scaling.finetuned") is False:
        read.refuse("is a Granite without positions")
    return {
        **found,
        "attention_multiplier": read.number("attention.scale", found["head_dim"] ** -0.5),
        "embedding_multiplier": read.number("embedding_scale", 1.0),
        "residual_multiplier": read.number("residual_scale", 1.0),
        "logits_scaling": read.number("logit_scale"),
    }


def olmo(read: Metadata) -> Config:
    """OLMo 2, or 3 where layers slide."""
    window = read.whole("attention.sliding_window", 0)
    if not window:
        return plain(read)
    return {**plain(read), "model_type": "olmo3", "sliding_window": window, "layer_types": read.kinds(4)}


def glm4(read: Metadata) -> Config:
    """Language models only: those with three-dimensional positions keep their rows in another order."""
    sections = read.get("rope.dimension_sections")
    if isinstance(sections, list) and any(sections):
        read.refuse("has three-dimensional positions")
    return plain(read)


def cohere2(read: Metadata) -> Config:
    """Centred norms, a scale on the logits, the head tied."""
    size = head_dim(read)
    return {
        **rope(read, size),
        "head_dim": size,
        "hidden_act": "silu",
        "attention_bias": any(read.having("attn_q.bias")),
        "intermediate_size": read.count("feed_forward_length"),
        "num_key_value_heads": read.count("attention.head_count_kv", read.heads),
        "layer_norm_eps": read.number("attention.layer_norm_epsilon"),
        "logit_scale": read.number("logit_scale"),
        "sliding_window": read.count("attention.sliding_window"),
        "layer_types": read.kinds(4),
        "tie_word_embeddings": True,
    }


def lfm2(read: Metadata) -> Config:
    """Convolutions where a layer has no key heads."""
    heads = read.each("attention.head_count_kv")
    kinds = {count for count in heads if count}
    if len(kinds) != 1:
        read.fail("attention.head_count_kv", heads)
    size = head_dim(read)
    return {
        **rope(read, size),
        "head_dim": size,
        "intermediate_size": read.count("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "num_key_value_heads": kinds.pop(),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": read.count("shortconv.l_cache"),
        "norm_eps": read.number("attention.layer_norm_rms_epsilon"),
    }


def muse_glimmer(read: Metadata) -> Config:
    """The factor of queries stands in norm weights that the converter made up."""
    factor = read.row("blk.0.attn_q_norm.weight") or [0.0]
    for layer in range(read.layers):
        queries, keys = (read.row(f"blk.{layer}.attn_{letter}_norm.weight") or [] for letter in "qk")
        if set(queries) != {factor[0]} or set(keys) != {1.0}:
            read.refuse("scales its queries and keys one by one")
    return {
        **plain(read),
        "qk_scale_factor": float(f"{factor[0]:.7g}"),
        "post_norm_eps": 1e-8,
        "output_multiplier": read.number("logit_scale"),
        "final_logit_softcapping": read.maybe("final_logit_softcapping"),
        "sliding_window": read.count("attention.sliding_window"),
        "layer_types": read.kinds(4),
    }


def gemma3(read: Metadata) -> Config:
    """Five sliding layers to one full; scaled rope on the full ones. Only the largest has another scale than its head size."""
    found = plain(read)
    window = read.whole("attention.sliding_window", 0)
    return {
        **found,
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": read.width // read.heads if read.layers == 62 else found["head_dim"],
        "rope_local_base_freq": read.number("rope.freq_base_swa", 10000.0),
        "sliding_window": window or None,
        "layer_types": read.kinds(6) if window else ["full_attention"] * read.layers,
        "final_logit_softcapping": read.maybe("final_logit_softcapping"),
    }


def gemma4(read: Metadata) -> Config:
    """Heads differ by kind of layer, and some sizes have experts, an extra embedding or shared keys and values."""
    types = read.kinds(6)
    shared = read.whole("attention.shared_kv_layers", 0)
    return {
        **attention(read),
        **_gemma4_heads(read, types),
        **_gemma4_widths(read, shared),
        **_gemma4_rope(read),
        "head_dim": read.count("attention.key_length_swa"),
        "global_head_dim": head_dim(read),
        "hidden_act": "gelu_pytorch_tanh",
        "layer_types": types,
        "num_kv_shared_layers": shared,
        "sliding_window": read.count("attention.sliding_window"),
        "hidden_size_per_layer_input": read.whole("embedding_length_per_layer_input", 0),
        "final_logit_softcapping": read.maybe("final_logit_softcapping"),
    }


def _gemma4_heads(read: Metadata, types: list[str]) -> Config:
    """Key heads by kind; full layers that have keys and no values use the keys for both."""
    heads, values, keys = (
        read.each("attention.head_count_kv"),
        read.having("attn_v.weight"),
        read.having("attn_k.weight"),
    )
    found: dict[str, set[tuple[int, bool]]] = {"full_attention": set(), "sliding_attention": set()}
    for kind, count, own, value in zip(types, heads, keys, values, strict=True):
        if own:
            found[kind].add((count, not value))
    full, sliding = found.values()
    if max(len(full), len(sliding)) > 1 or any(same for _, same in sliding):
        read.refuse("has layers of one kind with different key heads")
    slid = sliding.pop() if sliding else (heads[0], False)
    count, same = full.pop() if full else slid
    if not same and count != slid[0]:
        read.refuse("has other key heads on full layers, and values of their own")
    return {"num_key_value_heads": slid[0], "num_global_key_value_heads": count, "attention_k_eq_v": same}


def _gemma4_widths(read: Metadata, shared: int) -> Config:
    widths = read.each("feed_forward_length")
    double = widths[0] > 0 and widths[-1] == 2 * widths[0]
    if widths != [widths[0] * (2 if double and i >= read.layers - shared else 1) for i in range(read.layers)]:
        read.fail("feed_forward_length", widths)
    found: Config = {"intermediate_size": widths[0], "use_double_wide_mlp": double}
    if read.whole("expert_count", 0):
        found |= {
            "enable_moe_block": True,
            "num_experts": read.count("expert_count"),
            "top_k_experts": read.count("expert_used_count"),
            "moe_intermediate_size": read.count("expert_feed_forward_length"),
        }
    return found


def _gemma4_rope(read: Metadata) -> Config:
    """On full layers a share of the pairs turns; divisors that are huge stop the others."""
    size = head_dim(read)
    divisors = read.row("rope_freqs.weight") or [1.0] * (size // 2)
    turning = divisors.count(1.0)
    if (
        2 * len(divisors) != size
        or divisors[:turning].count(1.0) != turning
        or min(divisors[turning:], default=1e30) < 1e29
    ):
        raise BrokenFileError(f"{read.file.path}: rope_freqs.weight does not fit heads of {size}.", AGAIN)
    return {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": read.number("rope.freq_base", 1e6),
                "partial_rotary_factor": 2 * turning / size,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": read.number("rope.freq_base_swa", 10000.0)},
        }
    }


def qwen3_moe(read: Metadata) -> Config:
    """Experts on every layer that has a router."""
    return {**plain(read), **_softmax_experts(read)}


def _softmax_experts(read: Metadata) -> Config:
    return {
        "num_experts": read.count("expert_count"),
        "num_experts_per_tok": read.count("expert_used_count"),
        "moe_intermediate_size": read.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "mlp_only_layers": [i for i, routed in enumerate(read.having("ffn_gate_inp.weight")) if not routed],
    }


def qwen3_next(read: Metadata) -> Config:
    """Qwen3-Next and Qwen3.5: gated delta nets between full attention; experts in some."""
    keys, values = read.count("ssm.group_count"), read.count("ssm.time_step_rank")
    inner = read.count("ssm.inner_size")
    if values % keys or inner % values:
        read.fail("ssm.time_step_rank", values)
    found = {
        **plain(read),
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": read.count("ssm.state_size"),
        "linear_value_head_dim": inner // values,
        "linear_conv_kernel_dim": read.count("ssm.conv_kernel"),
        "layer_types": _recurrent(read),
    }
    if read.whole("expert_count", 0):
        found |= _softmax_experts(read)
        found["shared_expert_intermediate_size"] = read.count("expert_shared_feed_forward_length")
    if read.has("nextn.eh_proj.weight", read.layers):
        found["mtp_num_hidden_layers"] = read.nextn
    return found


def _recurrent(read: Metadata) -> list[str]:
    every = read.count("full_attention_interval", 4)
    key = "attention.recurrent_layers"
    told = read.each(key) if read.get(key) is not None else [(i + 1) % every != 0 for i in range(read.layers)]
    return ["linear_attention" if recurrent else "full_attention" for recurrent in told]


def gpt_oss(read: Metadata) -> Config:
    """Every other layer slides; the published rope does not round the corners of its ramp."""
    found = plain(read)
    if found.get("rope_scaling", {}).get("rope_type") == "yarn":
        found["rope_scaling"]["truncate"] = False
    return {
        **found,
        "num_local_experts": read.count("expert_count"),
        "num_experts_per_tok": read.count("expert_used_count"),
        "intermediate_size": read.count("expert_feed_forward_length"),
        "sliding_window": read.count("attention.sliding_window"),
        "layer_types": read.kinds(2),
    }


def glm4_moe(read: Metadata) -> Config:
    """Sigmoid router over plain attention."""
    return {**plain(read), **_sigmoid_experts(read), "use_qk_norm": read.has("attn_q_norm.weight")}


def deepseek(read: Metadata) -> Config:
    """Latent attention, its head sizes before they are folded; GLM-4.7-Flash is told by its vocabulary."""
    turning = read.count("rope.dimension_count")
    whole = read.count("attention.key_length_mla", head_dim(read))
    if whole <= turning:
        read.fail("attention.key_length_mla", whole)
    if read.maybe("attention.temperature_scale"):
        read.refuse("scales its queries by position in latent attention")
    turned = rope(read, turning)
    scaling = turned.get("rope_scaling", {})
    if "mscale_all_dim" in scaling:  # stored as a tenth; the two were always the same
        scaling["mscale"] = scaling["mscale_all_dim"] = float(f"{10 * scaling['mscale_all_dim']:.7g}")
    return {
        **turned,
        **attention(read),
        **_sigmoid_experts(read),
        "model_type": "glm4_moe_lite" if read.vocab == 154_880 else "deepseek_v3",
        "head_dim": turning,
        "attention_bias": read.has("attn_kv_a_mqa.bias"),
        "num_key_value_heads": read.heads,
        "intermediate_size": read.count("feed_forward_length"),
        "qk_rope_head_dim": turning,
        "qk_nope_head_dim": whole - turning,
        "v_head_dim": read.count("attention.value_length_mla", read.count("attention.value_length")),
        "kv_lora_rank": read.count("attention.kv_lora_rank"),
        "q_lora_rank": read.whole("attention.q_lora_rank", 0) or None,
        "rope_interleave": True,
    }


def _sigmoid_experts(read: Metadata) -> Config:
    """Experts as DeepSeek-V3 has them; which layers have them, the tensors say."""
    routed = read.having("ffn_gate_inp.weight")
    found: Config = {"mlp_layer_types": ["sparse" if there else "dense" for there in routed]}
    if not any(routed):
        return found
    guess = 2 if read.has("exp_probs_b.bias", routed.index(True)) else 1
    if read.whole("expert_gating_func", guess) != 2:
        read.refuse("has a router that does not use a sigmoid")
    if read.has("nextn.eh_proj.weight", read.layers):
        found["num_nextn_predict_layers"] = read.nextn
    return found | {
        "n_routed_experts": read.count("expert_count"),
        "num_experts_per_tok": read.count("expert_used_count"),
        "moe_intermediate_size": read.count("expert_feed_forward_length"),
        "n_shared_experts": read.whole("expert_shared_count", 0),
        "routed_scaling_factor": read.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": bool(read.get("expert_weights_norm", False)),
        "n_group": read.whole("expert_group_count", 1) or 1,
        "topk_group": read.whole("expert_group_used_count", 1) or 1,
    }
