"""Whole chat models on disk for tests of what a chat template does: one that recites, some with states of several kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import toys
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, ones, randn

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.text.tokenizer import Tokenizer

# As Qwen3 does it: the last thought is kept until the next question, none may be asked for.
QWEN = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content and loop.last %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}
{{- m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""
SWITCHED = "{{- 'Quiet. ' if enable_thinking is defined }}" + QWEN
OPENED = toys.CHATML.replace("assistant\n", "assistant\n<think>\n")
MARKERS = ("<think>", "</think>")


def with_template(folder: Path, template: str) -> Path:
    settings = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reciting(folder: Path, template: str, *pieces: str) -> Path:
    """A chat model whose next token depends on the newest one alone; after the prompt it says `pieces` and stops.

    No two tokens of it may be equal, the last one of the prompt counted.
    """
    toys.checkpoint(folder, extra=MARKERS)
    with_template(folder, template)
    checkpoint = open_checkpoint(folder)
    tokenizer = Tokenizer(checkpoint.text())
    checkpoint.close()
    said = [token for piece in ("\n", *pieces, "<|im_end|>") for token in tokenizer.encode(piece)]
    assert len(said) == len(set(said))
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    table = tensors["model.embed_tokens.weight"]
    table /= table.norm(dim=1, keepdim=True)
    head = tensors["lm_head.weight"].zero_()
    for now, then in pairwise(said):
        head[then] = 30 * table[now]
    save_file(tensors, folder / "model.safetensors")
    return folder


def rows(folder: Path) -> Path:
    """A chat model whose states can be cut anywhere."""
    return toys.checkpoint(folder, extra=MARKERS)


def convolving(folder: Path) -> Path:
    """A chat model with states that cannot be cut: two conv layers around one of attention, random weights."""
    toys.checkpoint(folder, extra=MARKERS)
    width, wide, vocab = 32, 48, 261
    shapes: dict[str, Sequence[int]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(3):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}feed_forward.w{n}.weight": (width, wide) if n == 2 else (wide, width) for n in (1, 2, 3)}
        if layer == 1:
            shapes |= {f"{at}self_attn.{n}.weight": (width, width) for n in ("q_proj", "k_proj", "v_proj", "out_proj")}
        else:
            shapes |= {f"{at}conv.in_proj.weight": (3 * width, width), f"{at}conv.out_proj.weight": (width, width)}
            shapes[f"{at}conv.conv.weight"] = (width, 1, 3)
    noise = Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {name: randn(*shape, generator=noise) / width**0.5 for name, shape in shapes.items()}
    norms = [f"model.layers.{layer}.{name}_norm" for layer in range(3) for name in ("operator", "ffn")]
    tensors |= {f"{name}.weight": ones(width) for name in (*norms, "model.embedding_norm")}
    tensors |= {f"model.layers.1.self_attn.{name}_layernorm.weight": ones(8) for name in "qk"}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "lfm2",
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "conv_bias": False,
        "norm_eps": 1e-5,
        "block_auto_adjust_ff_dim": False,
        "intermediate_size": wide,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
