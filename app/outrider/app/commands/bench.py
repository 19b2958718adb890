"""`outrider bench`: the same prompts with and without each drafter, back to back in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.app.command import Command
from outrider.app.commands import _measured, _prompts
from outrider.app.options import EngineOptions, engine_options
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_TOKENS = 128
_QUICK_TOKENS = 48
_MOST = 1024  # answers at once
_HELPS = {
    "temperature": "0 is greedy, 0.7 usual, above 1 wild.  [default: 0]",
    "max_tokens": f"Tokens of an answer.  [default: {_TOKENS}; {_QUICK_TOKENS} with --quick]",
    "seed": "What sampled answers are drawn with.  [default: 0]",
}
_EPILOG = f"""\b
Examples:
  outrider bench --quick                          one prompt of each category, a minute or two
  outrider bench --drafters prompt_lookup --categories code_edit,summarisation
  outrider bench --prompts mine.jsonl --repeats 3 --json result.json
  outrider bench --markdown result.md --plot result.svg
  outrider bench --json - | jq .total

\b
A line of a prompts file:
  {_prompts.EXAMPLE}
Lines of MT-bench and Spec-Bench are read too: question_id for the id, prompt for a single turn."""


def _counts(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[int]:
    try:
        counts = [int(word) for word in _measured.words(*values)]
    except ValueError:
        counts = [0]
    if any(not 1 <= count <= _MOST for count in counts):
        raise render.WrongUsage(f"--batch must be numbers from 1 to {_MOST}, such as 1,4,16, not {','.join(values)!r}.")
    return counts


@dataclass(frozen=True, slots=True)
class _Files:
    """Where the results go besides the table; - is stdout, in place of it."""

    json: str | None
    markdown: str | None
    plot: str | None

    def check(self) -> None:
        """Better now than after ten minutes of measuring. Raises WrongUsage."""
        if self.json == self.markdown == "-":
            raise render.WrongUsage("--json and --markdown cannot both go to stdout.", "Name a file for one of them.")
        for option, name in (("json", self.json), ("markdown", self.markdown), ("plot", self.plot)):
            _measured.check_writable(option, name)

    def write(self, data: dict[str, Any]) -> None:
        """All of them, and the table if stdout is left to it."""
        from outrider.app.commands import _bench, _bench_plot

        made = ((self.json, lambda: render.json_text(data) + b"\n"), (self.markdown, lambda: _bench.as_markdown(data)))
        for name, make in (*made, (self.plot, lambda: _bench_plot.svg(data))):
            if name == "-":
                click.echo(make(), nl=False)
            elif name:
                _measured.write(name, make())
        if "-" not in (self.json, self.markdown):
            click.echo(_bench.as_text(data))


@click.command(cls=Command, epilog=_EPILOG)
@engine_options(without=("drafter", "system", "rule", "stop"), helps=_HELPS, measuring=True)
@_measured.drafters_option
@click.option("--prompts", metavar="FILE", help="Own prompts, one JSON object a line.  [default: the bundled ones]")
@_measured.categories_option
@click.option("--limit", type=click.IntRange(1, 1_000_000), metavar="N", help="At most N prompts of each category.")
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N", help="Measure N times."
)
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints it instead of the table.")
@click.option("--markdown", "markdown_to", metavar="FILE|-", help="Write the tables as Markdown; - prints them so.")
@click.option("--plot", "plot_to", metavar="FILE.svg", help="Draw the ratios, with their intervals.")
@click.option(
    "--batch",
    multiple=True,
    metavar="N,N",
    callback=_counts,
    help="Also N answers at once, plain and with the first drafter: total tokens per second and memory.",
)
@click.option("--steps", is_flag=True, help="Keep every pass in the JSON.")
@click.option(
    "--quick",
    is_flag=True,
    help=f"One prompt of each category, {_QUICK_TOKENS} tokens each, and only drafters that need no weights.",
)
def bench(
    options: EngineOptions,
    names: list[str],
    prompts: str | None,
    categories: tuple[str, ...],
    limit: int | None,
    repeats: int,
    json_to: str | None,
    markdown_to: str | None,
    plot_to: str | None,
    batch: list[int],
    steps: bool,
    quick: bool,
) -> None:
    """Measure tokens per second with and without each drafter.

    Every prompt runs plainly and with each drafter, one after the other in the same process and in rotating order, so
    that a ratio compares like with like. Greedy and 128 tokens long unless --temperature or --max-tokens say otherwise.
    Ctrl-C ends it early with what was measured by then; pressed twice it ends at once.
    """
    chosen = _prompts.choose(
        _prompts.read(prompts), _measured.words(*categories), 1 if quick and limit is None else limit
    )
    if batch and options.model.exact:
        raise render.WrongUsage("--batch and --exact exclude each other.", "Exact mode makes one answer at a time.")
    files = _Files(json_to, markdown_to, plot_to)
    files.check()
    sampling = options.sampling
    sampling.temperature = 0.0 if sampling.temperature is None else sampling.temperature
    sampling.max_tokens = sampling.max_tokens or (_QUICK_TOKENS if quick else _TOKENS)
    from outrider.app.commands import _engine

    async def work(session: Session) -> None:
        drafters = await _measured.riders(session, options, names, free=quick)
        request = protocol.Bench(
            id=session.client.number(),
            model=options.model,
            prompts=chosen,
            drafters=[protocol.DrafterChoice(name="none"), *drafters],
            sampling=sampling,
            repeats=repeats,
            steps=steps,
            batch=batch,
        )
        session.cancel_first(request.id, _measured.PATIENCE)
        data = await session.ask(request)
        files.write(data)
        if data["stopped"]:
            done = len({(run["prompt"], run["repeat"]) for run in data["runs"]})
            render.say(f"Stopped after {done} of {len(chosen) * repeats} prompts.")

    _engine.with_engine(work)
