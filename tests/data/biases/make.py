"""Make biases.safetensors: logits of tiny models of transformers with biases and grouped norms, in float64.

    python tests/data/biases/make.py

Needs torch and transformers (made with 2.13 and 5.24), which the tests do not. Weights follow from names, see
`tests/support/formula.py`; the file holds logits, and for each model its config and the shapes of its tensors as text.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
formula: Any = importlib.import_module("formula")

IDS = [5, 9, 2, 30, 17, 11, 3]
BASE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": True,
}  # fmt: skip
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = {**SLIDING, "global_head_dim": 16, "hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1}
SHARED = {
    "num_hidden_layers": 3, "num_kv_shared_layers": 1, "attention_k_eq_v": False, "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 32,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip
LATENT = {
    "head_dim": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6, "num_key_value_heads": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 1,
    "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 4, "mamba_d_state": 4, "mamba_d_conv": 3, "mamba_expand": 1,
    "mamba_chunk_size": 8, "layer_types": ["mamba", "attention"], "num_local_experts": 0, "num_experts_per_tok": 0,
    "shared_intermediate_size": 12, "attention_multiplier": 0.3, "position_embedding_type": None,
}  # fmt: skip
NEMOTRON = {
    "num_hidden_layers": 4, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "mamba_num_heads": 4,
    "mamba_head_dim": 4, "n_groups": 2, "ssm_state_size": 4, "conv_kernel": 3, "chunk_size": 8, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "moe_shared_expert_intermediate_size": 12,
    "time_step_min": 1e-12,  # which transformers clamps time steps at, and Outrider does not
}  # fmt: skip
MIMO = {
    **SLIDING, "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    "attention_value_scale": 0.7, "num_key_value_heads": 1, "tie_word_embeddings": False,
}  # fmt: skip
BIAS = {"attention_bias": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2": ("cohere2", {**SLIDING, **BIAS}),
    "gemma3": ("gemma3_text", {**SLIDING, **BIAS, "query_pre_attn_scalar": 8}),
    "gemma4_keys_as_values": ("gemma4_text", {**GEMMA4, **BIAS, "attention_k_eq_v": True}),
    "gemma4_shared_keys": ("gemma4_text", {**GEMMA4, **SHARED, **BIAS}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, **BIAS, "q_lora_rank": 12}),
    "deepseek_v3_no_rank": ("deepseek_v3", {**LATENT, **BIAS, "q_lora_rank": None}),
    "qwen3_next": ("qwen3_next", {**DELTA, **EXPERTS, **BIAS, "shared_expert_intermediate_size": 8}),
    "qwen3_5": ("qwen3_5_text", {**DELTA, **BIAS}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_bias": True}),
    "nemotron_h_mlp": ("nemotron_h", {**NEMOTRON, "mlp_bias": True}),
    "granitemoehybrid_groups": ("granitemoehybrid", {**MAMBA, "mamba_n_groups": 2}),
    "mimo_v2_flash": ("mimo_v2_flash", {**MIMO, **BIAS}),
}


class Float64:
    """Where transformers casts to float32, it casts to float64."""

    def __enter__(self) -> None:
        self.saved = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        torch.float32, torch.float, torch.Tensor.float = self.saved  # type: ignore[method-assign]


def main() -> None:
    """Write the file."""
    transformers: Any = importlib.import_module("transformers")
    logits: dict[str, torch.Tensor] = {}
    texts: dict[str, str] = {"ids": json.dumps(IDS)}
    for name, (kind, settings) in CASES.items():
        config = transformers.AutoConfig.for_model(kind, **{**BASE, **settings})
        config._attn_implementation = "eager"
        with tempfile.TemporaryDirectory() as folder:
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            weights = Path(folder) / "model.safetensors"
            shapes = {key: tuple(tensor.shape) for key, tensor in load_file(weights).items()}
            save_file({key: formula.made(key, shape) for key, shape in shapes.items()}, weights, {"format": "pt"})
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
            ).eval()
            told = json.loads((Path(folder) / "config.json").read_text())
        with Float64(), torch.no_grad():
            logits[name] = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0].contiguous()
        print(name, float(logits[name].std()))
        texts[name] = json.dumps({"config": told, "shapes": shapes})
    save_file(logits, HERE / "biases.safetensors", texts)


if __name__ == "__main__":
    main()
