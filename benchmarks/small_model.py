"""A small llama on disk with random weights, written without a line of Outrider: every checkout can read it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(folder: Path, *, width: int = 32, layers: int = 2, context: int = 2048, sharp: float = 12.0) -> Path:
    """Config, weights, tokenizer and chat template. Greedy, it soon repeats itself, so that text lookup finds something."""
    heads, kv_heads, head, inner, vocab = 4, 2, width // 4, width * 3 // 2, 256 + len(CONTROL)
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

    head_rows = matrix(vocab, width, sharp)
    head_rows[-len(CONTROL) :] = 0  # so that no answer ends before its limit
    tensors = {
        "model.embed_tokens.weight": matrix(vocab, width, 6.0),
        "model.norm.weight": torch.ones(width),
        "lm_head.weight": head_rows,
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {f"{at}{name}_layernorm.weight": torch.ones(width) for name in ("input", "post_attention")}
        for name, rows in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
            tensors[f"{at}self_attn.{name}_proj.weight"] = matrix(rows, width)
        tensors[f"{at}self_attn.o_proj.weight"] = matrix(width, heads * head)
        tensors |= {f"{at}mlp.{name}_proj.weight": matrix(inner, width) for name in ("gate", "up")}
        tensors[f"{at}mlp.down_proj.weight"] = matrix(width, inner)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "intermediate_size": inner,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "eos_token_id": vocab - 1,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": CONTROL[-1]}))
    return folder
