"""`outrider plugins`: packages of this environment that bring drafters."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from outrider.app import plugins as packages
from outrider.app import render, scaffold
from outrider.app.command import Group

_EPILOG = """\b
Examples:
  outrider plugins list
  outrider plugins new my-drafter                  a folder with a drafter of your own to begin from
  outrider plugins install ./my-drafter            a folder with a pyproject.toml, or a wheel
  outrider plugins remove my-drafter"""


def _complete_plugin(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Packages that can be removed, and their drafters."""
    found = [plugin for plugin in packages.installed() if not plugin.builtin]
    words = {word for plugin in found for word in (plugin.distribution, plugin.drafter) if word}
    return sorted(word for word in words if word.startswith(incomplete))


@click.group(cls=Group, epilog=_EPILOG)
def plugins() -> None:
    """Packages that bring drafters: list, new, install, remove."""


@plugins.command("list", epilog="Example: outrider plugins list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_plugins(as_json: bool) -> None:
    """List the drafters of this environment and their packages.

    Imports none of them.
    """
    found = packages.installed()
    if as_json:
        render.echo_json([asdict(plugin) for plugin in found])
        return
    lines = [
        (plugin.drafter or "–", plugin.distribution, plugin.version, _origin(plugin), plugin.target) for plugin in found
    ]
    click.echo(render.table(("DRAFTER", "PACKAGE", "VERSION", "FROM", "CODE"), lines))
    missing = [plugin for plugin in found if plugin.missing]
    if missing:
        render.say(
            f"Note: {len(missing)} recorded {'plugins are' if len(missing) > 1 else 'plugin is'} not here any more.",
            f"Bring them back: outrider plugins install {' '.join(plugin.source for plugin in missing)}",
        )


@plugins.command("install", epilog=_EPILOG)
@click.argument("package", nargs=-1, required=True)
def install_plugins(package: tuple[str, ...]) -> None:
    """Install PACKAGE: a name, a wheel or a folder.

    Goes through the tool that owns the environment, pip, pipx or uv, and holds torch at its installed version. A plugin
    is code that runs with your rights: install what you trust.
    """
    brought = packages.install(package)
    for plugin in brought:
        told = f"{plugin.distribution} {plugin.version} is installed, with drafter {plugin.drafter}."
        click.echo(render.printable(told))
        if plugin.shadowed_by:
            render.say(
                f"Warning: {plugin.drafter} is not used: {plugin.shadowed_by} has a drafter of that name, which is.",
                f"Its author has to rename it; `outrider plugins remove {plugin.distribution}` removes it.",
            )
    if brought:
        render.say("`outrider drafters list` shows how it fits your model.")
    else:
        render.say(f"Warning: {' '.join(package)} offers no drafter.", "`outrider plugins list` shows what does.")


@plugins.command("new", epilog="Example: outrider plugins new my-drafter")
@click.argument("name")
@click.option("--to", metavar="FOLDER", help="A new or empty folder.  [default: ./NAME]")
def new_plugin(name: str, to: str | None) -> None:
    """Write a folder with a plugin to begin from.

    It has a neural drafter called NAME that works, its tests, and a README that says what to change, what a drafter hears in
    three rounds, and how to debug it.
    """
    drafter = scaffold.drafter_name(name)
    folder = Path(to or name).expanduser()
    for file in scaffold.create(drafter, folder):
        click.echo(render.printable(str(folder / file)))
    place = shlex.quote(str(folder) if folder.is_absolute() else f"./{folder}")
    render.say(f"Next: outrider plugins install {place}", f"Then read {folder / 'README.md'}.")


@plugins.command("remove", epilog="Example: outrider plugins remove my-drafter")
@click.argument("name", shell_complete=_complete_plugin)
def remove_plugin(name: str) -> None:
    """Remove the package NAME, or the one that has drafter NAME."""
    click.echo(render.printable(f"Removed {packages.remove(name)}."))


def _origin(plugin: packages.Plugin) -> str:
    if plugin.builtin:
        return "built in"
    if plugin.missing:
        return "missing"
    if plugin.shadowed_by:
        return f"not used, {plugin.shadowed_by} has that name"
    return plugin.source or "installed"
