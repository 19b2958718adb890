"""`outrider drafters`: which drafters there are, how each fits a model and where its weights are, and what one is worth."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from outrider.app import names, render
from outrider.app.command import Group
from outrider.app.commands import _drafters, _prompts
from outrider.app.options import configured_model, drafter_option
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_PROMPTS = 4
_TOKENS = 64
_EPILOG = """\b
Examples:
  outrider drafters list
  outrider drafters list --model ~/models/qwen.gguf --json
  outrider drafters show eagle --model qwen3-8b
  outrider drafters test prompt_lookup
  outrider drafters test --model qwen3-8b --drafter-weights ORG/NAME
  outrider drafters test eagle --drafter-weights ORG/NAME --drafter-option tree=chain"""

_model = click.option(
    "--model",
    "-m",
    metavar="M",
    callback=configured_model,
    help="The model that they should fit.  [default: that of the settings, else starter]",
)
_weights = click.option(
    "--drafter-weights",
    metavar="W",
    shell_complete=names.complete_weights,
    help="Weights to judge: a folder, a hub id (with @REVISION), or a drafter's name in the catalogue.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group(cls=Group, epilog=_EPILOG)
def drafters() -> None:
    """Drafters, the methods that guess ahead: list, show, test."""


@drafters.command("list", epilog=_EPILOG)
@_model
@_weights
@_json
def list_drafters(model: str, drafter_weights: str | None, as_json: bool) -> None:
    """List the drafters: how each fits the model, what it costs in memory, where its weights are.

    Weights are looked for in the model's own files, beside them, in the library, and in the catalogue of published
    drafters. `show` tells more of one of them.
    """
    rows = _rows(model, drafter_weights)
    if as_json:
        render.echo_json([_plain(row) for row in rows])
        return
    width = shutil.get_terminal_size().columns if render.is_terminal(sys.stdout) else None
    click.echo(_drafters.table(rows, width))
    if any(row.where == "catalogue" for row in rows):
        click.echo("\n" + _drafters.published(rows))


@drafters.command(epilog=_EPILOG)
@click.argument("name", shell_complete=names.complete_method)
@_model
@_weights
@_json
def show(name: str, model: str, drafter_weights: str | None, as_json: bool) -> None:
    """Show one drafter: whether it fits and why, where its weights are, and how to use it."""
    asked = name.replace("-", "_")
    rows = _rows(model, drafter_weights)
    row = next((row for row in rows if row.name == asked), None)
    if row is None:
        known = ", ".join(sorted(row.name for row in rows))
        raise render.WrongUsage(f"There is no drafter {name!r}; there are: {known}.", "See `outrider drafters list`.")
    if as_json:
        render.echo_json(_plain(row))
        return
    click.echo(_drafters.shown(row, model))


@drafters.command(epilog=_EPILOG)
@click.argument("name", required=False, shell_complete=names.complete_method)
@_model
@_weights
@drafter_option
@click.option(
    "--prompts", type=click.IntRange(1, 16), default=_PROMPTS, show_default=True, metavar="N", help="Bundled prompts."
)
@click.option("--max-tokens", type=click.IntRange(4, 4096), default=_TOKENS, show_default=True, metavar="N",
              help="Tokens of each answer.")  # fmt: skip
@click.option(
    "--draft-tokens",
    type=click.IntRange(1, protocol.MOST_DRAFTED),
    metavar="K",
    help="Length of a draft.  [default: usual]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="D",
    shell_complete=names.complete_device,
    help="auto, cpu, cuda or cuda:N.",
)
@click.option("--dtype", default="auto", show_default=True, metavar="T", help="auto, fp32, bf16 or fp16.")
@click.option("--conformance", is_flag=True, help="Check that it keeps the drafting contract instead.")
@_json
def test(name: str | None, **options: Any) -> None:
    """Try one drafter on bundled prompts against plain decoding.

    Greedy. Shows how many draft tokens are accepted at each depth, how long drafting and verifying take, and whether
    the text is the same. Without a NAME the one that the weights are for is tested, or the best that fits.

    Files that can be read in more than one way are tried in each, and the --drafter-option is named that chooses the
    one that gets most accepted. What --drafter-option settles already is tried in no other way.

    With --conformance the drafter goes through every check of the contract, for authors of plugins; exit code 1 says
    that one failed.
    """
    from outrider.app.commands import _engine

    data = _engine.with_engine(partial(_test, name=name or "auto", options=options))
    if options["as_json"]:
        render.echo_json(data)
    elif options["conformance"]:
        click.echo(_drafters.checks(data))
    else:
        click.echo(_drafters.tested(data))
    _judge(data)


async def _test(session: Session, *, name: str, options: dict[str, Any]) -> dict[str, Any]:
    return await session.ask(
        protocol.DrafterTest(
            id=session.client.number(),
            model=protocol.ModelChoice(model=options["model"], device=options["device"], dtype=options["dtype"]),
            prompts=_prompts.varied(_prompts.read(), options["prompts"]),
            drafter=protocol.DrafterChoice(
                name=name,
                weights=options["drafter_weights"],
                tokens=options["draft_tokens"],
                options=options["drafter_option"],
            ),
            limit=options["max_tokens"],
            conformance=options["conformance"],
        )
    )


def _judge(data: dict[str, Any]) -> None:
    """Raises Failure if the drafter failed, a check did, or a text differs by more than rounding can explain."""
    failed = [check["name"] for check in data.get("checks", ()) if check["verdict"] == "failed"]
    if failed:
        raise render.Failure(f"{data['drafter']} does not keep the contract: {', '.join(failed)}.")
    trials = data.get("trials", ())
    problems = [trial["problem"] for trial in trials if trial["problem"]]
    if problems:
        raise render.Failure(problems[0], "See the engine log.")
    for trial in trials:
        for difference in trial["differences"]:
            gap = difference["gap"]
            known = "" if gap is None else f", where the two best tokens differ by {gap:.2g} in probability"
            render.say(
                f"Warning: an answer to {difference['prompt']} differs from the plain one at token "
                f"{difference['token'] + 1}{known}.",
                "Near-ties can fall the other way through rounding; --dtype fp32 makes them rarer.",
            )


def _rows(model: str, weights: str | None) -> list[protocol.DrafterRow]:
    from outrider.app.commands import _engine

    async def work(session: Session) -> Any:
        choice = protocol.ModelChoice(model=model)
        return await session.ask(protocol.Drafters(id=session.client.number(), model=choice, weights=weights))

    return protocol.as_type(_engine.with_engine(work), list[protocol.DrafterRow])


def _plain(row: protocol.DrafterRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
