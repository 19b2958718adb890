"""The prompts that drafters are measured on: the bundled ones, or a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from outrider.app import render
from outrider.core.protocol import BenchPrompt


def read(path: str | None = None) -> list[BenchPrompt]:
    """One JSON object a line; without `path` the bundled ones. Raises WrongUsage, which names the line."""
    name = path or "the bundled prompts"
    try:
        data = Path(path).read_bytes() if path else (files("outrider.assets") / "bench_prompts.jsonl").read_bytes()
    except OSError as error:
        raise render.WrongUsage(f"--prompts {name} cannot be read: {error.strerror}.", "Name a .jsonl file.") from error
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = msgspec.json.decode(line, type=BenchPrompt)
        except msgspec.MsgspecError as error:
            raise render.WrongUsage(
                f"Line {number} of {name} is no prompt: {error}.",
                "`outrider bench --help` shows what a line looks like.",
            ) from error
        if not prompt.turns or not all(turn.strip() for turn in prompt.turns):
            raise render.WrongUsage(f"Line {number} of {name} has an empty turn.", "Give every turn some text.")
        found.append(prompt)
    return found


def choose(prompts: list[BenchPrompt], categories: list[str], limit: int | None) -> list[BenchPrompt]:
    """At most `limit` of each category (all without one), of `categories` alone if there are any. Raises WrongUsage."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    unknown = [category for category in categories if category not in known]
    if unknown:
        raise render.WrongUsage(
            f"--categories: there are no prompts of category {unknown[0]}.", f"Choose from {', '.join(known)}."
        )
    taken: dict[str, int] = dict.fromkeys(categories or known, 0)
    chosen = []
    for prompt in prompts:
        if prompt.category in taken and (limit is None or taken[prompt.category] < limit):
            taken[prompt.category] += 1
            chosen.append(prompt)
    if not chosen:
        raise render.WrongUsage("There are no prompts to measure with.", "Put one JSON object a line into the file.")
    return chosen


def varied(prompts: list[BenchPrompt], count: int) -> list[BenchPrompt]:
    """The first `count` where categories take turns."""
    seen: dict[str, int] = {}
    rounds = []
    for prompt in prompts:
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        rounds.append(seen[prompt.category])
    order = sorted(range(len(prompts)), key=rounds.__getitem__)
    return [prompts[number] for number in order[:count]]
