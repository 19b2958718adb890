"""`outrider replay`: a saved race of compare mode once more, without an engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from outrider.app import render
from outrider.app.command import Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EPILOG = """\b
Examples:
  outrider replay race.json                         side by side, on the clock that was recorded
  outrider replay race.json --format md             the verdict to paste
  outrider replay race.json --format svg > race.svg

FILE is a file, or the name of a race that the chat saved; compare mode (F7) makes them."""


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from outrider.app.chat.compare.keeping import saved

    names = [path.stem for path in saved() if path.stem.startswith(incomplete)]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("file", shell_complete=_complete)
@click.option(
    "--format",
    "kind",
    type=click.Choice(("text", "md", "svg", "json")),
    help="Print the verdict so instead.  [default: text where stdout is no terminal]",
)
def replay(file: str, kind: str | None) -> None:
    """Play a saved race of compare mode again."""
    from outrider.app.chat.compare import keeping, picture, verdict

    try:
        race = keeping.load(keeping.find(file))
    except (ValueError, OSError) as error:
        raise render.WrongUsage(
            f"{file} cannot be replayed: {error}", "Compare mode (F7 in the chat) saves races."
        ) from error
    if kind is None and render.is_terminal(sys.stdout) and render.stdin_is_terminal():
        from outrider.app.chat.compare.alone import ReplayApp
        from outrider.app.config import Asked

        ReplayApp(race, Asked().settle().config.look).run()
        return
    told = {"text": verdict.text, "md": verdict.markdown, "svg": picture.svg, "json": keeping.as_json}
    click.echo(told[kind or "text"](race), nl=False)
