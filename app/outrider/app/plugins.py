"""Plugin packages of this environment: found by their metadata alone, installed and removed by the tool that owns it.

No plugin is imported here. What was installed through Outrider is written down in `plugins.toml`, so that the loss of a
plugin, for example through an upgrade, can be noticed and mended.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from outrider.app import files
from outrider.app.render import Failure, WrongUsage
from outrider.core.base import paths

GROUP = "outrider.drafters"
PINNED = ("torch", "outrider")  # no plugin may replace these
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:$|(?P<at>@\s)|[<>=!~;\[ ])")
_LIST = "`outrider plugins list` shows what is installed."


@dataclass(frozen=True, slots=True)
class Plugin:
    """One drafter that a package of this environment offers."""

    drafter: str
    distribution: str
    version: str
    target: str  # module:object of the entry point
    builtin: bool
    source: str  # what it was installed from, if Outrider did it
    missing: bool = False  # installed once, not here any more
    shadowed_by: str = ""  # the package whose drafter of the same name is used instead


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of `plugins.toml`."""

    name: str
    version: str
    source: str


@dataclass(frozen=True, slots=True)
class Environment:
    """Which tool owns this environment: `pip`, `pipx`, `uv` (a venv without pip), `uv tool`, or `none`."""

    kind: str
    prefix: Path

    def command(self, verb: str, packages: Sequence[str], constraints: Path | None = None) -> list[str]:
        """The command that does `verb`, install or uninstall, here."""
        if self.kind == "pipx":
            words = (
                ["inject", self.prefix.name] if verb == "install" else ["uninject", self.prefix.name, "--leave-deps"]
            )
            return ["pipx", *words, *packages]  # which hears of constraints through variables only
        flags = ["-c", str(constraints)] if constraints else []
        if self.kind == "uv":
            return ["uv", "pip", verb, "--python", sys.executable, *flags, *packages]
        if verb == "uninstall":
            flags = ["--yes"]
        return [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", *flags, *packages]


def environment() -> Environment:
    """The environment that this process runs in."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        kind = "pipx"
    elif (prefix / "uv-receipt.toml").is_file():
        kind = "uv tool"
    elif importlib.util.find_spec("pip"):
        kind = "pip"
    else:
        kind = "uv" if shutil.which("uv") else "none"
    return Environment(kind, prefix)


def normal(name: str) -> str:
    """A package name in the one form that compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> list[Plugin]:
    """Every drafter that the packages of this environment offer, and recorded ones that are gone; imports none."""
    recorded = {normal(record.name): record for record in read_record()}
    found: list[Plugin] = []
    for entry in metadata.entry_points(group=GROUP):
        name = entry.dist.name if entry.dist else ""
        record = recorded.get(normal(name))
        found.append(
            Plugin(
                drafter=entry.name,
                distribution=name,
                version=entry.dist.version if entry.dist else "",
                target=entry.value,
                builtin=normal(name) == "outrider",
                source=record.source if record else "",
            )
        )
    found = [replace(plugin, shadowed_by=_shadow(plugin, found)) for plugin in found]
    here = {normal(plugin.distribution) for plugin in found}
    gone = [
        Plugin("", record.name, record.version, "", builtin=False, source=record.source, missing=True)
        for name, record in recorded.items()
        if name not in here
    ]
    return sorted(found, key=lambda plugin: (not plugin.builtin, plugin.distribution, plugin.drafter)) + gone


def _shadow(plugin: Plugin, all_: Sequence[Plugin]) -> str:
    """Whose drafter the engine takes for the name of this one, if not this one: Outrider's own, else the first."""
    same = [one for one in all_ if normal(one.drafter) == normal(plugin.drafter)]
    used = next((one for one in same if one.builtin), same[0])
    return "" if used is plugin else used.distribution


def module_missing(plugin: Plugin) -> bool:
    """Whether the code that the entry point names is not even there; looks for the package without importing it."""
    top = plugin.target.partition(":")[0].partition(".")[0]
    return bool(top) and importlib.util.find_spec(top) is None


def install(packages: Sequence[str]) -> list[Plugin]:
    """Install packages into this environment with torch held where it is; returns the drafters they brought."""
    for package in packages:
        if normal(_guess_name(package) or package) in PINNED:
            raise WrongUsage(f"{package} is no plugin.", "Upgrade Outrider itself with the tool that installed it.")
    place = _usable(packages)
    before = {(plugin.distribution, plugin.version) for plugin in installed()}
    with _constraints() as (constraints, variables):
        _call(place.command("install", packages, constraints), variables, place)
    importlib.invalidate_caches()
    named = {normal(name): package for package in packages if (name := _guess_name(package))}
    brought = [
        plugin
        for plugin in installed()
        if not plugin.missing
        and not plugin.builtin
        and (normal(plugin.distribution) in named or (plugin.distribution, plugin.version) not in before)
    ]
    records = {normal(record.name): record for record in read_record()}
    for plugin in brought:
        source = _absolute(named.get(normal(plugin.distribution), " ".join(packages)))
        records[normal(plugin.distribution)] = Record(plugin.distribution, plugin.version, source)
    write_record(list(records.values()))
    return brought


def remove(name: str) -> str:
    """Remove the package that is called `name` or offers a drafter of that name; returns the package's name."""
    match = [p for p in installed() if normal(name) in (normal(p.distribution), normal(p.drafter))]
    if normal(name) in PINNED or any(plugin.builtin for plugin in match):
        raise WrongUsage(f"{name} belongs to Outrider itself and cannot be removed.", _LIST)
    if not match:
        raise WrongUsage(f"There is no plugin called {name}.", _LIST)
    package = match[0].distribution
    if not match[0].missing:
        place = _usable([package], removes=True)
        _call(place.command("uninstall", [package]), {}, place)
    write_record([record for record in read_record() if normal(record.name) != normal(package)])
    return package


def read_record() -> list[Record]:
    """What `plugins.toml` holds; a broken file is reported, never overwritten."""
    path = _record_path()
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("plugin", [])
        return [Record(str(e["name"]), str(e["version"]), str(e["source"])) for e in entries]
    except FileNotFoundError:
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path} cannot be read: {error}.", "Mend the file or delete it.") from error


