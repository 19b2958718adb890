"""`outrider keys`: every action of the chat, with its keys and its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.app.config import Asked

if TYPE_CHECKING:
    from outrider.app.chat.keymap import Keymap

_PRESETS = ("default", "emacs", "vim", "no-fkeys")
_EPILOG = """\b
Examples:
  outrider keys
  outrider keys --preset vim
  outrider keys --json
  outrider keys --press                            what your terminal makes of a key
  outrider config set keys.preset no-fkeys         use it from now on
  outrider config set keys.bind.new alt+n          a key of your own"""


@click.command(epilog=_EPILOG)
@click.option("--preset", type=click.Choice(_PRESETS), help="Show a preset alone, without your own keys.")
@click.option("--press", is_flag=True, help="Show the name and the use of every key that you press.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def keys(preset: str | None, press: bool, as_json: bool) -> None:
    """Keys of the chat: every action with its keys, its letters and its slash command.

    LEADER is the letter after ctrl+o, REPLY one that works while a reply has the focus. The ACTION's name is what
    keys.bind in the settings wants.
    """
    from outrider.app.chat.actions import PROMPT_KEYS
    from outrider.app.chat.keymap import build, keymap, risky, shown

    found = build(preset, {}) if preset else keymap(Asked(sections=("keys",)).settle())
    for fault in found.faults:
        render.say(f"Warning: {fault}")
    if press:
        _press(found)
        return
    rows = [
        {
            "action": action.id,
            "title": action.title,
            "keys": list(action.keys),
            "empty_prompt": list(action.empty_prompt),
            "reply": list(action.on_message),
            "leader": action.leader,
            "slash": f"/{action.slash} {action.argument}".rstrip() if action.slash else "",
            "risky": [name for name in action.keys if risky(name)],
            "help": action.help,
        }
        for action in found.actions
    ]
    if as_json:
        render.echo_json(rows)
        return
    lines = [_line(row, shown) for row in rows]
    click.echo(render.table(("ACTION", "KEYS", "REPLY", "LEADER", "COMMAND", "WHAT IT DOES"), lines))
    click.echo("\nIn the prompt: " + "; ".join(f"{names}: {words}" for names, words in PROMPT_KEYS) + ".")
    kept = [shown(name) for row in rows for name in row["risky"]]
    if kept:
        render.say(f"Note: Some terminals do not send {', '.join(kept)}.")


def _press(found: Keymap) -> None:
    if not (render.is_terminal(sys.stdin) and render.is_terminal(sys.stdout)):
        raise render.WrongUsage("--press needs a terminal, but input or output goes elsewhere.")
    from outrider.app.chat.probe import Probe

    Probe(found).run(inline=True, inline_no_clear=True, mouse=False)


def _line(row: dict[str, Any], shown: Any) -> tuple[str, ...]:
    names = [*map(shown, row["keys"]), *(f"{shown(name)} if empty" for name in row["empty_prompt"])]
    return row["action"], ", ".join(names), ", ".join(row["reply"]), row["leader"], row["slash"], row["title"]
