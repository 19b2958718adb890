"""The benchmark job: every drafter on the same prompts, back to back in one process, in rotated order."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from .engine import Engine, Say
from .errors import UsageError
from .loading import Model
from .prompting import PLAIN, Prompting, Run, run_of, score
from .protocol import Bench, DrafterChoice, Message, Progress

WARM_UP_TOKENS = 16


def run(engine: Engine, request: Bench, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """The whole benchmark. Raises UsageError for no prompts or an unknown drafter, Cancelled when stopped."""
    if not request.prompts:
        raise UsageError("There are no prompts to run.", "Give --prompts FILE.jsonl or other --categories.")
    model = engine.load(request.model, request.id, say, cancelled)
    drafters = [choice for choice in request.drafters if choice.name != PLAIN.name]
    choices = [PLAIN, *drafters]
    for choice in choices:
        engine.drafter(model, choice, lambda text: None)  # an unknown one is told now, not after an hour
    prompting = Prompting(engine, request, request.sampling, say, cancelled)
    for choice in choices:  # allocator, kernels, caches
        prompting.answer([Message("user", "Count to five.")], choice, WARM_UP_TOKENS)
    runs: list[Run] = []
    total = len(request.prompts) * request.repeats
    for repeat in range(request.repeats):
        for index, prompt in enumerate(request.prompts):
            done = repeat * len(request.prompts) + index
            say(Progress(request.id, "bench", done, total, "prompts", prompt.id))
            for turn, made in enumerate(prompting.turns(prompt, drafters, rotation=done)):
                runs += [
                    run_of(prompt, turn, repeat, choice.name, (made[0].report, answered.report))
                    for choice, answered in zip(choices, made, strict=True)
                ]
    say(Progress(request.id, "bench", total, total, "prompts"))
    return _result(request, model, choices, runs)


def _result(request: Bench, model: Model, choices: list[DrafterChoice], runs: list[Run]) -> dict[str, Any]:
    def scores(some: list[Run]) -> dict[str, Any]:
        plain = [run for run in some if run.drafter == PLAIN.name]
        names = [choice.name for choice in choices]
        return {name: msgspec.to_builtins(score([run for run in some if run.drafter == name], plain)) for name in names}

    categories = list(dict.fromkeys(prompt.category for prompt in request.prompts))
    loaded = model.loaded
    return {
        "model": request.model.model,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "threads": loaded.threads,
        "machine": _machine(),
        "settings": {
            "sampling": msgspec.to_builtins(request.sampling),
            "repeats": request.repeats,
            "prompts": len(request.prompts),
            "load": msgspec.to_builtins(request.model),
        },
        "drafters": [choice.name for choice in choices],
        "categories": {name: scores([run for run in runs if run.category == name]) for name in categories},
        "total": scores(runs),
        "runs": [msgspec.to_builtins(run) for run in runs],
    }


def _machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "load": load,
    }