def write_record(records: Sequence[Record]) -> None:
    """Replace `plugins.toml` in one step."""
    path = _record_path()
    if not records and not path.exists():
        return
    files.make_folder(path.parent)
    lines = ["# Written by `outrider plugins`: what it installed into this environment, and from where."]
    for record in records:
        lines += ["", "[[plugin]]", *(f"{key} = {_toml_string(value)}" for key, value in asdict(record).items())]
    beside = path.with_name(f"{path.name}.part")
    beside.write_text("\n".join(lines) + "\n", "utf-8")
    beside.replace(path)


def _record_path() -> Path:
    return paths.data_dir() / "plugins.toml"


def _toml_string(text: str) -> str:
    """A TOML basic string; JSON's escapes are a part of TOML's, DEL is the one character it wants besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _usable(packages: Sequence[str], *, removes: bool = False) -> Environment:
    place = environment()
    words = " ".join(packages)
    if place.kind == "uv tool":
        again = tool_command(place.prefix, without=words) if removes else tool_command(place.prefix, add=packages)
        raise Failure(
            "Outrider was installed as a uv tool, and only uv changes its environment.",
            f"Install it again {'without that plugin' if removes else 'with all its plugins'}: {again}",
        )
    if place.kind == "none":
        raise Failure("This environment has no pip, and uv is not on the path.", "Install uv, then run this again.")
    if place.kind == "pipx" and not shutil.which("pipx"):
        raise Failure(
            "Outrider lives in a pipx environment, but pipx is not on the path.",
            f"Put it there, or run: pipx inject {place.prefix.name} {words}",
        )
    return place


def tool_command(prefix: Path, *, add: Sequence[str] = (), without: str = "") -> str:
    """How uv makes this tool again: what its receipt has, with packages more or one less.

    The receipt does not keep which build of torch was chosen, so that is chosen anew.
    """
    try:
        found = tomllib.loads((prefix / "uv-receipt.toml").read_text("utf-8"))["tool"]["requirements"]
        requirements = {normal(one["name"]): one for one in found}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError):
        requirements = {}
    own = _required(requirements.pop("outrider", {"name": "outrider"}))
    with_ = [word for name, one in requirements.items() if name != normal(without) for word in _with(one)]
    here = set(requirements)
    for package in dict.fromkeys(add):
        if normal(_guess_name(package) or package) not in here:
            with_ += ["--with", _absolute(package)]
    return shlex.join(["uv", "tool", "install", "--torch-backend=auto", *own, *with_])


def _required(requirement: dict[str, str]) -> list[str]:
    """A requirement of a receipt, as words of a command line."""
    if "editable" in requirement:
        return ["--editable", requirement["editable"]]
    for key, before in (("directory", ""), ("path", ""), ("git", "git+"), ("url", "")):
        if key in requirement:
            return [before + requirement[key]]
    return [requirement["name"] + requirement.get("specifier", "")]


def _with(requirement: dict[str, str]) -> list[str]:
    flag, *place = _required(requirement)
    return ["--with-editable", *place] if place else ["--with", flag]


@contextmanager
def _constraints() -> Iterator[tuple[Path, dict[str, str]]]:
    """A constraints file that holds torch and Outrider where they are, and the variables that name it to pip and uv."""
    lines = []
    for name in PINNED:
        try:
            lines.append(f"{name}=={metadata.version(name)}\n")
        except metadata.PackageNotFoundError:
            continue
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        path = Path(folder) / "constraints.txt"
        path.write_text("".join(lines), "utf-8")
        names = ("PIP_CONSTRAINT", "UV_CONSTRAINT")
        yield path, {name: " ".join(filter(None, [os.environ.get(name), str(path)])) for name in names}


def _call(command: list[str], variables: dict[str, str], place: Environment) -> None:
    """Run the tool with all it prints on stderr, since stdout belongs to results."""
    if place.kind == "pipx":
        variables = {**variables, "PIPX_HOME": str(place.prefix.parent.parent)}
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=2, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        tool = "pip" if place.kind == "pip" else command[0]
        raise Failure(
            f"{tool} ended with exit code {done.returncode}; nothing was recorded.",
            "Its messages above say why; if they name torch, the plugin wants another version than the one that is here.",
        )


def _guess_name(package: str) -> str | None:
    """The package's name, as far as its requirement, path or file name tells it."""
    path = Path(package)
    required = _REQUIREMENT.match(package)
    if required and required["at"]:
        return required["name"]
    if path.suffix == ".whl":
        return path.name.partition("-")[0]
    if path.name.endswith((".tar.gz", ".zip")):
        return path.name.rpartition("-")[0]
    if not _is_path(package):
        return required["name"] if required else None
    try:
        return tomllib.loads((path / "pyproject.toml").read_text("utf-8")).get("project", {}).get("name")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None


def _is_path(package: str) -> bool:
    """As pip sees it: a bare word is a name even where a folder is called so."""
    return (os.sep in package or package.startswith(".") or package.endswith(".whl")) and Path(package).exists()


def _absolute(package: str) -> str:
    return str(Path(package).absolute()) if _is_path(package) else package
