"""What drafters cost and gain on shapes of an 8B: a scripted one of known acceptance, EAGLE-3, DFlash, prompt lookup."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import shapes
import torch
import toys
from passes import MODELS, PROMPT, TOKENS, passing, stand
from rig import DEVICE, DTYPE, GPU, Figures, capture, fits, seconds, sustained
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.protocol import Report
from outrider.core.drafting import (
    Committed,
    Context,
    DeviceContext,
    Draft,
    Drafter,
    Fit,
    Match,
    Needs,
    Shape,
    Stateless,
)
from outrider.core.model.model import TargetModel
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.dflash import DFlash
from outrider.drafters.eagle import Eagle
from outrider.drafters.prompt_lookup import Lookup

ACCEPTANCES, LENGTHS = (0.6, 0.8), ((2, 4, 8) if GPU else (3,))  # one less than widths that are captured
LAYERS = 6  # of the target under a drafter whose own cost is asked for


class Scripted(Stateless):
    """The device form: knows how `shapes` counts on, and errs at positions that were drawn beforehand."""

    device = True
    needs = Needs()

    def __init__(self, acceptance: float, room: int = 4096) -> None:
        self.shape = Shape(nodes=16, depth=16)
        draw = torch.rand(room, generator=torch.Generator().manual_seed(4))
        self._right = (draw < acceptance).to(DEVICE)  # by position
        self._newest = self._length = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def advance(self, step: Committed) -> None:
        """As `Drafter`."""
        self._newest = step.tokens[-1].to(DEVICE)
        self._length = torch.tensor(step.start + step.tokens.shape[0], device=DEVICE)

    def propose_device(self, context: DeviceContext) -> Draft | None:
        """The next tokens, or others where it errs."""
        newest, length, flying = self._newest, self._length, context.in_flight
        if flying is not None:
            newest, length = flying.tokens[flying.count - 1][0], length + flying.count[0]
        steps = torch.arange(context.nodes, device=DEVICE)
        wrong = ~self._right[(length + steps).clamp_max(self._right.shape[0] - 1)]
        return Draft(shapes.following(newest, 1 + steps + 9 * wrong))

    def propose(self, context: Context) -> Draft | None:
        """Never asked for."""
        return None


def scripted(figures: Figures) -> None:
    """Speed-ups at known acceptance, beside (1 - a^(K + 1)) / ((1 - a)(c K + 1)) and the same with the cost of a wider pass."""
    if not fits(45 << 30, figures, "skipped"):
        return
    with torch.inference_mode():
        target = shapes.target(MODELS["llama-8b bf16"].decoder(1024), 1024, capture())
        plain = _answered(target, None, None)
        figures["plain_tokens_per_s"] = round(plain.tokens_per_second, 1)
        stand(target, PROMPT)
        costs = {width: sustained(passing(target, width).run) for width in (1, *(k + 1 for k in LENGTHS))}
        for a in ACCEPTANCES:
            for k in LENGTHS:
                found = _answered(target, Scripted(a), k)
                assert found.token_ids == plain.token_ids, f"another text at {a}, {k}"
                draft = found.timing.draft_s / max(1, found.passes) * 1e3
                tokens = (1 - a ** (k + 1)) / (1 - a)
                figures[f"a={a} K={k}"] = {
                    "tokens_per_s": round(found.tokens_per_second, 1),
                    "speedup": round(found.tokens_per_second / plain.tokens_per_second, 3),
                    "formula": round(tokens / (1 + draft / costs[1]), 3),
                    "with_width": round(tokens / ((costs[k + 1] + draft) / costs[1]), 3),
                    "accepted": round(found.accepted / max(1, found.passes), 3),
                    "tokens_per_pass": round(len(found.token_ids) / max(1, found.passes), 3),
                    "draft_ms": round(draft, 3),
                }


def _answered(target: TargetModel, drafter: Drafter | None, length: int | None) -> Report:
    """The second of two answers, the first of which captures and compiles."""
    ids = [5 + index % 50 for index in range(PROMPT)]
    for tokens in (24 if GPU else 4, TOKENS):
        target.rewind(0)
        notes: list[str] = []
        guarded = None if drafter is None else toys.guard(drafter, notes=notes)
        report = toys.answer(ChatCache(target), ids, guarded, limit=tokens, tokens=length)
        assert not notes, notes
    return report


# ---------------------------------------------------------------------------------------------------- real drafters


def passes(figures: Figures) -> None:
    """Milliseconds of a round that go to the drafter (with what it reads of the round before), captured and step by step."""
    if not fits(30 << 30, figures, "skipped"):
        return
    config = shapes.sized(shapes.QWEN3_8B, LAYERS)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        made = shapes.decoder(config, shapes.plain(), 1024)
        with seconds(figures, "written_s"):
            eagle = _eagle(Path(scratch) / "eagle", config)
            dflash = _dflash(Path(scratch) / "dflash", config)
        for mode, recorder in (("captured", capture()), ("steps", None)):
            target = shapes.target(made, 1024, recorder)
            match = Match(Fit.EXACT, "", weights=str(eagle))
            for k in (1, 3, 7) if GPU else (3,):
                _drafted(
                    f"eagle-3 chain of {k}, {mode}", target, Eagle().load(target, match, {"tree": "chain"}), k, figures
                )
            _drafted(f"eagle-3 tree of 32, {mode}", target, Eagle().load(target, match, {"tree": "tree"}), 32, figures)
            match = Match(Fit.EXACT, "", weights=str(dflash))
            for k in (7, 15) if GPU else (5,):
                _drafted(f"dflash block of {k}, {mode}", target, DFlash().load(target, match, {}), k, figures)
            if recorder is not None:
                _drafted("prompt lookup of 8", target, Lookup(), 8, figures)
                figures["trouble"] = recorder.trouble or "none"


def _drafted(name: str, target: TargetModel, drafter: Drafter, length: int, figures: Figures) -> None:
    found = _answered(target, drafter, length)
    asked = max(1, sum(passes for who, passes in found.drafters.items() if who != "none"))
    verify = (found.timing.decode_s - found.timing.draft_s) / max(1, found.passes)
    figures[name] = {
        "draft_ms": round(found.timing.draft_s / asked * 1e3, 3),
        "rest_ms": round(verify * 1e3, 3),
        "proposed": round(found.proposed / asked, 2),
        "accepted": round(found.accepted / asked, 2),
    }


def _matrix(rows: int, columns: int) -> Tensor:
    return (torch.randn(rows, columns, device=DEVICE, dtype=DTYPE) * columns**-0.5).cpu()


def _layer(at: str, config: Mapping[str, Any], wide: int) -> dict[str, Tensor]:
    """Attention over rows of width `wide`, and an MLP."""
    d, h, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    made = {f"{at}self_attn.{name}_proj.weight": _matrix(count * h, wide) for name, count in heads.items()}
    made[f"{at}self_attn.o_proj.weight"] = _matrix(d, heads["q"] * h)
    made |= {f"{at}mlp.{name}_proj.weight": _matrix(inner, d) for name in ("gate", "up")}
    made[f"{at}mlp.down_proj.weight"] = _matrix(d, inner)
    return made | _ones(d, *(f"{at}{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")))


def _ones(width: int, *names: str) -> dict[str, Tensor]:
    return {name: torch.ones(width, dtype=DTYPE) for name in names}


def _written(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    folder.mkdir()
    save_file(dict(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _eagle(folder: Path, config: Mapping[str, Any]) -> Path:
    """EAGLE-3 as published for such a target: one layer, a head of 32000 words."""
    d, vocab, words = config["hidden_size"], config["vocab_size"], min(32_000, config["vocab_size"] - 50)
    made = _layer("midlayer.", config, 2 * d) | _ones(d, "midlayer.hidden_norm.weight", "norm.weight")
    made |= {"fc.weight": _matrix(d, 3 * d), "lm_head.weight": _matrix(words, d)}
    made["d2t"] = torch.zeros(words, dtype=torch.int64)  # the first ones
    made["t2d"] = torch.arange(vocab) < words
    states = {"eagle_aux_hidden_state_layer_ids": _three(config["num_hidden_layers"])}
    return _written(
        folder, made, {**config, **states, "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": words}
    )


def _three(layers: int) -> Sequence[int]:
    return sorted({0, layers // 2, layers - 1}) if layers > 2 else [0, 1, 2]


def _dflash(folder: Path, config: Mapping[str, Any]) -> Path:
    """DFlash as published for such a target: five layers, blocks of 16, five states."""
    d, layers, states = config["hidden_size"], config["num_hidden_layers"], 5 if GPU else 2
    made = _ones(d, "hidden_norm.weight", "norm.weight") | {"fc.weight": _matrix(d, states * d)}
    depth = 5 if GPU else 1
    for index in range(depth):
        at = f"layers.{index}."
        names = (f"{at}self_attn.{name}_norm.weight" for name in "qk")
        made |= _layer(at, config, d) | _ones(config["head_dim"], *names)
    more = {
        "num_hidden_layers": depth,
        "layer_types": ["full_attention"] * depth,
        "block_size": 16,
        "num_target_layers": layers,
        "dflash_config": {"mask_token_id": config["vocab_size"] - 1, "target_layer_ids": list(range(states))},
    }
    return _written(folder, made, {**config, **more, "model_type": "qwen3"})
