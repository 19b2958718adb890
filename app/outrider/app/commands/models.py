"""`outrider models`: what is in the local library and what can be brought."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from outrider.app import names, render
from outrider.app.command import Group
from outrider.app.commands import _catalogue
from outrider.app.options import loading_options
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_EPILOG = """\b
Examples:
  outrider models list
  outrider models list --all
  outrider models pull starter
  outrider models show starter --json
  outrider models rm starter --yes"""

_INTERRUPTED = 130  # exit status after Ctrl-C
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_NAME = click.argument("name", shell_complete=names.complete_model)


@click.group(cls=Group, epilog=_EPILOG)
def models() -> None:
    """Local and catalogue models: list, pull, show, rm."""


@models.command("list", epilog="Example: outrider models list --all")
@click.option("--all", "-a", "everything", is_flag=True, help="The whole catalogue, and what of it fits into memory.")
@_JSON
def list_models(everything: bool, as_json: bool) -> None:
    """List the models that are here and the starter, or all that can be pulled.

    \b
    Models that other tools brought are used where they lie, and never deleted:
      ORG/NAME            in the Hugging Face cache
      ollama:NAME:TAG     of ollama
      lmstudio:FILE       of LM Studio
      llama.cpp:FILE      in the cache of llama.cpp
    """
    rows = _ask(partial(protocol.Models, everything=everything), list[protocol.ModelRow])
    if as_json:
        render.echo_json([_full(row) for row in rows])
        return
    if everything:
        _print_catalogue(rows)
        return
    head = ("NAME", "SIZE", "STATE", "FORMAT", "QUANT", "SOURCE", "LICENSE", "TITLE")
    click.echo(render.table(head, [_cells(row) for row in rows], right=(1,)))
    for row in rows:
        if row.problem:
            render.say(f"{row.name}: {row.problem}")
        elif row.partial:
            render.say(f"{row.name}: {_arrived(row)} are here; `outrider models pull {row.name}` goes on from there.")
    if any(row.path is None for row in rows):
        render.say("`outrider models pull NAME` brings one; `outrider --model NAME` chats with it.")


@models.command("show", epilog="Example: outrider models show starter --context 4096")
@_NAME
@loading_options
@_JSON
def show_model(name: str, choice: protocol.ModelChoice, weights: str | None, as_json: bool) -> None:
    """Show everything that is known of model NAME: its files, the memory it takes, drafters made for it."""
    row = _ask(partial(protocol.Models, name=name, choice=choice, weights=weights), protocol.ModelRow)
    if as_json:
        render.echo_json(_full(row))
    else:
        _print_row(row)


@models.command("pull", epilog="Example: outrider models pull starter")
@_NAME
@_JSON
def pull_model(name: str, as_json: bool) -> None:
    """Bring model NAME into the local library.

    NAME is a name from `outrider models list --all`, or a hub id: ORG/NAME, with :LABEL for one quantisation of a
    repository of GGUF files and @REVISION for a branch, tag or commit, as in ORG/NAME:Q8_0@main. The address of its page
    on the hub, or of a file there, will do too.

    What is here already is not fetched again, a stopped pull goes on where it ended, and a broken download is never used.
    """
    try:
        row = _ask(partial(protocol.Pull, name=name), protocol.ModelRow)
    except click.exceptions.Exit as stopped:
        if stopped.exit_code == _INTERRUPTED:
            render.say("Stopped. What came from the model hub is kept: pull again to go on, `models rm` to delete it.")
        raise
    state = "here" if row.unsupported or row.problem else "ready"
    if as_json:
        render.echo_json(_full(row))
    else:
        click.echo(render.printable(f"{row.name} is {state}: {render.size(row.nbytes)} at {row.path}"))
    if row.note:
        render.say(f"Note: {row.note}")
    if row.unsupported:
        render.say(f"Warning: it cannot be run: {row.unsupported}.")
    if row.problem:
        raise render.Failure(f"It cannot be used: {row.problem}", f"`outrider models rm {row.name}` deletes it.")


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
        freed = render.size(row.partial or row.nbytes)
        click.echo(render.printable(f"Removed {row.name}, {freed} are free again."))


def _confirm(row: protocol.ModelRow) -> None:
    if row.path is None and not row.partial:
        raise render.Failure(
            f"{row.name} is not here, so nothing is to be removed.", "`outrider models list` shows what is."
        )
    if not render.stdin_is_terminal():
        raise render.WrongUsage("Nobody is there to confirm.", f"Add --yes: outrider models rm {row.name!r} --yes")
    what = f"{render.size(row.nbytes)} at {row.path}" if row.path else f"{_arrived(row)} of a stopped pull"
    question = f"Delete {row.name} ({what})?"
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
    if row.partial:
        return "partly here"
    if row.path:
        return "here, but it cannot be run" if row.unsupported else "here"
    return "not supported yet" if row.unsupported else "can be pulled"


def _arrived(row: protocol.ModelRow) -> str:
    return f"{render.size(row.partial)} of {render.size(row.nbytes)}"


def _cells(row: protocol.ModelRow) -> tuple[str, ...]:
    """A line of the list, in the order of its head."""
    size = render.size(row.nbytes) if row.nbytes else ""
    title = row.title if row.title != row.name else ""
    return (row.name, size, _state(row), row.format, row.quantisation, row.source, row.license, title)


def _print_row(row: protocol.ModelRow) -> None:
    pairs = [
        ("name", row.name),
        ("title", row.title),
        ("state", _state(row)),
        ("problem", row.problem),
        ("path", row.path or ""),
        ("size", render.size(row.nbytes) if row.nbytes else ""),
        ("arrived", _arrived(row) if row.partial else ""),
        ("source", row.source),
        ("revision", row.revision),
        ("commit", row.commit),
        ("format", row.format),
        ("family", row.family),
        ("license", row.license),
        ("sources", ", ".join(row.sources)),
        *_catalogue.facts(row),
        *((key.replace("_", " "), _plain(value)) for key, value in row.detail.items()),
    ]
    click.echo(render.pairs((key, value) for key, value in pairs if value))
    if row.plan:
        click.echo("\n" + _catalogue.plan(row.plan))
    if row.drafters:
        click.echo("\nDrafters made for it:\n" + _catalogue.drafters(row.drafters))


def _print_catalogue(rows: list[protocol.ModelRow]) -> None:
    click.echo(_catalogue.catalogue(rows))
    states = {_catalogue.state(row) for row in rows}
    if "too big" in states:
        render.say("too big: `outrider models show NAME` says what would fit into memory.")
    if "not yet" in states:
        render.say("not yet: the engine does not know the architecture.")
    render.say("`outrider models pull NAME` brings a model; `outrider --model NAME` chats with it.")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
