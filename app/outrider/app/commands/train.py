"""`outrider train METHOD`: a drafter for a model of one's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.app.commands import _measured, _training
from outrider.app.options import EngineOptions, engine_options
from outrider.core import paths, protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_NOT = (
    "drafter",
    "weights",
    "drafter_option",
    "draft_tokens",
    "system",
    "rule",
    "exact",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "max_tokens",
    "stop",
)
_PATIENCE = 120.0  # seconds that a stage may take to come to a place where it can be stopped
_EPILOG = """\b
Examples:
  outrider train eagle --budget 10m               an EAGLE-3 draft for the starter, in ten minutes
  outrider train medusa --model qwen.gguf --budget 2h
  outrider train eagle --text book.txt            learn from a text instead of the model's own answers
  outrider train eagle --option words=0 --option steps=5
  outrider train eagle --resume RUN               go on with a run that was stopped

Nothing is lost on Ctrl-C, a crash or a power cut: the same command with --resume goes on, and comes to the same weights."""


def _budget(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = _training.seconds(value)
    except ValueError:
        found = 0.0
    if found <= 0:
        raise render.WrongUsage(f"--budget {value} is no time.", "Write 10m, 2h or 1h30m.")
    return found


def _options(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, equals, told = value.partition("=")
        if not equals or not name.strip():
            raise render.WrongUsage(f"--option must be NAME=VALUE, such as words=8192, not {value!r}.")
        found[name.strip()] = told.strip()
    return found


@click.command(epilog=_EPILOG)
@click.argument("method", metavar="METHOD")
@engine_options(without=_NOT, measuring=True)
@click.option("--budget", metavar="TIME", callback=_budget, help="Plan all of it to take about so long: 10m, 2h.")
@click.option(
    "--answers", type=click.IntRange(min=1), metavar="N", help="Answer N prompts.  [default: all, or by budget]"
)
@click.option("--prompts", metavar="FILE", help="Own prompts, one JSON object a line.  [default: bundled ones]")
@click.option("--text", metavar="FILE", help="Learn from a text file instead of the model's own answers.")
@click.option(
    "--answer-temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="Of its answers."
)
@click.option(
    "--answer-tokens", type=click.IntRange(8, 4096), default=256, show_default=True, help="Of an answer, at most."
)
@click.option("--epochs", type=click.FloatRange(0.01), metavar="N", help="How often the data is gone through.")
@click.option("--rate", type=click.FloatRange(0, 1, min_open=True), metavar="R", help="Learning rate at its highest.")
@click.option(
    "--option", "method_options", multiple=True, metavar="NAME=VALUE", callback=_options, help="Of the method."
)
@click.option("--out", metavar="FOLDER", help="Of the run.  [default: a fresh one in the data folder]")
@click.option("--resume", metavar="FOLDER", help="Go on with the run in this folder.")
@click.option("--no-cache", is_flag=True, help="Compute the target's states anew instead of keeping them on disk.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the result as JSON; - prints it instead of words.")
def train(options: EngineOptions, method: str, json_to: str | None, **told: Any) -> None:
    """Train a drafter for a model: METHOD is one of `outrider drafters list` that can be trained.

    The model answers prompts, a small drafter learns to foretell those answers, and is measured on texts that it has not seen.
    What comes out lies in the run's folder as other engines read it too, and beside the model, where `auto` finds it.
    """
    _measured.check_writable("json", json_to)
    order, prompts = _order(method.replace("-", "_"), options, told)
    from outrider.app.commands import _engine

    async def work(session: Session) -> dict[str, Any]:
        curve = _training.Curve(sys.stderr, terminal=render.is_terminal(sys.stderr))
        request = protocol.Train(
            id=session.client.number(),
            model=options.model,
            order=order,
            prompts=prompts,
            resume=told["resume"] is not None,
        )
        session.cancel_first(request.id, _PATIENCE)

        def show(event: protocol.Event) -> None:
            if isinstance(event, protocol.Notice):
                curve.clear()
            session.show(event) if isinstance(event, protocol.Notice) else curve.show(event)

        data = await session.client.ask(request, show)
        curve.clear()
        if json_to == "-":
            render.echo_json(data)
        else:
            click.echo(_told(data, curve))
        if json_to not in (None, "-"):
            _measured.write(str(json_to), render.json_text(data) + b"\n")
        return data

    render.say(f"The run is kept in {order.folder}")
    _engine.with_engine(work)


def _order(
    method: str, options: EngineOptions, told: dict[str, Any]
) -> tuple[protocol.TrainOrder, list[protocol.TrainPrompt]]:
    """What is asked of the engine. Raises WrongUsage."""
    if told["text"] is not None and told["prompts"] is not None:
        raise render.WrongUsage("--text and --prompts exclude each other.", "Give one of them.")
    place = told["resume"] or told["out"]
    folder = Path(place).absolute() if place else _training.folder(method, options.model.model, paths.data_dir())
    order = protocol.TrainOrder(
        method=method,
        folder=str(folder),
        budget_s=told["budget"],
        answers=told["answers"],
        text=None if told["text"] is None else str(Path(told["text"]).absolute()),
        epochs=told["epochs"],
        temperature=told["answer_temperature"],
        answer_tokens=told["answer_tokens"],
        rate=told["rate"],
        seed=options.sampling.seed or 0,
        cache=not told["no_cache"],
        options=told["method_options"],
    )
    fresh = told["resume"] is None and told["text"] is None
    return order, _training.prompts(told["prompts"]) if fresh or told["prompts"] else []


def _told(data: dict[str, Any], curve: _training.Curve) -> str:
    """What came out, in a few lines."""
    lines = [
        f"{data['method']}: {data['parameters']:,} weights, {data['steps']} steps over {data['texts']:,} texts "
        f"({data['tokens']:,} tokens), loss {data['loss']:.3f}"
    ]
    measured = data["measured"]
    if measured is not None:
        shares = " ".join(f"{share:.0%}" for share in measured["by_depth"])
        lines.append(
            f"On {measured['texts']} texts that it has not seen: {measured['tokens_per_pass']:.2f} tokens a pass"
        )
        lines.append(f"right at depth 1, 2, …: {shares}")
    if curve.losses:
        lines.append(f"loss {_training.curve(curve.losses, 60)}")
    lines.append(f"The drafter: {data['drafter']}")
    lines.append(f"Try it: outrider bench --drafter {data['method']} --drafter-weights {data['drafter']}")
    return render.printable("\n".join(lines))
