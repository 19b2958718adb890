"""How a model's publisher wants tokens drawn: generation_config.json, or `general.sampling.*` of a GGUF file.

Every value that Outrider has a setting for is used where it makes sense; one that does not is left out, and told. A value of
another type is not guessed at: "0.7" in quotes is no number. `do_sample: false` means greedy, as in transformers; where it
is not there the other values hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.core.base.protocol import Sampling

_SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_GGUF = {
    "temp": "temperature",
    "penalty_repeat": "repetition_penalty",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
_SHOWN = 40  # characters of a value


def of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling keys of a GGUF file under the names of generation_config.json."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _GGUF.items()}
    return {name: value for name, value in found.items() if value is not None}


def recommended(generation: Mapping[str, Any]) -> tuple[Sampling, list[str]]:
    """The settings that a model recommends, and a sentence about each value that is left out."""
    made, refused = Sampling(), list[str]()
    for key, name in _SETTINGS.items():
        value = generation.get(key)
        if value is None:
            continue
        number = _number(value, whole=name == "top_k")
        alone = Sampling()
        setattr(alone, name, number)
        problem = f"{key} is no number" if number is None else alone.problem()
        if problem is None:
            setattr(made, name, number)
        else:
            refused.append(_refusal(key, value, problem))
    sampled = generation.get("do_sample")
    if sampled is False:
        made.temperature = 0.0
    elif sampled is not None and sampled is not True:
        refused.append(_refusal("do_sample", sampled, "do_sample is neither true nor false"))
    return made, refused


def _number(value: Any, *, whole: bool) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not whole:
        return float(value) if abs(value) < 1e30 or isinstance(value, float) else None
    if value == -1:  # how some write that it is off
        return 0
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _refusal(key: str, value: Any, problem: str) -> str:
    shown = repr(value) if len(repr(value)) <= _SHOWN else repr(value)[: _SHOWN - 1] + "…"
    why = problem.partition(" (")[0].rstrip(".").removeprefix("--").partition(", not ")[0]
    return f"This model recommends {key} {shown}, which is left out: {why}."
