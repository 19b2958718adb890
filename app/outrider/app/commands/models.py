"""`outrider models`: what is in the local library and what can be brought."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.core import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_EPILOG = """\b
Examples:
  outrider models list
  outrider models pull starter
  outrider models show starter --json
  outrider models rm starter --yes"""

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_NAME = click.argument("name")


@click.group(epilog=_EPILOG)
def models() -> None:
    """Local and catalogue models: list, pull, show, rm."""


@models.command("list", epilog="Example: outrider models list --json")
@_JSON
def list_models(as_json: bool) -> None:
    """List the models that are here and those that can be pulled."""
    rows = _ask(partial(protocol.Models), list[protocol.ModelRow])
    if as_json:
        render.echo_json([_full(row) for row in rows])
        return
    lines = [
        (row.name, render.size(row.nbytes) if row.nbytes else "", _state(row), row.format, row.license, row.title)
        for row in rows
    ]
    click.echo(render.table(("NAME", "SIZE", "STATE", "FORMAT", "LICENSE", "TITLE"), lines, right=(1,)))
    for row in rows:
        if row.problem:
            render.say(f"{row.name}: {row.problem}")
    if any(row.path is None for row in rows):
        render.say("`outrider models pull NAME` brings one; `outrider --model NAME` chats with it.")


@models.command("show", epilog="Example: outrider models show starter")
@_NAME
@_JSON
def show_model(name: str, as_json: bool) -> None:
    """Show everything that is known of model NAME."""
    row = _ask(partial(protocol.Models, name=name), protocol.ModelRow)
    if as_json:
        render.echo_json(_full(row))
    else:
        _print_row(row)


@models.command("pull", epilog="Example: outrider models pull starter")
@_NAME
@_JSON
def pull_model(name: str, as_json: bool) -> None:
    """Bring model NAME into the local library.

    What is here already is not fetched again, and a broken download is never used.
    """
    row = _ask(partial(protocol.Pull, name=name), protocol.ModelRow)
    if as_json:
        render.echo_json(_full(row))
    else:
        click.echo(render.printable(f"{row.name} is ready: {render.size(row.nbytes)} at {row.path}"))


@models.command("rm", epilog="Example: outrider models rm starter --yes")
@_NAME
@click.option("--yes", "-y", is_flag=True, help="Do not ask first.")
@_JSON
def remove_model(name: str, yes: bool, as_json: bool) -> None:
    """Delete model NAME from the local library."""
    if not yes:
        _confirm(_ask(partial(protocol.Models, name=name), protocol.ModelRow))
    row = _ask(partial(protocol.Remove, name=name), protocol.ModelRow)
    if as_json:
        render.echo_json(_full(row))
    else:
        click.echo(render.printable(f"Removed {row.name}, {render.size(row.nbytes)} are free again."))


def _confirm(row: protocol.ModelRow) -> None:
    if row.path is None:
        raise render.Failure(
            f"{row.name} is not here, so nothing is to be removed.", "`outrider models list` shows what is."
        )
    if not render.stdin_is_terminal():
        raise render.WrongUsage("Nobody is there to confirm.", f"Add --yes: outrider models rm {row.name!r} --yes")
    question = f"Delete {row.name} ({render.size(row.nbytes)} at {row.path})?"
    if not click.confirm(render.printable(question), err=True):
        raise render.Failure("Nothing was removed.")


def _ask(request: Any, kind: Any) -> Any:
    from outrider.app.commands import _engine

    async def work(session: Session) -> Any:
        return await session.ask(request(id=session.client.number()))

    return protocol.as_type(_engine.with_engine(work), kind)


def _full(row: protocol.ModelRow) -> dict[str, Any]:
    """Every key, also those at their defaults: scripts want them."""
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _state(row: protocol.ModelRow) -> str:
    if row.problem:
        return "broken"
    return "here" if row.path else "can be pulled"


def _print_row(row: protocol.ModelRow) -> None:
    pairs = [
        ("name", row.name),
        ("title", row.title),
        ("state", _state(row)),
        ("problem", row.problem),
        ("path", row.path or ""),
        ("size", render.size(row.nbytes) if row.nbytes else ""),
        ("format", row.format),
        ("family", row.family),
        ("license", row.license),
        ("sources", ", ".join(row.sources)),
        *((key.replace("_", " "), _plain(value)) for key, value in row.detail.items()),
    ]
    click.echo(render.pairs((key, value) for key, value in pairs if value))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
