"""`outrider doctor`: what is wrong here and how to mend it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outrider.app import files, plugins, render
from outrider.app.command import Command
from outrider.app.config import Asked
from outrider.app.config.read import config_file
from outrider.app.store.opening import store_path
from outrider.core.base import paths, protocol
from outrider.core.base.protocol import Finding

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_PRIVATE = {  # folders, and the files in them that have words of the user's
    "data_dir": ("chats.*", "chats.writers/*", "backups/*", "drafts/**/*", "races/*", "not-saved*.json"),
    "state_dir": ("engine.log*", "clipboard.txt", "not-saved*.json"),
    "config_dir": (),
}
_MEND = "outrider config edit"


@click.command(cls=Command, epilog="Example: outrider doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def doctor(as_json: bool) -> None:
    """Look at terminal, folders, plugins, engine and GPU: what is wrong and how to mend it.

    Ends with exit code 1 if there is a problem. Nothing is changed and nothing is sent anywhere.
    """
    findings = [*_app_findings(os.environ), *_engine_findings()]
    problems = sum(finding.level == "problem" for finding in findings)
    if as_json:
        render.echo_json([{name: getattr(f, name) for name in f.__struct_fields__} for f in findings])
    else:
        click.echo("\n".join(_lines(findings)))
        render.say(f"{problems} problem{'' if problems == 1 else 's'}." if problems else "No problems.")
    if problems:
        raise click.exceptions.Exit(1)


def _lines(findings: list[Finding]) -> list[str]:
    wide = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(render.printable(f"{finding.level:<7}  {finding.topic:<{wide}}  {finding.text}"))
        if finding.fix and finding.level != "ok":
            lines.append(render.printable(f"{'':<7}  {'':<{wide}}  → {finding.fix}"))
    return lines


def _app_findings(environ: Mapping[str, str]) -> list[Finding]:
    checks: list[Callable[[], list[Finding]]] = [
        _versions,
        lambda: _terminal(environ),
        lambda: _pace(environ),
        lambda: _colours(environ),
        _folders,
        _modes,
        _kept,
        _installers,
        lambda: _unused_cuda(Path("/dev")),
        _plugins,
        _settings,
    ]
    return [finding for check in checks for finding in check()]


def _versions() -> list[Finding]:
    names = ("outrider", "torch", "textual", "tokenizers", "huggingface-hub")
    here = []
    for name in names:
        try:
            here.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            return [Finding("problem", "versions", f"The package {name} is not installed.", "Install Outrider again.")]
    return [Finding("ok", "versions", f"Python {platform.python_version()}, {', '.join(here)}")]


def _terminal(environ: Mapping[str, str]) -> list[Finding]:
    if not render.is_terminal(sys.stdin):
        text = "Input is no terminal, so the chat opens here only with --screen-reader; `outrider run` works."
        return [Finding("note", "terminal", text, "Open a terminal for the chat.")]
    if not render.is_terminal(sys.stdout):
        text = "Output is no terminal, so the chat comes in plain lines."
        return [Finding("note", "terminal", text, "Open a terminal for its screen.")]
    columns, rows = shutil.get_terminal_size()
    found = [Finding("ok", "terminal", f"{columns} × {rows} ({environ.get('TERM', 'TERM is not set')})")]
    if columns < 60 or rows < 20:
        found[0] = Finding("note", "terminal", f"{columns} × {rows} is small.", "The chat wants at least 60 × 20.")
    if "utf" not in (sys.stdout.encoding or "").lower():
        text = f"The terminal's encoding is {sys.stdout.encoding}; letters may come out wrong."
        found.append(Finding("note", "unicode", text, "Set LANG to a UTF-8 locale, e.g. export LANG=C.UTF-8"))
    return [*found, *_keyboard(environ)]


def _keyboard(environ: Mapping[str, str]) -> list[Finding]:
    """Keys that may not arrive."""
    from outrider.app.chat.keymap import keymap
    from outrider.app.chat.terminal import kept, tells_shift_enter

    keys = [key for action in keymap(Asked(sections=("keys",)).settle()).actions for key in action.keys]
    found = []
    if missing := kept(keys, environ):
        owners = ", ".join(dict.fromkeys(why.partition(":")[0] for why in missing.values()))
        text = f"{owners} may keep {len(missing)} of the chat's keys."
        found.append(Finding("note", "keys", text, "`outrider keys` names them and what does the same."))
    if not tells_shift_enter(environ):
        text = "This terminal may not tell Shift+Enter from Enter."
        found.append(Finding("note", "keys", text, "In the chat ctrl+j makes a new line."))
    return found


def _pace(environ: Mapping[str, str]) -> list[Finding]:
    """How the chat is painted."""
    from outrider.app.chat.terminal import profile

    return [Finding("ok", "painting", profile(Asked(sections=("look",)).settle().config.look, environ).words)]


def _colours(environ: Mapping[str, str]) -> list[Finding]:
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR"):
        return [Finding("ok", "colours", "NO_COLOR is set; accepted words are underlined instead of tinted.")]
    if term == "dumb":
        text = "TERM is dumb: no colours and no screen; the chat comes in plain lines."
        return [Finding("note", "colours", text, "Set TERM to what the terminal is, if it can do more.")]
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return [Finding("ok", "colours", "16 million")]
    return [Finding("ok", "colours", "256" if "256color" in term else "16; COLORTERM=truecolor would give more")]


def _folders() -> list[Finding]:
    found = []
    folders = {"data": paths.data_dir, "config": paths.config_dir, "cache": paths.cache_dir, "state": paths.state_dir}
    for name, folder in folders.items():
        path = folder()
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            fix = "Make it writable, or set OUTRIDER_HOME to a folder that is."
            found.append(Finding("problem", f"{name} folder", f"{path} cannot be written.", fix))
        else:
            found.append(Finding("ok", f"{name} folder", str(path)))
    return found


def _modes() -> list[Finding]:
    """What others on this machine can read of the chats."""
    found = []
    for folder, names in _PRIVATE.items():
        path = getattr(paths, folder)()
        if not path.is_dir():
            continue
        inside = sorted(one for name in names for one in path.glob(name) if one.is_file() and files.too_wide(one))
        wide = [path] if files.too_wide(path) else []
        if wide or inside:
            named = ", ".join(f"{one} ({one.stat().st_mode & 0o777:o})" for one in (*wide, *inside[:2]))
            more = f" and {len(inside) - 2} more files" if len(inside) > 2 else ""
            text = f"Others on this machine can read what is yours: {named}{more}."
            found.append(Finding("problem", "privacy", text, f"chmod -R go= {shlex.quote(str(path))}"))
    return found or [Finding("ok", "privacy", "chats, drafts and logs are yours alone")]


def _kept() -> list[Finding]:
    """Damaged stores that were repaired."""
    path = store_path()
    kept = sorted(path.parent.glob(f"{path.stem}.damaged-*{path.suffix}"))
    text = f"The chats were repaired; the damaged file is kept as {', '.join(map(str, kept))}."
    return [Finding("note", "chats", text, "Delete it once you miss nothing.")] if kept else []


def _installers() -> list[Finding]:
    kind = plugins.environment().kind
    here = [name for name in ("pipx", "uv") if shutil.which(name)]
    text = f"this environment belongs to {kind}" + (f"; also here: {', '.join(here)}" if here else "")
    if kind == "none":
        fix = "Install uv or pip; `outrider plugins install` needs one."
        return [Finding("note", "installer", "There is no pip in this environment and no uv on the path.", fix)]
    if kind == "pipx" and "pipx" not in here:
        return [Finding("note", "installer", "This environment is pipx's, but pipx is not on the path.", "Add it.")]
    return [Finding("ok", "installer", text)]


def _unused_cuda(devices: Path) -> list[Finding]:
    """A build of PyTorch that brought gigabytes for a GPU that is not here."""
    brought = any(
        (one.metadata["Name"] or "").startswith(("nvidia-cublas", "nvidia_cublas")) for one in metadata.distributions()
    )
    if not brought or any(devices.glob("nvidia*")) or (devices / "dxg").exists():  # dxg: a GPU of WSL's host
        return []
    text = "PyTorch is the build for CUDA, and there is no NVIDIA GPU: about 4 GB could go."
    return [Finding("note", "torch", text, "Install Outrider again with the CPU build, as README says under Install.")]


def _plugins() -> list[Finding]:
    try:
        found = plugins.installed()
    except render.Failure as error:
        return [Finding("problem", "plugins", error.message, error.hint)]
    findings = []
    owners: dict[str, str] = {}
    for plugin in found:
        if plugin.missing:
            text = f"{plugin.distribution} was installed but is not here any more."
            findings.append(Finding("note", "plugins", text, f"outrider plugins install {plugin.source}"))
        elif plugins.module_missing(plugin):
            text = f"{plugin.drafter} of {plugin.distribution} is broken: its code {plugin.target} is not there."
            fix = f"outrider plugins remove {plugin.distribution}, then install it again"
            findings.append(Finding("problem", "plugins", text, fix))
        elif plugin.drafter in owners:
            text = f"{plugin.distribution} and {owners[plugin.drafter]} both offer a drafter called {plugin.drafter}."
            findings.append(Finding("problem", "plugins", text, f"outrider plugins remove {plugin.distribution}"))
        owners.setdefault(plugin.drafter, plugin.distribution)
    names = ", ".join(plugin.drafter for plugin in found if plugin.drafter)
    return findings or [Finding("ok", "plugins", names or "none")]


def _settings() -> list[Finding]:
    faults = Asked().settle().faults
    found = [Finding("problem", "settings", f"{fault.where}: {fault.text}", fault.hint or _MEND) for fault in faults]
    file = config_file()
    return found or [Finding("ok", "settings", str(file) if file.exists() else "none; the defaults hold")]


def _engine_findings() -> list[Finding]:
    from outrider.app.commands import _engine

    async def work(session: Session) -> Any:
        return await session.ask(protocol.Doctor(id=session.client.number()))

    try:
        return protocol.as_type(_engine.with_engine(work), list[Finding])
    except render.Failure as error:
        return [Finding("problem", "engine", error.message, error.hint)]
