"""Targets of random weights, made on the device from nothing but a config: real shapes, and tiny ones of every mixer.

The random head is made of the embedding, each row one place further within blocks of `CYCLE` ids, so that the likeliest token
behind t is t + 1: text that every width, dtype and drafter agrees on, and that repeats itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rig import DEVICE, DTYPE, GPU
from torch import Tensor

from outrider.core.drafting import ModelInfo
from outrider.core.formats.config import text_config
from outrider.core.formats.quantized import Grouped, quantise
from outrider.core.model.blocks.block import Weights
from outrider.core.model.blocks.mlp import Dense, Experts
from outrider.core.model.build import Builder
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import Table
from outrider.core.model.load import tables
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel

CYCLE = 64
_LOUD = 8.0  # of embeddings, so that no layer drowns them

LLAMA_8B: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QWEN3_8B = {
    **LLAMA_8B,
    "model_type": "qwen3",
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "vocab_size": 151_936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40_960,
}
QWEN3_MOE = {  # Qwen3-30B-A3B
    **QWEN3_8B,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
QWEN3_6 = {  # Qwen3.6-27B
    **LLAMA_8B,
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248_320,
    "rms_norm_eps": 1e-6,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
_EXPERTS = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 4,
}
_LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": 24,
    "rope_interleave": True,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.8,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_MAMBA = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "mamba_head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "attention_bias": False,
    "n_groups": 2,
    "ssm_state_size": 16,
    "use_conv_bias": True,
    "use_bias": False,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_hidden_layers": 4,
}
_SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "sliding_window": 16,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_CONV = {"layer_types": ["conv", "conv", "full_attention"], "conv_L_cache": 3, "num_hidden_layers": 3}

TINY: dict[str, Mapping[str, Any]] = {  # one for each kind of mixer
    "full": {**LLAMA_8B, **_TINY},
    "normed": {**QWEN3_8B, **_TINY},
    "sliding": {**LLAMA_8B, **_TINY, "model_type": "gemma3_text", **_SLIDING},
    "latent": {**LLAMA_8B, **_TINY, "model_type": "deepseek_v3", **_LATENT},
    "delta": {**QWEN3_6, **_TINY, **_DELTA},
    "mamba": {**LLAMA_8B, **_TINY, "model_type": "nemotron_h", **_MAMBA},
    "conv": {**LLAMA_8B, **_TINY, "model_type": "lfm2", "norm_eps": 1e-5, "block_auto_adjust_ff_dim": False, **_CONV},
    "experts": {**QWEN3_MOE, **_TINY, **_EXPERTS},
}


def following(token: Any, steps: Any = 1) -> Any:
    """What counts on from a token, or from a tensor of them."""
    return token // CYCLE * CYCLE + (token + steps) % CYCLE


def sized(config: Mapping[str, Any], layers: int | None = None) -> dict[str, Any]:
    """A real config, cut to some layers; without a GPU of the tiny sizes."""
    made = {**config, "num_hidden_layers": layers or config["num_hidden_layers"]}
    if not GPU:
        made |= _TINY
        made |= {key: size for key, size in (_EXPERTS | _DELTA).items() if key in config and key != "num_hidden_layers"}
    if "layer_types" in made:
        kinds = list(config["layer_types"])
        made["num_hidden_layers"] = max(len(kinds), made["num_hidden_layers"])
        made["layer_types"] = (kinds * made["num_hidden_layers"])[: made["num_hidden_layers"]]
    return made


class Random(Builder):
    """Reads weights that it makes up. `float8`: matrices are 8-bit floats with a scale for each 128 inputs."""

    def __init__(self, spec: TargetSpec, form: WeightFormat, seed: int, *, float8: bool = False) -> None:
        stub: Any = SimpleNamespace(path=Path("random"), names=lambda: ["lm_head.weight"], layout=lambda name: None)
        super().__init__(stub, spec, form)
        self._float8 = float8
        self._where = (
            form.device if seed < 0 else torch.device("cpu")
        )  # numbers that all devices share come from the CPU
        self._g = torch.Generator(self._where).manual_seed(abs(seed))

    def stored(self, name: str, rows: int, columns: int, bits: int | None, exact: bool = False) -> Tensor | Grouped:
        """As `Reader`, quantised ones directly."""
        if exact or (bits is None and not self._float8):
            return self._read(name, (rows, columns), self._dtype)
        self.parameters += rows * columns
        if bits == 4:
            codes = torch.randint(
                0, 256, (rows, columns // 2), generator=self._g, device=self._where, dtype=torch.uint8
            )
            scale = torch.full((rows, columns // 32), columns**-0.5 / 4.6, device=self._where)  # codes spread by 4.6
            return Grouped(codes, scale.float(), -8 * scale, bits=4).to(self._device)
        if self._float8:
            codes = self._normal(rows, columns).to(torch.float8_e4m3fn)
            scale = torch.full((rows, -(-columns // 128)), columns**-0.5, device=self._where)
            return Grouped(codes, scale).to(self._device)
        return quantise(self._normal(rows, columns) * columns**-0.5, 8).to(self._device)

    def counting(self, embedding: Table) -> Tensor | Grouped:
        """The head [V, d]: row of t + 1 points where token t does."""
        assert isinstance(embedding.weight, Tensor)
        ids = torch.arange(self.spec.vocab, device=self._device)
        before = following(ids, -1)
        weight = embedding.weight[before.clamp_max(self.spec.vocab - 1)] * (self.spec.width**-0.5 / _LOUD)
        return quantise(weight, 8) if self.form.quantize else weight

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.parameters += torch.Size(shape).numel()
        if len(shape) == 1:
            return self._normal(*shape).abs().add_(0.3).to(self._device, dtype)
        scale = _LOUD if "embed" in name else shape[-1] ** -0.5
        return (self._normal(*shape) * scale).to(self._device, dtype)

    def _normal(self, *shape: int) -> Tensor:
        dtype = self._dtype if self._where.type == "cuda" else torch.float32
        return torch.randn(shape, generator=self._g, device=self._where, dtype=dtype)


@torch.inference_mode()
def decoder(
    config: Mapping[str, Any], form: WeightFormat, context: int, seed: int = -1, *, float8: bool = False
) -> Decoder:
    """Random weights; with a `seed` of 0 or more the same on every device, and a head that is random too."""
    spec = read_spec(text_config(dict(config)))
    build = Random(spec, form, seed, float8=float8)
    embedding = build.embedding()
    head = build.layer(build.counting(embedding)) if seed < 0 else build.head(embedding)
    blocks = tuple(build.block(index) for index in range(len(spec.layers)))
    rows = context + MAX_DRAFT_ROWS
    weights = Weights(
        embedding=embedding,
        blocks=blocks,
        norm=build.final_norm(),
        head=head,
        tables=tables(spec, rows, form.dtype, form.device),
        rows=rows,
        nbytes=build.nbytes,
        parameters=build.parameters,
        form=form,
    )
    return Decoder(spec, weights)


def info(made: Decoder, name: str = "random") -> ModelInfo:
    """What drafters ask of a target."""
    spec = made.spec
    return ModelInfo(name, spec.family, spec.vocab, spec.width, len(spec.layers), tokenizer="")


def target(made: Decoder, context: int, capture: Capture | None) -> TargetModel:
    """A conversation; without a `capture` passes are launched step by step, on a GPU too."""
    model = TargetModel(made, info(made), context, capture or Capture())
    if capture is None:
        model.graph_runner = None
    return model


def plain(quantize: int | None = None) -> WeightFormat:
    """How big models are kept on this device."""
    return WeightFormat(DTYPE, DEVICE, quantize)


def read_bytes(made: Decoder) -> int:
    """Bytes that a pass of one row reads of the weights: all but the token table and the experts that it does not choose."""
    read = made.weights.nbytes - made.weights.embedding.weight.nbytes
    for block in made.weights.blocks:
        if isinstance(block.channel, Experts):
            experts, spec = block.channel.experts, block.channel.router.spec
            each = sum(linear.nbytes for one in experts if isinstance(one, Dense) for linear in (one.gate_up, one.down))
            read -= each * (spec.experts - spec.top) // spec.experts
    return read
