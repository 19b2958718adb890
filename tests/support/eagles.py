"""Tiny EAGLE drafts in their published forms for the toy targets, and their formulas written out plainly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.drafting import Fit
from outrider.core.model.model import TargetModel
from outrider.drafters.eagle import Eagle
from outrider.drafters.eagle.draft import EagleDrafter

PROMPT = [5, 9, 13, 9, 5, 9, 13]
NONE = torch.empty(0, dtype=torch.int64)
WIDTH, HEADS, KV, SIZE, INNER = 32, 4, 2, 8, 48
EPS, THETA = 1e-5, 10000.0
KINDS = (
    "eagle1",
    "eagle1_bias",
    "eagle3",
    "midlayer",
    "model_prefix",
    "full_head",
    "target_head",
    "fc_norm",
    "norm_output",
    "norm_before_residual",
    "input_norm",
    "head_norms",
    "attention_bias",
    "one_state",
    "no_fc",
    "bare",
)


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    """A draft on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: part.contiguous().clone() for name, part in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def change(folder: Path, config: Mapping[str, Any]) -> None:
    """Other settings in the config."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))


def _matrix(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=g) / columns**0.5


def _norm(g: torch.Generator, width: int = WIDTH) -> Tensor:
    return torch.rand(width, generator=g) + 0.5


def _common(g: torch.Generator, wide: int) -> dict[str, Tensor]:
    """What every version has; attention reads rows of width `wide`."""
    at, parts = "layers.0.self_attn.", zip("qkv", (HEADS, KV, KV), strict=True)
    made = {f"{at}{name}_proj.weight": _matrix(g, rows * SIZE, wide) for name, rows in parts}
    made[f"{at}o_proj.weight"] = _matrix(g, WIDTH, HEADS * SIZE)
    made |= {f"layers.0.mlp.{name}_proj.weight": _matrix(g, INNER, WIDTH) for name in ("gate", "up")}
    made["layers.0.mlp.down_proj.weight"] = _matrix(g, WIDTH, INNER)
    made["layers.0.post_attention_layernorm.weight"] = _norm(g)
    return made


def _weights(kind: str, vocab: int, words: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(7)
    if kind.startswith("eagle1"):
        made = {**_common(g, WIDTH), "fc.weight": _matrix(g, WIDTH, 2 * WIDTH)}
        return made | ({"fc.bias": torch.randn(WIDTH, generator=g)} if kind == "eagle1_bias" else {})
    count = 1 if kind in ("one_state", "no_fc") else 3
    made = {**_common(g, 2 * WIDTH), "fc.weight": _matrix(g, WIDTH, count * WIDTH)}
    made |= {f"layers.0.{name}.weight": _norm(g) for name in ("hidden_norm", "input_layernorm")}
    made["norm.weight"] = _norm(g)
    if kind == "full_head":
        made["lm_head.weight"] = _matrix(g, vocab, WIDTH) * 3
    elif kind != "target_head":
        chosen = torch.randperm(vocab, generator=g)[:words].sort().values
        made |= {"lm_head.weight": _matrix(g, words, WIDTH) * 3, "d2t": chosen - torch.arange(words)}
        made["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    return _varied(kind, made, g)


def _varied(kind: str, made: dict[str, Tensor], g: torch.Generator) -> dict[str, Tensor]:
    """What some files of version 3 have more, or less."""
    at = "layers.0.self_attn."
    if kind in ("fc_norm", "norm_output"):
        made |= {f"fc_norm.{index}.weight": _norm(g) for index in range(3)}
    if kind == "input_norm":
        made["input_norm.weight"] = _norm(g, 3 * WIDTH)
    if kind == "head_norms":
        made |= {f"{at}{name}_norm.weight": _norm(g, SIZE) for name in "qk"}
    if kind == "attention_bias":
        sizes = {"q": HEADS * SIZE, "k": KV * SIZE, "v": KV * SIZE, "o": WIDTH}
        made |= {f"{at}{name}_proj.bias": torch.randn(size, generator=g) for name, size in sizes.items()}
    gone = {"no_fc": ["fc.weight"], "bare": ["norm.weight", "layers.0.input_layernorm.weight"]}.get(kind, [])
    return {name: part for name, part in made.items() if name not in gone}


def folder(
    path: Path,
    kind: str,
    vocab: int = 48,
    words: int = 20,
    states: list[int] | None = [0, 1, 2],  # noqa: B006 - never changed
    more: Mapping[str, Tensor | None] | None = None,
) -> Path:
    """A random draft of one kind; `more` adds tensors, or takes away those that are None."""
    tensors = _weights(kind, vocab, words)
    tensors |= {name: part for name, part in (more or {}).items() if part is not None}
    tensors = {name: part for name, part in tensors.items() if (more or {}).get(name, part) is not None}
    block = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "num_hidden_layers": 1,
        "vocab_size": vocab,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": 16,  # published drafts say less than they are used for
    }
    config: dict[str, Any] = dict(block)
    if not kind.startswith("eagle1") and kind not in ("one_state", "no_fc") and states is not None:
        config["eagle_aux_hidden_state_layer_ids"] = states
    if kind == "midlayer":
        tensors = {name.replace("layers.0.", "midlayer."): part for name, part in tensors.items()}
    if kind == "model_prefix":
        tensors = {
            name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": part
            for name, part in tensors.items()
        }
    if kind == "norm_output":
        config |= {"fc_norm": True, "norm_output": True}
    if kind == "full_head":
        config["norm_output"] = True  # means nothing without fc_norm
    if kind == "norm_before_residual":
        keys = {"speculators_model_type": "eagle3", "transformer_layer_config": block}
        config = {**keys, "eagle_aux_hidden_state_layer_ids": config["eagle_aux_hidden_state_layer_ids"]}
    if kind in ("no_fc", "one_state"):
        config["eagle_config"] = {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    if kind == "bare":
        config["eagle_config"] = {"use_last_layernorm": False, "use_input_layernorm_in_first_layer": False}
    return write(path, tensors, config)


def load(path: Path, target: TargetModel, **options: object) -> EagleDrafter:
    """A draft, making chains unless told otherwise."""
    match = Eagle().check(target.info, str(path))
    assert match.fit == Fit.EXACT, match.reason
    return Eagle().load(target, match, {"tree": "chain", **options})


def conversation(target: TargetModel, states: tuple[int, ...], length: int) -> tuple[Tensor, Tensor]:
    """Random tokens [length], and the states [length - 1, n, d] that produced all but the first."""
    ids = torch.randint(0, target.vocab, (length,), generator=torch.Generator().manual_seed(3))
    hidden = target.forward(ids, states=states).hidden
    assert hidden is not None
    return ids, hidden[:-1]


def reference(
    path: Path, target: TargetModel, ids: Tensor, states: Tensor, count: int, known: Tensor | None = None
) -> tuple[Tensor, list[int]]:
    """Logits [count, Vd] and tokens of a greedy chain, every row computed anew for each token.

    `known`: positions of the states that the draft heard of; None = all.
    """
    config = json.loads((path / "config.json").read_text())
    p = {
        name.removeprefix("model.").replace("midlayer.", "layers.0."): part
        for name, part in load_file(path / "model.safetensors").items()
    }
    known = torch.arange(len(ids) - 1) if known is None else known
    first, chosen = "layers.0.hidden_norm.weight" not in p, states[known]
    tokens, at = ids[known + 1], known.tolist()
    if first or "use_aux_hidden_state" in config.get("eagle_config", {}):
        chosen = target.norm(chosen)
    if "fc_norm.0.weight" in p:
        chosen = torch.stack([rms(chosen[:, i], p[f"fc_norm.{i}.weight"]) for i in range(3)], 1)
    g = chosen.flatten(1)
    if "input_norm.weight" in p:
        g = rms(g, p["input_norm.weight"])
    if not first and "fc.weight" in p:
        g = g @ p["fc.weight"].T
    rows, drafted = [], []
    for _ in range(count):
        f = _layer(p, target.embed(tokens), g, torch.tensor(at), first, "speculators_model_type" in config)
        last = f[-1:]
        normed = rms(last, p["norm.weight"]) if "norm.weight" in p else last
        rows.append((normed @ p["lm_head.weight"].T if "lm_head.weight" in p else target.head(normed))[0])
        word = int(rows[-1].argmax())
        drafted.append(word + int(p["d2t"][word]) if "d2t" in p else word)
        back = normed if config.get("norm_output") and "fc_norm" in config else last
        tokens, g, at = torch.cat((tokens, torch.tensor(drafted[-1:]))), torch.cat((g, back)), [*at, at[-1] + 1]
    return torch.stack(rows), drafted


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """Root mean square norm."""
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _layer(p: dict[str, Tensor], e: Tensor, g: Tensor, at: Tensor, first: bool, norm_first: bool) -> Tensor:
    if first:
        u = r = torch.cat((e, g), -1) @ p["fc.weight"].T + p.get("fc.bias", torch.zeros(WIDTH))
    else:
        normed = rms(g, p["layers.0.hidden_norm.weight"])
        before = p.get("layers.0.input_layernorm.weight")
        u, r = torch.cat((e if before is None else rms(e, before), normed), -1), normed if norm_first else g
    name = "layers.0.self_attn."

    def project(x: Tensor, part: str) -> Tensor:
        return F.linear(x, p[f"{name}{part}_proj.weight"], p.get(f"{name}{part}_proj.bias"))

    q, k, v = (project(u, part).view(len(e), -1, SIZE) for part in "qkv")
    if f"{name}q_norm.weight" in p:
        q, k = rms(q, p[f"{name}q_norm.weight"]), rms(k, p[f"{name}k_norm.weight"])
    angles = at[:, None] / THETA ** (torch.arange(0, SIZE, 2) / SIZE)
    q, k = (_turned(x, angles[:, None]) for x in (q, k))
    k, v = (x.repeat_interleave(HEADS // KV, 1) for x in (k, v))
    scores = torch.einsum("ihc,jhc->hij", q, k) * SIZE**-0.5
    scores = scores.masked_fill(torch.ones(len(e), len(e), dtype=torch.bool).triu(1), -torch.inf)
    a = r + project(torch.einsum("hij,jhc->ihc", scores.softmax(-1), v).flatten(1), "o")
    m = rms(a, p["layers.0.post_attention_layernorm.weight"])
    gate, up = (m @ p[f"layers.0.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return a + (F.silu(gate) * up) @ p["layers.0.mlp.down_proj.weight"].T


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
