"""`outrider config`: the settings shown, changed and checked."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import click

from outrider.app import render
from outrider.app.command import Group
from outrider.app.config import FIELDS, Asked, Fault, Settings
from outrider.app.config.change import put, take_out
from outrider.app.config.edit import CannotEdit, replace
from outrider.app.config.fields import BUNDLES, Field, bundled, nearest
from outrider.app.config.read import Unreadable, config_file, read, text_of
from outrider.app.config.toml import key as dotted
from outrider.app.config.toml import path_of, written
from outrider.app.editor import editor
from outrider.app.names import complete_model
from outrider.app.options import complete_persona

_EPILOG = """\b
Examples:
  outrider config init                             write the file, with every setting and a comment
  outrider config show                             what holds, and where it comes from
  outrider config set sampling.temperature 0.3
  outrider config set personas.brief.system "Answer in one sentence."
  outrider config set models.starter.temperature 0.5
  outrider config set keys.bind.new ctrl+n alt+n
  outrider config unset sampling.temperature
  outrider config edit                             in your editor, and checked afterwards

\b
The strongest wins: an option of the command line, a variable such as OUTRIDER_LOOK_THEME, the persona, the model's own
section, presets for it, the file, what was last used in the chat, the default."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def _keys(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [path for path in FIELDS if path.startswith(incomplete)]


_KEY = click.argument("key", shell_complete=_keys)


@click.group(cls=Group, epilog=_EPILOG)
def config() -> None:
    """Settings: init, show, edit, path, check, set, unset, schema."""


@config.command(epilog="Example: outrider config path")
def path() -> None:
    """Print where the file is, be it there or not."""
    click.echo(str(config_file()))


@config.command(epilog="Example: outrider config init")
@click.option("--force", is_flag=True, help="Write it anew if there is one; the old one is kept beside it.")
def init(force: bool) -> None:
    """Write a file with every setting, its default and a comment."""
    file = config_file()
    if file.exists() and not force:
        hint = "Look at it with `outrider config edit`, or write it anew with --force."
        raise render.Failure(f"{file} is there already.", hint)
    if file.exists():
        kept = file.with_name(f"{file.name}.old")
        replace(kept, text_of(file))
        render.say(f"The old file is {kept}.")
    replace(file, _fresh())
    click.echo(str(file))


def _fresh() -> str:
    from outrider.app.chat.settings import fresh_file

    return fresh_file()


# ------------------------------------------------------------------------------------------------ show


@config.command(epilog="Example: outrider config show sampling --model starter")
@click.argument("key", default="", shell_complete=_keys)
@click.option("--env", is_flag=True, help="List the environment variables instead.")
@click.option("--model", "-m", metavar="M", shell_complete=complete_model, help="Show what holds for this model.")
@click.option("--persona", metavar="NAME", shell_complete=complete_persona, help="Show what holds for this persona.")
@_JSON
def show(key: str, env: bool, model: str | None, persona: str | None, as_json: bool) -> None:
    """Show what holds and where it comes from: everything, a section, or KEY alone."""
    paths = [path for path in FIELDS if not key or path == key or path.startswith(f"{key}.")]
    if not paths:
        hint = nearest(key, FIELDS) or "`outrider config show` lists them all."
        raise render.WrongUsage(f"There is no setting {key}.", hint)
    if env:
        _show_environment(paths, as_json)
        return
    try:
        settings = Asked({"engine.model": model} if model else {}, persona).settle()
    except LookupError as error:
        raise render.WrongUsage(*error.args) from None
    _tell(_faults(settings))
    if as_json:
        render.echo_json([_as_json(settings, path) for path in paths])
    elif paths == [key]:
        click.echo(render.printable(_worded(settings.values[key])))
    else:
        rows = [(path, _worded(settings.values[path]), settings.place(path)) for path in paths]
        click.echo(render.table(("KEY", "VALUE", "FROM"), rows))


def _as_json(settings: Settings, path: str) -> dict[str, Any]:
    source = settings.sources[path]
    return {"key": path, "value": settings.values[path], "from": source.kind, "where": settings.place(path)}


def _worded(value: Any) -> str:
    return value if isinstance(value, str) else written(value)


def _show_environment(paths: list[str], as_json: bool) -> None:
    fields = [FIELDS[path] for path in paths]
    if as_json:
        render.echo_json([{"variable": one.env, "key": one.path, "set": os.environ.get(one.env)} for one in fields])
        return
    for one in fields:
        value = os.environ.get(one.env)
        click.echo(render.printable(one.env if value is None else f"{one.env}={value}"))
        click.echo(textwrap.indent(textwrap.fill(render.printable(f"{one.path}: {one.help}"), 76), "    "))


# ------------------------------------------------------------------------------------------------ check


@config.command(epilog="Example: outrider config check && outrider")
@_JSON
def check(as_json: bool) -> None:
    """Look for mistakes in the file and in the environment; exit code 1 if there are any."""
    faults = _faults(Asked().settle())
    if as_json:
        render.echo_json([{"where": one.where, "line": one.line, "text": one.text, "hint": one.hint} for one in faults])
    elif faults:
        click.echo("\n".join(render.printable(str(fault)) for fault in faults))
    else:
        file = config_file()
        click.echo(f"{file} is fine." if file.exists() else f"There is no {file}; the defaults hold.")
    if faults:
        raise click.exceptions.Exit(1)


