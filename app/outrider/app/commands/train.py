"""`outrider train METHOD`: a drafter for a model of one's own."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outrider.app import names, render
from outrider.app.command import Command, summary
from outrider.app.commands import _measured, _runs, _training
from outrider.app.options import EngineOptions, Number, engine_options, once
from outrider.core.base import protocol

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
  outrider train eagle --chats --budget 1h        begin with the questions of your own chats
  outrider train dflash --answers-of starter-eagle  learn from what another run was answered already
  outrider train eagle --resume                   go on with the run that was stopped last
  outrider train runs                             all runs, and how far each is
  outrider train export last --full --to FOLDER   the whole drafter, as other engines read it

Nothing is lost on Ctrl-C, a crash or a power cut: --resume goes on, and comes to the same weights."""
_YEAR = 365 * 86400.0  # seconds
_NEWEST = "newest"  # of the runs of a method
_LONGEST = protocol.TrainOrder(method="", folder="").longest  # tokens of a text, where nothing is said


def _budget(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = _training.seconds(value)
    except ValueError:
        found = 0.0
    if found <= 0:
        raise render.WrongUsage(f"--budget {value} is no time.", "Write 10m, 2h or 1h30m.")
    if found > _YEAR:
        raise render.WrongUsage(f"--budget {value} is longer than a year.", "Write 10m, 2h or 1h30m.")
    return found


def _options(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, equals, told = value.partition("=")
        if not equals or not name.strip():
            raise render.WrongUsage(f"--option must be NAME=VALUE, such as words=8192, not {value!r}.")
        once(found, name.strip(), "--option", "name")
        found[name.strip()] = told.strip()
    return found


class _Train(Command):
    """`runs` and `export` stand where a method would."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Methods"):
            formatter.write_text(", ".join(names.trainable()))
        with formatter.section("Instead of a method"):
            formatter.write_dl([(name, summary(other)) for name, other in _OTHERS.items()])
        super().format_options(ctx, formatter)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        other = _OTHERS.get(args[0]) if args else None
        if other is None:
            return super().make_context(info_name, args, parent, **extra)
        return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


@click.command(cls=_Train, epilog=_EPILOG)
@click.argument("method", metavar="METHOD", shell_complete=names.complete_trained)
@engine_options(
    without=_NOT,
    helps={"seed": "What answers and training draw with: the same seed, the same drafter."},
    measuring=True,
)
@click.option("--budget", metavar="TIME", callback=_budget, help="Plan all of it to take about so long: 10m, 2h.")
@click.option(
    "--answers", type=click.IntRange(1, 1_000_000), metavar="N", help="Answer N prompts.  [default: all, or by budget]"
)
@click.option("--prompts", metavar="FILE", help="Own prompts, one JSON object a line.  [default: bundled ones]")
@click.option("--chats", is_flag=True, help="Begin with what you asked in your own chats. Nothing leaves this machine.")
@click.option(
    "--answers-of",
    metavar="RUN",
    shell_complete=names.complete_run,
    help="Learn from the prompts and answers of another run: its folder, or its name.",
)
@click.option("--text", metavar="FILE", help="Learn from a text file instead of the model's own answers.")
@click.option(
    "--answer-temperature",
    type=Number(0, 2),
    default=0.7,
    show_default=True,
    metavar="T",
    help="How freely the model answers.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(8, 4096),
    metavar="N",
    default=256,
    show_default=True,
    help="Tokens of an answer, at most.",
)
@click.option("--epochs", type=Number(0.01, 1000), metavar="N", help="How often the data is gone through.")
@click.option(
    "--rate",
    type=Number(0, 1, min_open=True),
    metavar="R",
    help="Learning rate at its highest.  [default: 1e-3, a quarter of it with --continue-from]",
)
@click.option(
    "--option",
    "method_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_options,
    help="A setting of the method's own.",
)
@click.option(
    "--continue-from",
    metavar="FOLDER",
    help="Begin with this drafter instead of a fresh one; with --context N it learns from texts of up to N tokens.",
)
@click.option("--out", metavar="FOLDER", help="Where the run is kept.  [default: a fresh folder in the data folder]")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=_NEWEST,
    metavar="[RUN]",
    shell_complete=names.complete_run,
    help="Go on with a run: a folder, a name of `outrider train runs`; without one the newest of METHOD.",
)
@click.option("--no-cache", is_flag=True, help="Compute the target's states anew instead of keeping them on disk.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the result as JSON; - prints it instead of words.")
def train(options: EngineOptions, method: str, json_to: str | None, **told: Any) -> None:
    """Train a drafter for a model.

    The model answers prompts, a small drafter learns to foretell those answers, and is measured on texts that it has not seen.
    What comes out lies in the run's folder as other engines read it too. Where it is better than the one that the model has,
    `auto` takes it from then on.
    """
    _measured.check_writable("json", json_to)
    request = _request(method.replace("-", "_"), options, told)
    from outrider.app.commands import _engine

    async def work(session: Session) -> dict[str, Any]:
        curve = _training.Curve(sys.stderr, terminal=render.is_screen(sys.stderr))
        curve.course.recall(Path(request.order.folder))
        request.id = session.client.number()
        session.cancel_first(request.id, _PATIENCE)

        def show(event: protocol.Event) -> None:
            if isinstance(event, protocol.Notice):
                curve.clear()
                session.show(event)
            else:
                curve.show(event)

        try:
            data = await session.client.ask(request, show)
        finally:
            curve.clear()
        if json_to == "-":
            render.echo_json(data)
        else:
            click.echo(_told(data, curve.course))
        if json_to not in (None, "-"):
            _measured.write(str(json_to), render.json_text(data) + b"\n")
        return data

    render.say(f"The run is kept in {request.order.folder}")
    _engine.with_engine(work)


@click.command(cls=Command, name="runs", epilog="Example: outrider train runs --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(as_json: bool) -> None:
    """List the runs that are kept in the data folder, the one last worked on first."""
    found = _runs.kept()
    if as_json:
        render.echo_json([protocol.plain(run) for run in found])
        return
    if not found:
        render.say("There is no run yet.", "`outrider train METHOD` begins one.")
        return
    rows = [
        (
            run.name,
            run.method,
            run.model,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed)),
            "" if run.tokens_per_pass is None else f"{run.tokens_per_pass:.2f}",
            run.state,
        )
        for run in found
    ]
    click.echo(render.table(("RUN", "METHOD", "MODEL", "CHANGED", "TOK/PASS", "STATE"), rows, right=(4,)))


@click.command(cls=Command, name="export", epilog="Example: outrider train export last --full --to eagle-for-my-model")
@click.argument("run", metavar="RUN", shell_complete=names.complete_run)
@click.option("--to", required=True, metavar="FOLDER", help="A new folder.")
@click.option("--full", is_flag=True, help="With all that equals the model's own weights, as other engines need it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(run: str, to: str, full: bool, as_json: bool) -> None:
    """Write the drafter of a run, as it stands, to a new folder in its public format.

    RUN: a folder, a name of `outrider train runs`, or `last`.
    """
    folder = _runs.named(run)
    from outrider.app.commands import _engine

    async def work(session: Session) -> None:
        number = session.client.number()
        request = protocol.TrainExport(id=number, folder=str(folder), to=str(Path(to).absolute()), whole=full)
        data = await session.ask(request)
        if as_json:
            render.echo_json(data)
        else:
            click.echo(render.printable(f"{data['folder']}: {', '.join(data['files'])}"))

    _engine.with_engine(work)


_OTHERS = {"runs": runs, "export": export}


def _request(method: str, options: EngineOptions, told: dict[str, Any]) -> protocol.Train:
    """What is asked of the engine. Raises WrongUsage."""
    if told["text"] is not None and (told["prompts"] is not None or told["chats"]):
        raise render.WrongUsage("--text goes with neither --prompts nor --chats.", "Learn from one of both.")
    if told["answers_of"] is not None and (told["text"] is not None or told["prompts"] is not None or told["chats"]):
        raise render.WrongUsage(
            "--answers-of goes with neither --prompts nor --chats nor --text.", "Its prompts are those of that run."
        )
    resumed = told["resume"]
    if resumed is not None and told["out"] is not None:
        raise render.WrongUsage("--resume and --out exclude each other.", "--resume RUN names the folder.")
    if resumed is not None:
        folder = _runs.stopped(method) if resumed == _NEWEST else _runs.named(resumed)
    else:
        folder = Path(told["out"]).absolute() if told["out"] else _runs.fresh(method, options.model.model)
    begun = None if told["continue_from"] is None else str(Path(told["continue_from"]).absolute())
    order = protocol.TrainOrder(
        method=method,
        folder=str(folder),
        budget_s=told["budget"],
        answers=told["answers"],
        text=None if told["text"] is None else str(Path(told["text"]).absolute()),
        epochs=told["epochs"],
        temperature=told["answer_temperature"],
        answer_tokens=told["answer_tokens"],
        longest=options.model.context or _LONGEST,
        rate=told["rate"],
        seed=options.sampling.seed or 0,
        threads=options.model.threads,
        cache=not told["no_cache"],
        options=told["method_options"],
        continue_from=begun,
        answers_of=None if told["answers_of"] is None else str(_runs.named(told["answers_of"])),
    )
    model = options.model if resumed is None or options.typed("engine.model") else None
    return protocol.Train(id=0, order=order, model=model, prompts=_prompts(told), resume=resumed is not None)


def _prompts(told: dict[str, Any]) -> list[protocol.TrainPrompt]:
    """What the model is asked: chats first, if they are wanted, then a file or the bundled prompts. Raises WrongUsage."""
    if told["text"] is not None or told["answers_of"] is not None:
        return []
    if told["resume"] is not None and told["prompts"] is None and not told["chats"]:
        return []
    own = _training.chats() if told["chats"] else []
    if told["chats"] and not own:
        raise render.WrongUsage("There are no chats yet.", "Leave --chats out.")
    return [*own, *_training.prompts(told["prompts"])]


def _told(data: dict[str, Any], course: _training.Course) -> str:
    """What came out, in a few lines."""
    loss = "" if data["loss"] is None else f", loss {data['loss']:.3f}"
    lines = [
        f"{data['method']}: {data['parameters']:,} weights, {data['steps']:,} steps over {data['texts']:,} texts "
        f"({data['tokens']:,} tokens){loss}"
    ]
    lines += course.lines(80)
    measured, rival = data["measured"], data["rival_measured"]
    if measured is not None:
        lines.append(
            f"On {measured['texts']} texts that it has not seen: {measured['tokens_per_pass']:.2f} tokens a pass"
        )
        lines.append(f"Right at depth 1, 2, …: {' '.join(f'{share:.0%}' for share in measured['by_depth'])}")
        lines += _contexts(measured, data.get("before"))
    if data["place"]:
        than = f", {rival['tokens_per_pass']:.2f} with the one before it" if rival else ""
        lines.append(f"`auto` takes it for this model from now on{than}: {data['place']}")
        lines.append(f"Try it: outrider bench --drafter {data['method']}")
    elif data.get("model"):
        lines.append(f"It is a model of its own: outrider --model {data['drafter']} --drafter {data['method']}")
    else:
        if rival is not None:
            lines.append(
                f"The one that is there is better on the same texts, {rival['tokens_per_pass']:.2f}, and stays."
            )
        lines.append(f"Its files: {data['drafter']}")
        lines.append(f"Try it: outrider bench --drafter {data['method']} --drafter-weights {data['drafter']}")
    return render.printable("\n".join(lines))


def _contexts(measured: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """Tokens a pass by the length of what stands before; of the drafter that it went on from as well, if it did."""
    if before is None:
        return []
    lines = [f"The one that it went on from: {before['tokens_per_pass']:.2f} tokens a pass on the same texts"]
    earlier = {near["context"]: near["tokens_per_pass"] for near in before.get("by_context", ())}
    for near in measured.get("by_context", ()):
        if near["context"] in earlier:
            then, now = earlier[near["context"]], near["tokens_per_pass"]
            lines.append(f"  up to {near['context']:>6,} tokens before: {then:.2f}, now {now:.2f}")
    return lines
