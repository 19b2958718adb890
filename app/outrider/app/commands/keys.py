"""`outrider keys`: every action of the chat, with its keys and its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.app.command import Command
from outrider.app.config import Asked

if TYPE_CHECKING:
    from outrider.app.chat.keymap import Keymap

_PRESETS = ("default", "emacs", "vim", "no-fkeys")
_EPILOG = """\b
Examples:
  outrider keys
  outrider keys --preset vim
  outrider keys --json
  outrider keys --press                            what your terminal makes of a key, and which keys never came
  outrider keys --markdown                         the table of the documentation
  outrider config set keys.preset no-fkeys         use it from now on
  outrider config set keys.bind.new alt+n          a key of your own"""


@click.command(cls=Command, epilog=_EPILOG)
@click.option("--preset", type=click.Choice(_PRESETS), help="Show a preset alone, without your own keys.")
@click.option("--press", is_flag=True, help="Show the name and the use of every key that you press.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--markdown", is_flag=True, help="Print all presets as a page of Markdown.")
def keys(preset: str | None, press: bool, as_json: bool, markdown: bool) -> None:
    """Keys of the chat: every action with its keys, its letters and its slash command.

    LEADER is the letter after ctrl+o, REPLY what is typed while a message has the focus (alt+up). The ACTION's name is what
    keys.bind in the settings wants. Keys that this terminal may keep for itself are named below the table.
    """
    from outrider.app.chat.keymap import build, keymap, shown

    if markdown:
        from outrider.app.chat.keypage import page

        click.echo(page(), nl=False)
        return
    found = build(preset, {}) if preset else keymap(Asked(sections=("keys",)).settle())
    for fault in found.faults:
        render.say(f"Warning: {fault}")
    if press:
        _press(found)
        return
    rows = _rows(found, os.environ)
    if as_json:
        render.echo_json(rows)
        return
    from outrider.app.chat.actions import PROMPT_KEYS

    lines = [_line(row, shown) for row in rows]
    click.echo(render.table(("ACTION", "KEYS", "REPLY", "LEADER", "COMMAND", "WHAT IT DOES"), lines))
    click.echo("\nIn the prompt:")
    click.echo(render.pairs(PROMPT_KEYS))
    for line in _limits(rows, os.environ):
        click.echo(line)
    risky = [shown(name) for row in rows for name in row["risky"]]
    if risky:
        render.say(f"Note: Some terminals do not send {', '.join(risky)}.")


def _rows(found: Keymap, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    from outrider.app.chat.keymap import risky
    from outrider.app.chat.terminal import kept

    return [
        {
            "action": action.id,
            "title": action.title,
            "keys": list(action.keys),
            "empty_prompt": list(action.empty_prompt),
            "reply": list(action.letters),
            "leader": action.leader,
            "slash": f"/{action.slash} {action.argument}".rstrip() if action.slash else "",
            "risky": [name for name in action.keys if risky(name)],
            "kept": kept(action.keys, environ),
            "help": action.help,
        }
        for action in found.actions
    ]


def _limits(rows: list[dict[str, Any]], environ: Mapping[str, str]) -> Iterable[str]:
    """What may not arrive in this terminal, and what does the same."""
    from outrider.app.chat.keymap import shown
    from outrider.app.chat.terminal import keepers, tells_shift_enter

    if here := [keeper.name for keeper in keepers(environ)]:
        yield f"\nThis is {' in '.join(here)}."
    lines = [
        (shown(name), row["title"], why, _otherwise(row, shown)) for row in rows for name, why in row["kept"].items()
    ]
    if lines:
        yield "Keys that may not arrive here:"
        yield render.table(("KEY", "ACTION", "KEPT BY", "THE SAME"), lines)
    elif here:
        yield "It keeps none of these keys."
    if not tells_shift_enter(environ):
        yield "\nshift+enter may be the same as enter here; ctrl+j makes a new line."
    yield "`outrider keys --press` shows what really arrives."


def _otherwise(row: dict[str, Any], shown: Any) -> str:
    """The other ways to an action."""
    ways = [shown(name) for name in row["keys"] if name not in row["kept"]]
    ways += [f"ctrl+o {row['leader']}"] if row["leader"] else []
    ways += [row["slash"].partition(" ")[0]] if row["slash"] else []
    return ", ".join(ways)


def _press(found: Keymap) -> None:
    if not (render.is_terminal(sys.stdin) and render.is_terminal(sys.stdout)):
        raise render.WrongUsage("--press needs a terminal, but input or output goes elsewhere.")
    from outrider.app.chat.probe import Probe

    Probe(found).run(inline=True, inline_no_clear=True, mouse=False)


def _line(row: dict[str, Any], shown: Any) -> tuple[str, ...]:
    names = [*map(shown, row["keys"]), *(f"{shown(name)} if empty" for name in row["empty_prompt"])]
    return row["action"], ", ".join(names), ", ".join(row["reply"]), row["leader"], row["slash"], row["title"]