def _faults(settings: Settings) -> list[Fault]:
    """All of them, those of keys and of unknown variables included."""
    from outrider.app.chat.keymap import keymap

    return [*settings.faults, *keymap(settings).faults, *_unknown_variables()]


def _unknown_variables() -> list[Fault]:
    """Variables that begin like one of a section but are none."""
    known = {field.env for field in FIELDS.values()}
    starts = tuple({f"OUTRIDER_{field.section}_".upper() for field in FIELDS.values()})
    faults = []
    for name in sorted(os.environ):
        if name.startswith(starts) and name not in known:
            hint = nearest(name, known) or "`outrider config show --env` lists them."
            faults.append(Fault(name, "is no variable of a setting.", hint))
    return faults


def _tell(faults: list[Fault]) -> None:
    for fault in faults:
        render.say(f"Warning: {fault}")


# ------------------------------------------------------------------------------------------------ change


@config.command("set", epilog=_EPILOG, context_settings={"ignore_unknown_options": True})
@_KEY
@click.argument("value", nargs=-1, required=True)
def set_value(key: str, value: tuple[str, ...]) -> None:
    """Set KEY to VALUE in the file. Comments and everything else stay as they are.

    KEY is a name of `outrider config show`, or personas.NAME.KEY, models."NAME".KEY, presets."PATTERN".KEY, keys.bind.ACTION.
    VALUE is a text, or TOML such as 0.3, true or ["a", "b"].
    """
    path, field = _field(key)
    made = _keys_for(path[-1], value) if field is None else _read(key, field, value)
    file = config_file()
    try:
        put(file, path, made, _fresh())
    except Unreadable as error:
        raise render.Failure(
            f"{error.fault.where}: {error.fault.text}", "Mend that first: outrider config edit"
        ) from None
    except CannotEdit as error:
        raise render.Failure(str(error), "Change it by hand: outrider config edit") from None
    click.echo(render.printable(f"{dotted(*path)} = {written(made)}"))
    after = read(file)
    _tell([fault for fault in after.faults if fault.line == after.lines.of(*path)])


@config.command(epilog="Example: outrider config unset sampling.temperature")
@_KEY
def unset(key: str) -> None:
    """Comment KEY out in the file, so that its default holds."""
    path, _ = _field(key)
    file = config_file()
    try:
        there = take_out(file, path)
    except Unreadable as error:
        raise render.Failure(
            f"{error.fault.where}: {error.fault.text}", "Mend that first: outrider config edit"
        ) from None
    except CannotEdit as error:
        raise render.Failure(str(error), "Change it by hand: outrider config edit") from None
    if not there:
        render.say(f"{key} is not set in {file}.")
        return
    click.echo(f"{dotted(*path)} is commented out.")


def _field(key: str) -> tuple[tuple[str, ...], Field | None]:
    """The path of a setting and the setting, None for the keys of an action. Raises WrongUsage."""
    path = path_of(key)
    if path is None:
        raise render.WrongUsage(f"{key} is no key.", 'Names with other signs are quoted: presets."*qwen*".temperature')
    name = ".".join(path)
    if name in FIELDS and name != "keys.bind":
        return path, FIELDS[name]
    if path[:2] == ("keys", "bind") and len(path) == 3:
        return path, None
    if path[0] in BUNDLES and len(path) == 3:
        known = bundled(path[0])
        if path[2] in known:
            return path, known[path[2]]
        hint = nearest(path[2], known) or f"There are {', '.join(known)}."
        raise render.WrongUsage(f"{path[2]} is nothing that {path[0]} can set.", hint)
    hint = nearest(name, FIELDS) or "`outrider config show` lists them all."
    raise render.WrongUsage(f"There is no setting {key}.", hint)


def _read(key: str, field: Field, words: tuple[str, ...]) -> Any:
    try:
        return field.read(*words) if len(words) == 1 else field.checked(list(words))
    except ValueError as error:
        raise render.WrongUsage(f"{key} {error}") from None


def _keys_for(action: str, words: tuple[str, ...]) -> list[str]:
    """The keys that were named for an action; `none` and [] take all away. Raises WrongUsage."""
    from outrider.app.chat.keymap import build

    names = [name.strip().strip("\"'") for word in words for name in word.strip("[]").split(",")]
    names = [] if names in ([""], ["none"]) else names
    for fault in build("default", {action: names}).faults:
        raise render.WrongUsage(fault.text, fault.hint)
    return names


@config.command(epilog="Example: outrider config edit")
def edit() -> None:
    """Open the file in $VISUAL or $EDITOR, and check it afterwards."""
    file = config_file()
    if not file.exists():
        replace(file, _fresh())
    code = _opened(file)
    faults = _faults(Asked().settle())
    _tell(faults)
    if code or faults:
        raise click.exceptions.Exit(1)


def _opened(file: Path) -> int:
    """The editor's exit code."""
    try:
        words = editor()
        if not words:
            raise render.Failure("There is no editor here.", f"Set EDITOR, or change {file} with another program.")
        return subprocess.run([*words, str(file)], check=False).returncode
    except (OSError, ValueError) as error:
        told = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        raise render.Failure(f"The editor {told} could not be started: {error}.", f"The file is {file}.") from error


@config.command(epilog="Example: outrider config schema > outrider.schema.json")
def schema() -> None:
    """Print the JSON Schema of the file, for editors that complete and check TOML."""
    import msgspec

    from outrider.app.config.schema import Config

    render.echo_json(msgspec.json.schema(Config))
