"""Prediction layers for the toy checkpoint, and what they should give: plain float64 formulas with nothing cached.

Letters: `T` rows, `d` width, `V` vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import toys
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.drafting import ModelInfo
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel

WIDTH, HEADS, KV, SIZE, INNER, EPS, THETA = 32, 4, 2, 8, 48, 1e-5, 10000.0  # of `toys.checkpoint`

Weights = Mapping[str, Tensor]


def block(g: torch.Generator, kv: int = KV) -> dict[str, Tensor]:
    """Random weights of one llama layer."""
    shapes = {
        "self_attn.q_proj": (HEADS * SIZE, WIDTH),
        "self_attn.k_proj": (kv * SIZE, WIDTH),
        "self_attn.v_proj": (kv * SIZE, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * SIZE),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    made = {f"{name}.weight": torch.randn(shape, generator=g) * shape[1] ** -0.5 for name, shape in shapes.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        made[f"{name}.weight"] = torch.rand(WIDTH, generator=g) + 0.5
    return made


def layer(g: torch.Generator) -> dict[str, Tensor]:
    """Random weights of one sequential prediction layer."""
    made = block(g)
    made["eh_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH, generator=g) * (2 * WIDTH) ** -0.5
    for name in ("enorm", "hnorm", "shared_head.norm"):
        made[f"{name}.weight"] = torch.rand(WIDTH, generator=g) + 0.5
    return made


def checkpoint(folder: Path, count: int = 1, seed: int = 5) -> Path:
    """The toy checkpoint with so many prediction layers behind its two."""
    toys.checkpoint(folder)
    tensors = load_file(folder / "model.safetensors")
    g = torch.Generator().manual_seed(seed)
    for index in range(count):
        tensors |= {f"model.layers.{2 + index}.{name}": tensor for name, tensor in layer(g).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def target(folder: Path, context: int = 200, quantize: int | None = None) -> TargetModel:
    """The model of a folder, with its own cache; its matrices rounded to so many bits."""
    opened = open_checkpoint(folder)
    try:
        known: ModelInfo = info(opened)
        decoder = load_decoder(
            opened, WeightFormat(torch.float32, torch.device("cpu"), quantize), context + MAX_DRAFT_ROWS
        )
    finally:
        opened.close()
    return TargetModel(decoder, known, context)


def forms(block: Block) -> list[type[Linear]]:
    """How the matrices of a layer are kept: what attention reads, and the last of the MLP."""
    assert isinstance(block.mixer, Attention) and isinstance(block.channel, Dense)
    return [type(block.mixer.mix), type(block.channel.down)]


# ---------------------------------------------------------------------------------------------------- formulas


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


def turn(x: Tensor, neighbours: bool) -> Tensor:
    """Rope over [T, heads, h] at positions 0 … T - 1, as products of complex numbers."""
    rows, half = x.shape[0], x.shape[-1] // 2
    angles = torch.arange(rows)[:, None].double() * THETA ** (-torch.arange(half).double() / half)
    spin = torch.polar(torch.ones_like(angles), angles)[:, None]  # [T, 1, h / 2]
    pairs = x.unflatten(-1, (half, 2)) if neighbours else x.unflatten(-1, (2, half)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * spin)
    return turned.flatten(-2) if neighbours else turned.transpose(-1, -2).flatten(-2)


def run(x: Tensor, w: Weights, *, neighbours: bool = False, hidden: Sequence[int] = ()) -> Tensor:
    """A llama layer over all rows [T, d]; nobody sees the rows `hidden`."""
    w = {name: tensor.double() for name, tensor in w.items()}
    y, rows = norm(x, w["input_layernorm.weight"]), x.shape[0]
    q, k, v = ((y @ w[f"self_attn.{name}_proj.weight"].T).view(rows, -1, SIZE) for name in "qkv")
    groups = q.shape[1] // k.shape[1]
    q, k, v = turn(q, neighbours), turn(k, neighbours).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    seen[:, list(hidden)] = False
    seen |= torch.eye(rows, dtype=torch.bool)
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(1)
    x = x + mixed @ w["self_attn.o_proj.weight"].T
    y = norm(x, w["post_attention_layernorm.weight"])
    gated = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
    return x + gated @ w["mlp.down_proj.weight"].T


def chain(
    tokens: Sequence[int],
    states: Tensor,
    tensors: Weights,
    count: int,
    nodes: int,
    hidden: Sequence[int] = (),
    prenorm: bool = False,
) -> tuple[list[int], list[Tensor]]:
    """The greedy chain behind `tokens` with states [T - 1, d], and its logits [V], everything computed anew.

    `prenorm`: outputs are fed back before their norm.
    """
    table, head = tensors["model.embed_tokens.weight"].double(), tensors["lm_head.weight"].double()
    draft: list[int] = []
    logits: list[Tensor] = []

    def through(index: int, ids: Sequence[int], h: Tensor) -> tuple[Tensor, Tensor]:
        at = f"model.layers.{2 + index}."
        w = {name.removeprefix(at): tensor for name, tensor in tensors.items() if name.startswith(at)}
        x = torch.cat((norm(table[list(ids)], w["enorm.weight"]), norm(h, w["hnorm.weight"])), -1)
        y = run(x @ w["eh_proj.weight"].double().T, w, hidden=hidden)
        read = norm(y, w["shared_head.norm.weight"])
        return read, y if prenorm else read

    h, made = states.double(), states[:0].double()
    for depth in range(nodes):
        ids = [*tokens, *draft]
        if count == 1:
            read, made = through(0, ids[1:], torch.cat((states.double(), made[states.shape[0] - 1 :])))
        else:
            read, h = through(depth, ids[1 + depth :], h)
        logits.append(head @ read[-1])
        draft.append(int(logits[-1].argmax()))
    return draft, logits


def parallel_heads(folder: Path) -> Path:
    """Three of them for the toy checkpoint."""
    from outrider.drafters.mtp.layout import META

    theirs = {ours: name for name, ours in META.items()}
    g = torch.Generator().manual_seed(11)
    blocks = [block(g, kv=4) for _ in range(3)]
    tensors = {f"extra_heads.{k}.{theirs[n]}": t for k, block in enumerate(blocks) for n, t in block.items()}
    folder.mkdir()
    save_file(tensors, folder / "consolidated.safetensors")
    params = {"dim": 32, "n_layers": 5, "n_heads": 4, "n_future_tokens": 4, "vocab_size": -1, "norm_eps": 1e-5}
    (folder / "params.json").write_text(json.dumps(params))
    return folder
