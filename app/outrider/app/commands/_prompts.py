"""The prompts that drafters are measured on: the bundled ones, or a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from outrider.app import render
from outrider.core.base.bounded import TooLong, read_path
from outrider.core.base.protocol import BenchPrompt

_LONGEST = 64_000_000  # bytes of a file
EXAMPLE = '{"id": "hello", "category": "chat", "turns": ["Hello!", "And now in French."]}'


class _Line(msgspec.Struct):
    """One line of a file: ours, or one of MT-bench, Spec-Bench and their kin. What else stands there is left aside."""

    id: str | int | None = None
    question_id: str | int | None = None
    task_id: str | int | None = None
    category: str = ""
    turns: list[str] | None = None
    prompt: str | None = None
    source: str = ""


def read(path: str | None = None) -> list[BenchPrompt]:
    """One JSON object a line; without `path` the bundled ones. Raises WrongUsage, which names the line."""
    name = path or "the bundled prompts"
    try:
        bundled = files("outrider.assets") / "bench_prompts.jsonl"
        data = read_path(Path(path), _LONGEST) if path else bundled.read_bytes()
    except OSError as error:
        raise render.WrongUsage(f"--prompts {name} cannot be read: {error.strerror}.", "Name a .jsonl file.") from error
    except TooLong:
        raise render.WrongUsage(
            f"--prompts {name} is longer than {render.size(_LONGEST)}, and that is the most.", "Name a .jsonl file."
        ) from None
    found: dict[str, tuple[int, BenchPrompt]] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        prompt = _prompt(line, number, name)
        if prompt.id in found:
            raise render.WrongUsage(
                f"Lines {found[prompt.id][0]} and {number} of {name} have the same id, {prompt.id}.",
                "Give each an id of its own, or leave ids out.",
            )
        found[prompt.id] = number, prompt
    return [prompt for _, prompt in found.values()]


def _prompt(line: bytes, number: int, name: str) -> BenchPrompt:
    try:
        told = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = f"A line looks like this: {EXAMPLE}"
        if number == 1 and line.lstrip().startswith(b"["):
            hint = f"It looks like one JSON array; take one object a line instead: {EXAMPLE}"
        raise render.WrongUsage(f"Line {number} of {name} is no prompt: {error}.", hint) from error
    turns = told.turns if told.turns is not None else [told.prompt] if told.prompt is not None else None
    if turns is None:
        raise render.WrongUsage(
            f"Line {number} of {name} has neither `turns` nor `prompt`.", f"A line looks like this: {EXAMPLE}"
        )
    if not turns or not all(turn.strip() for turn in turns):
        raise render.WrongUsage(f"Line {number} of {name} has an empty turn.", "Give every turn some text.")
    names = (one for one in (told.id, told.question_id, told.task_id) if one is not None)
    return BenchPrompt(str(next(names, f"line {number}")), told.category or "prompts", turns, told.source)


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
