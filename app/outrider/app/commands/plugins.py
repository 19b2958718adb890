"""`outrider plugins`: packages of this environment that bring drafters."""

from __future__ import annotations

from dataclasses import asdict

import click

from outrider.app import plugins as packages
from outrider.app import render

_EPILOG = """\b
Examples:
  outrider plugins list
  outrider plugins install outrider-echo
  outrider plugins install ./my_drafter            a folder with a pyproject.toml, or a wheel
  outrider plugins remove outrider-echo"""


@click.group(epilog=_EPILOG)
def plugins() -> None:
    """Packages that bring drafters: list, install, remove."""


@plugins.command("list", epilog="Example: outrider plugins list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_plugins(as_json: bool) -> None:
    """List the drafters that packages of this environment offer. Imports none of them."""
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
    """Install PACKAGE (a name, a wheel, or a folder) into this environment.

    Goes through the tool that owns the environment, pip, pipx or uv, and holds torch at its installed version. A plugin
    is code that runs with your rights: install what you trust.
    """
    brought = packages.install(package)
    for plugin in brought:
        click.echo(f"{plugin.distribution} {plugin.version} is installed, with drafter {plugin.drafter}.")
        if plugin.shadowed_by:
            render.say(
                f"Warning: {plugin.drafter} is not used: {plugin.shadowed_by} has a drafter of that name, which is.",
                f"Its author has to rename it; `outrider plugins remove {plugin.distribution}` removes it.",
            )
    if brought:
        render.say("`outrider drafters list` shows how it fits your model.")
    else:
        render.say(f"Warning: {' '.join(package)} offers no drafter.", "`outrider plugins list` shows what does.")


@plugins.command("remove", epilog="Example: outrider plugins remove outrider-echo")
@click.argument("name")
def remove_plugin(name: str) -> None:
    """Remove the plugin package NAME (or the package that offers drafter NAME)."""
    click.echo(f"Removed {packages.remove(name)}.")


def _origin(plugin: packages.Plugin) -> str:
    if plugin.builtin:
        return "built in"
    if plugin.missing:
        return "missing"
    if plugin.shadowed_by:
        return f"not used, {plugin.shadowed_by} has that name"
    return plugin.source or "installed"
