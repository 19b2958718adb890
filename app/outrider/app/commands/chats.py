"""`outrider chats`: what was said before, to list, search, read, carry out, bring in and delete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click

from outrider.app import names, render
from outrider.app.command import Group
from outrider.app.store.chats import Store
from outrider.app.store.opening import open_copy
from outrider.app.store.problems import Damaged, StoreError
from outrider.app.store.records import Hit, Row, Whole, short
from outrider.app.store.writing import FORMATS, kind_of, write_file, written
from outrider.core.base.bounded import TooLong, read_all, read_path

_EPILOG = """\b
Examples:
  outrider chats list
  outrider chats search rivers "the whole phrase"
  outrider chats show last
  outrider chats export last --output chat.html     also .md, .json and .svg
  outrider chats export --all --output all.json     a backup, to be read by `chats import`
  outrider chats import conversations.json
  outrider chats rm 4k2p9wxz

ID is the end of a name from `chats list`, as much of it as tells it from the others, or `last`.
`outrider --resume ID` goes on with a chat."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
_LIMIT = click.IntRange(1, 1_000_000)
_LONGEST = 256_000_000  # bytes of an import
_FOUND = "1"  # SGR code of words that were searched for


@click.group(cls=Group, epilog=_EPILOG)
def chats() -> None:
    """Chats so far: list, search, show, export, import, rm."""


@contextmanager
def _store(*, writing: bool = False) -> Iterator[Store]:
    """The store; says on stderr if it was repaired or is only a copy to read, and what could not be read of its replies.

    Raises `Failure` if nothing can be read, or if it cannot be written but must.
    """
    with Store.open() as store:
        if store.repaired:
            render.say(store.repaired)
        if store.trouble is not None and (writing or store.unreadable):
            raise store.trouble
        if store.trouble is not None:
            render.say(f"Warning: {store.trouble.message}", store.trouble.hint)
        yield store
        if store.unread:
            what = _count(len(store.unread), "message")
            render.say(f"Attachments, marks or figures of {what} are damaged and left out.")


@chats.command("list", epilog="Example: outrider chats list --limit 5 --json")
@click.option("--limit", "-n", type=_LIMIT, metavar="N", help="The N newest only.")
@_JSON
def list_chats(limit: int | None, as_json: bool) -> None:
    """List all chats, the one last written in first."""
    with _store() as store:
        rows = store.chats(limit or -1)
    if as_json:
        render.echo_json(rows)
    elif rows:
        head = ("ID", "LAST", "MESSAGES", "MODEL", "TITLE")
        click.echo(render.table(head, map(_cells, rows), right=(2,)))
    else:
        render.say("There is no chat yet.", "`outrider` begins one; `outrider chats import FILE` brings some.")


