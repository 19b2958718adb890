"""Tensors that no part of a decoder reads: harmless ones are known, the others are refused by name."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model import outline

ONES, ZEROS = torch.ones(64), torch.zeros(64)


def with_more(family: str, folder: Path, **tensors: Tensor) -> Path:
    """A golden checkpoint with more tensors."""
    (folder / "config.json").write_bytes((golden.FOLDER / family / "config.json").read_bytes())
    more = {name: tensor.clone() for name, tensor in tensors.items()}  # no two may share memory
    save_file({**load_file(golden.FOLDER / family / "model.safetensors"), **more}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("llama", "model.layers.0.mlp.down_proj.bias"),
        ("llama", "model.layers.2.self_attn.q_norm.weight"),
        ("llama", "model.layers.3.self_attn.q_proj.weight"),  # the config counts 3 layers
        ("llama", "model.extra.weight"),
        ("llama", "lm_head.bias"),
        ("llama", "model.layers.0.self_attn.q_proj.weight_g_idx"),
        ("cohere2", "model.layers.0.input_layernorm.bias"),
        ("gemma4_e", "model.layers.0.self_attn.v_norm.weight"),
        ("gemma4_dense", "model.layers.1.self_attn.v_proj.weight"),  # whose values are its keys
        ("qwen3_moe", "model.layers.0.mlp.gate.bias"),
        ("qwen3_5", "model.layers.0.linear_attn.conv1d.bias"),
        ("nemotron_h", "backbone.layers.1.mixer.experts.0.up_proj.bias"),
        ("nemotron_h", "backbone.layers.2.mixer.q_proj.bias"),
        ("lfm2", "model.layers.0.conv.in_proj.bias"),
        ("mimo_v2_flash", "model.layers.0.self_attn.o_proj.bias"),
        ("phi3", "model.layers.0.self_attn.qkv_proj.bias"),
        ("gemma3_nested", "language_model.model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_a_tensor_that_changes_the_text_is_named(family: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        golden.decoder(with_more(family, tmp_path, **{name: ONES}), torch.float32, 64)
    assert name in caught.value.message and "does not use" in caught.value.message and caught.value.hint


def test_the_first_three_are_named(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.self_attn.{part}_proj.bias" for layer in (0, 1) for part in "qk"]
    with pytest.raises(ModelError, match=r"k_proj\.bias, \S+q_proj\.bias, \S+1\S+k_proj\.bias and 1 more\."):
        golden.decoder(with_more("llama", tmp_path, **dict.fromkeys(names, ONES)), torch.float32, 64)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]),
        ("llama", ["model.layers.0.self_attn.bias", "model.layers.0.self_attn.masked_bias"]),
        ("llama", ["model.layers.0.self_attn.k_proj.k_scale", "model.layers.0.self_attn.kv_scale"]),
        ("llama", ["model.layers.0.self_attn.q_proj.input_scale", "model.layers.0.self_attn.v_proj.output_scale"]),
        ("llama", ["mtp.layers.0.mlp.up_proj.weight", "model.mtp_layers.0.input_proj.weight", "model.mtp.norm.weight"]),
        ("llama", ["medusa_head.0.0.linear.bias", "extra_heads.0.attention.wq.weight"]),
        ("llama", ["model.vision_tower.layers.0.bias", "model.embed_vision.weight", "vision_model.norm.weight"]),
        ("llama", ["score.weight"]),  # of a task that no text comes from
        ("llama", ["model.layers.3.eh_proj.weight", "model.layers.3.self_attn.q_proj.weight"]),
        ("deepseek_v3", ["model.layers.4.enorm.weight", "model.layers.4.mlp.up_proj.weight"]),
        ("gemma4_e", [f"model.layers.5.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm")]),
        ("gemma3_nested", ["model.vision_tower.norm.weight", "model.multi_modal_projector.bias"]),
    ],
)
def test_what_changes_nothing_may_be_there(family: str, names: list[str], tmp_path: Path) -> None:
    golden.decoder(with_more(family, tmp_path, **dict.fromkeys(names, ONES)), torch.float32, 64)


def test_a_bias_of_zeros_adds_nothing(tmp_path: Path) -> None:
    """GPTQ files have one for every matrix."""
    name = "model.layers.0.self_attn.o_proj.bias"
    folder = with_more("llama", tmp_path, **{name: ZEROS})
    golden.decoder(folder, torch.float32, 64)
    outline.check(open_checkpoint(folder))


def test_unread_tensors_are_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    folder = with_more("llama", tmp_path, **{"model.layers.0.self_attn.q_norm.weight": ONES})
    with pytest.raises(ModelError, match=r"does not use in a llama model: model\.layers\.0\.self_attn\.q_norm"):
        outline.check(open_checkpoint(folder))
