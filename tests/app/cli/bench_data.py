"""The result of a made-up benchmark, as the engine sends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.core.base.protocol import Bench, BenchPrompt, plain

DIFFERENCE = {"character": 11, "plain": "The sky is\nblue.", "drafted": "The sky is \x1b[31mred."}


def scores(ratio: float, *, interval: tuple[float, float] | None = None) -> dict[str, Any]:
    """One drafter over one prompt."""
    figures = {"prompts": 1, "tokens": 64, "seconds": 2.0, "tokens_per_second": 32.0 * ratio, "ratio": ratio}
    figures |= {"tokens_per_pass": ratio, "acceptance": 0.5, "same_text": 1, "interval": interval}
    figures |= {"whole_per_second": 30.0, "whole_ratio": 1 + (ratio - 1) / 2, "whole_interval": None}
    return figures | {"first_s": 0.05, "limited": 1, "looping": int(ratio > 1.5)}


def drafting(rounds: int = 30) -> dict[str, Any]:
    """One drafter's passes."""
    told: dict[str, Any] = {"passes": 40, "rounds": rounds, "drafters": {"none": 40 - rounds, "d": rounds}}
    told |= {"length": 4.0, "fixed": True, "rate": 0.75, "reached": [30, 20, 10], "depths": [0.8, 0.75, 0.5]}
    told |= {"draft_ms": 0.25, "draft_share": 0.01, "cost": 0.008, "verify_more": 0.25}
    return told | {"predicted": 2.95, "measured": 2.25}


def run(prompt: BenchPrompt, drafter: str, *, repeat: int = 0) -> dict[str, Any]:
    """One answer; the drafter `differs` makes another text."""
    same = drafter != "differs"
    return {
        "prompt": prompt.id,
        "category": prompt.category,
        "turn": 0,
        "repeat": repeat,
        "drafter": drafter,
        "tokens": 64,
        "same_text": same,
        "difference": None if same else DIFFERENCE,
    }


def result(request: Bench, prompts: Sequence[BenchPrompt], *, stopped: bool = False) -> dict[str, Any]:
    """All of it for those prompts of the request that were done."""
    names = [drafter.name for drafter in request.drafters]
    one = {name: scores(1.0 + 0.5 * number) for number, name in enumerate(names)}
    total = {
        name: scores(1.0 + 0.5 * number, interval=(1.2, 1.8) if number else None) for number, name in enumerate(names)
    }
    noise = {
        "spread": 0.1,
        "low_ms": 7.0,
        "high_ms": 7.7,
        "load_before": 0.1,
        "load_after": 2.0,
        "words": ["Noisy: so."],
    }
    curve = {"1": {"ms": 8.0, "passes": 40}, "2": {"ms": 9.0, "passes": 1}, "5": {"ms": 10.0, "passes": 30}}
    batch = {"drafter": "none", "tokens": 64 * 4, "seconds": 2.0, "tokens_per_second": 128.0, "states": 8_000_000}
    return {
        "together": [batch | {"count": count, "problem": "Too many." if count > 9 else ""} for count in request.batch],
        "model": "SmolLM2-135M-Instruct",
        "dtype": "bfloat16",
        "device": "cpu",
        "threads": 2,
        "machine": {"cpu": "a CPU", "torch": "2.13.0"},
        "settings": {
            "max_tokens": request.sampling.max_tokens,
            "repeats": request.repeats,
            "load": plain(request.model),
        },
        "stopped": stopped,
        "noise": noise,
        "drafters": names,
        "categories": {category: one for category in dict.fromkeys(prompt.category for prompt in prompts)},
        "total": total,
        "worst": {name: {"prompt": prompts[0].id, "category": "c", "ratio": 0.9} for name in names[1:]},
        "drafting": {name: drafting() for name in names[1:]},
        "verify": {"measured": curve, "alone": {rows: {"ms": 6.0 + int(rows), "passes": 7} for rows in ("1", "2")}},
        "memory": {
            "peak": 642_109_440,
            "weights": 126_587_520,
            "states": 190_218_240,
            "drafters": {"eagle": 5_000_000},
        },
        "runs": [run(prompt, name) for prompt in prompts for name in names],
    }