@chats.command("search", epilog='Example: outrider chats search rivers "in the north"')
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", "-n", type=_LIMIT, default=20, show_default=True, metavar="N", help="At most N messages.")
@_JSON
def search_chats(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Find messages that have all WORDS.

    A word may be only begun if it is the last one; an argument with spaces is a phrase. No sign means anything else.
    """
    query = " ".join(f'"{word}"' if " " in word else word for word in words)
    with _store() as store:
        hits = store.search(query, limit)
    if as_json:
        render.echo_json(hits)
    elif hits:
        click.echo("\n".join(map(_found, hits)))
    else:
        raise render.Failure("No message has all of these words.", "Try fewer of them, or the beginning of one.")


@chats.command("show", epilog="Example: outrider chats show last")
@click.argument("chat", default="last", metavar="[ID]", shell_complete=names.complete_chat)
@click.option("--marks", is_flag=True, help="Underline the words that were drafted and accepted.")
@_JSON
def show_chat(chat: str, marks: bool, as_json: bool) -> None:
    """Show a chat, the last one without ID. With --json all of its branches, as `chats export` writes them."""
    with _store() as store:
        whole = store.load(store.resolve(chat))
    if as_json:
        render.echo_json(whole)
    else:
        click.echo(_spoken(whole, marks), nl=False)


@chats.command("export", epilog="Example: outrider chats export last --output chat.svg")
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=names.complete_chat)
@click.option("--all", "-a", "everything", is_flag=True, help="Every chat.")
@click.option("--format", "-f", type=click.Choice(FORMATS), help="By default the ending of the file, else md.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Else stdout.")
def export_chats(ids: tuple[str, ...], everything: bool, format: str | None, output: Path | None) -> None:
    """Write a chat as Markdown, JSON, HTML or SVG; the last one without ID.

    JSON holds every branch, token and figure and can be imported again. The others hold the branch that is shown; HTML and
    SVG mark the words that came early.
    """
    if everything and ids:
        raise render.WrongUsage("--all and an ID exclude each other.")
    kind = format or kind_of(output)
    if kind != "json" and (everything or len(ids) > 1):
        raise render.WrongUsage(f"{kind} holds one chat only.", "Add --format json, or name one chat.")
    with _store() as store:
        wholes = _every(store) if everything else [store.load(store.resolve(word)) for word in ids or ("last",)]
    text = written(kind, wholes)
    if output is None or str(output) == "-":
        click.echo(text.encode(), nl=False)
        return
    write_file(output, text)
    count = _count(len(wholes)) if len(wholes) != 1 else render.printable(f"“{wholes[0].chat.title}”")
    render.say(f"Wrote {count} to {output}, {render.size(len(text.encode()))}.")


def _every(store: Store) -> list[Whole]:
    """All chats, as far as they can be read."""
    try:
        return [store.load(row.id) for row in store.chats()]
    except Damaged as error:
        with Store(open_copy(store.path, error)) as copy:
            render.say(f"Warning: {error.message}", copy.lost)
            return [copy.load(row.id) for row in copy.chats()]


@chats.command("import", epilog="Example: outrider chats import conversations.json")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@_JSON
def import_chats(files: tuple[Path, ...], as_json: bool) -> None:
    """Bring in chats from FILES, - for stdin: Outrider's own JSON and what other tools export.

    \b
    It reads, as JSON or JSON Lines:
      outrider chats export --format json     a chat that is here already is left as it is
      {role, content} messages                a list of them, or {"messages": [...]}
      ShareGPT                                {"conversations": [{"from": ..., "value": ...}]}
      Open WebUI and ChatGPT exports          with their branches
    """
    from outrider.app.store.imports import read_chats

    brought: list[Whole] = []
    known = left = 0
    with _store(writing=True) as store:
        for file in files:
            try:
                wholes, skipped = read_chats(_read(file))
            except StoreError as error:
                raise render.Failure(f"{file} cannot be imported. {error.message}", error.hint) from error
            with store.changing():
                new = [whole for whole in wholes if store.insert(whole)]
            brought += new
            known += len(wholes) - len(new)
            left += skipped
    if as_json:
        names = [{"id": whole.chat.id, "title": whole.chat.title, "messages": len(whole.nodes)} for whole in brought]
        render.echo_json({"imported": names, "known": known, "skipped_messages": left})
        return
    click.echo(f"Imported {_count(len(brought))}.")
    if known:
        render.say(f"{_count(known)} {'was' if known == 1 else 'were'} here already.")
    if left:
        render.say(f"Left out {_count(left, 'message')} that neither a user nor a model wrote.")


@chats.command("rm", epilog="Example: outrider chats rm 4k2p9wxz --yes")
@click.argument("ids", nargs=-1, metavar="ID...", shell_complete=names.complete_chat)
@click.option("--yes", "-y", is_flag=True, help="Do not ask first.")
@click.option("--undo", is_flag=True, help="Bring back what was deleted last.")
@_JSON
def remove_chats(ids: tuple[str, ...], yes: bool, undo: bool, as_json: bool) -> None:
    """Delete chats. Until the chat is started the next time, --undo brings back the last one deleted.

    The weekly copies of all chats, in the folder `backups` beside them, keep a deleted one for three weeks more.
    """
    if undo == bool(ids):
        raise render.WrongUsage("Name the chats to delete.", "Or --undo alone, to bring back the last one.")
    with _store(writing=True) as store:
        if undo:
            back = store.undo()
            if back is None:
                raise render.Failure("There is nothing to bring back.", "What was deleted goes with the next start.")
            changed = [back]
        else:
            names = [store.resolve(word) for word in ids]
            rows = {row.id: row for row in store.chats()}
            if used := [rows[name] for name in names if rows[name].in_use]:
                what = render.printable(f"“{used[0].title}” ({short(used[0].id)}) is open in another Outrider window.")
                raise render.Failure(what, "Close it there first; nothing was deleted.")
            if not yes:
                _confirm([rows[name] for name in names])
            changed = [store.delete_chat(name) for name in dict.fromkeys(names)]
    if as_json:
        render.echo_json([{"id": one.chat, "title": one.title} for one in changed])
        return
    for one in changed:
        click.echo(render.printable(f"{'Brought back' if undo else 'Deleted'} “{one.title}”."))
    if not undo:
        render.say("`outrider chats rm --undo` brings it back, until the chat is started again.")


def _confirm(rows: list[Row]) -> None:
    if not render.stdin_is_terminal():
        words = " ".join(short(row.id) for row in rows)
        raise render.WrongUsage("Nobody is there to confirm.", f"Add --yes: outrider chats rm {words} --yes")
    what = f"“{rows[0].title}”, {_count(rows[0].messages, 'message')}" if len(rows) == 1 else _count(len(rows))
    if not click.confirm(render.printable(f"Delete {what}?"), err=True):
        raise render.Failure("Nothing was deleted.")


def _count(number: int, what: str = "chat") -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _cells(row: Row) -> tuple[str, ...]:
    return short(row.id), _when(row.updated), str(row.messages), row.model, row.title


def _found(hit: Hit) -> str:
    """Where it is, and the words around it; found ones bold on a terminal."""
    text, end = "", 0
    bold = render.is_screen(sys.stdout) and "NO_COLOR" not in os.environ
    for start, stop in hit.marked:
        text += render.printable(hit.snippet[end:start])
        word = render.printable(hit.snippet[start:stop])
        text += f"\x1b[{_FOUND}m{word}\x1b[0m" if bold else word
        end = stop
    text += render.printable(hit.snippet[end:])
    who = "you" if hit.role == "user" else "reply"
    head = render.printable(f"{short(hit.chat)}  {_when(hit.created)}  {hit.title}")
    return f"{head}\n    {who}: {' '.join(text.split())}"


def _spoken(whole: Whole, marks: bool) -> str:
    from outrider.app.store.exports import one_line, said

    parts = [f"{one_line(whole.chat.title)}\n"]
    if whole.chat.system:
        parts.append(f"\nSystem:\n{render.printable(whole.chat.system)}\n")
    for message in said(whole):
        text = message.text
        if marks:
            pieces = [(text[run.start : run.end], run.kind) for run in message.runs]
            early = [f"\x1b[4m{piece}\x1b[0m" if kind == "A" else piece for piece, kind in pieces]
            text = "".join(early) + text[len(message.runs) :]
        thought = f"({message.thought_figures or 'a thought'})\n" if message.thought else ""
        footer = f"[{message.footer}]\n" if message.footer else ""
        parts.append(f"\n{message.who}:\n{thought}{text.strip(chr(10))}\n{footer}")
    return "".join(parts)


def _read(path: Path) -> bytes:
    """A file to import, or stdin. Raises StoreError for one that is too long."""
    try:
        return read_all(sys.stdin.buffer, _LONGEST) if str(path) == "-" else read_path(path, _LONGEST)
    except TooLong:
        raise StoreError(
            f"It is longer than {render.size(_LONGEST)}.", "Is it the right file? Else split it."
        ) from None
