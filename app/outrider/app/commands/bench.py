"""`outrider bench`: the same prompts with and without each drafter, back to back in one process."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from outrider.app import render
from outrider.app.commands import _prompts
from outrider.app.options import EngineOptions, engine_options
from outrider.core import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_TOKENS = 128
_QUICK_TOKENS = 48
_EPILOG = """\b
Examples:
  outrider bench --quick                          one prompt of each category, a minute or two
  outrider bench --drafters prompt_lookup --categories code_edit,summarisation
  outrider bench --prompts mine.jsonl --repeats 3 --json result.json
  outrider bench --json - | jq .total

\b
A line of a prompts file:
  {"id": "hello", "category": "chat", "turns": ["Hello!", "And now in French."]}"""


@click.command(epilog=_EPILOG)
@engine_options(without=("system", "rule", "stop"))
@click.option("--drafters", "names", metavar="A,B", help="Which drafters to measure.  [default: all that fit]")
@click.option("--prompts", metavar="FILE", help="Own prompts, one JSON object a line.  [default: the bundled ones]")
@click.option("--categories", metavar="A,B", help="Only prompts of these categories.  [default: all]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N prompts of each category.")
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N", help="Measure N times."
)
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints it instead of the table.")
@click.option("--quick", is_flag=True, help=f"One prompt of each category, {_QUICK_TOKENS} tokens each.")
def bench(
    options: EngineOptions,
    names: str | None,
    prompts: str | None,
    categories: str | None,
    limit: int | None,
    repeats: int,
    json_to: str | None,
    quick: bool,
) -> None:
    """Measure tokens per second with and without each drafter.

    Every prompt runs plainly and with each drafter, one after the other in the same process and in rotating order, so
    that a ratio compares like with like. Greedy and 128 tokens long unless --temperature or --max-tokens say otherwise.
    """
    chosen = _prompts.choose(_prompts.read(prompts), _words(categories), 1 if quick and limit is None else limit)
    if json_to not in (None, "-"):
        _check_writable(Path(str(json_to)))
    sampling = options.sampling
    sampling.temperature = 0.0 if sampling.temperature is None else sampling.temperature
    sampling.max_tokens = sampling.max_tokens or (_QUICK_TOKENS if quick else _TOKENS)
    from outrider.app.commands import _engine

    wanted = [name.replace("-", "_") for name in _words(names)]
    if not wanted and options.drafter.name != "auto":
        wanted = [options.drafter.name]
    data = _engine.with_engine(partial(_measure, options=options, wanted=wanted, prompts=chosen, repeats=repeats))
    if json_to == "-":
        render.echo_json(data)
        return
    if json_to:
        _write(Path(json_to), render.json_text(data))
    click.echo(_report(data))
    _warn_of_differences(data)


async def _measure(
    session: Session, *, options: EngineOptions, wanted: list[str], prompts: list[protocol.BenchPrompt], repeats: int
) -> dict[str, Any]:
    plain = protocol.DrafterChoice(name="none")
    load = protocol.Load(id=session.client.number(), model=options.model, drafter=plain)
    loaded = protocol.as_type(await session.ask(load), protocol.Loaded)
    names = wanted or [row.name for row in loaded.drafters if row.usable]
    choices = [msgspec.structs.replace(options.drafter, name=name) for name in dict.fromkeys(names) if name != "none"]
    return await session.ask(
        protocol.Bench(
            id=session.client.number(),
            model=options.model,
            prompts=prompts,
            drafters=[plain, *choices],
            sampling=options.sampling,
            repeats=repeats,
        )
    )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _check_writable(path: Path) -> None:
    """Better now than after ten minutes of measuring."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise render.WrongUsage(f"--json {path} cannot be written.", "Name a file in a folder that exists.")


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(data + b"\n")
    beside.replace(path)


def _report(data: dict[str, Any]) -> str:
    head = f"{data['model']} · {data['dtype']} · {data['device']}, {data['threads']} threads"
    lines: list[tuple[str, ...]] = []
    groups = [*data["categories"].items()]
    if len(groups) > 1:
        groups.append(("total", data["total"]))
    for category, figures in groups:
        lines += [_line(category if i == 0 else "", name, figures[name]) for i, name in enumerate(data["drafters"])]
    columns = ("CATEGORY", "DRAFTER", "TOK/S", "RATIO", "TOK/PASS", "ACCEPTED", "PROMPTS", "TOKENS")
    return render.printable(head) + "\n\n" + render.table(columns, lines, right=range(2, 8))


def _line(category: str, name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    drafted = name != "none"
    return (
        category,
        name if drafted else "plain",
        f"{figures['tokens_per_second']:.1f}",
        f"{figures['ratio']:.2f}×" if drafted else "",
        f"{figures['tokens_per_pass']:.2f}",
        f"{figures['acceptance']:.0%}" if drafted else "",
        str(figures["prompts"]),
        str(figures["tokens"]),
    )


def _warn_of_differences(data: dict[str, Any]) -> None:
    runs = [run for run in data["runs"] if run["drafter"] != "none"]
    differ = sum(not run["same_text"] for run in runs)
    if differ:
        render.say(
            f"Warning: {differ} of {len(runs)} drafted answers differ from the plain one.",
            "Near-ties can fall the other way through rounding; --dtype fp32 makes them rarer, --json lists the runs.",
        )
