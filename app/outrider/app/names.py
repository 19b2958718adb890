"""Names that a shell can complete: models, drafters, chats. Nothing here starts an engine or asks a network."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from outrider.core.base import paths

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

_CHATS = 100


def models() -> list[str]:
    """Names of the catalogue, then of what else lies in the library."""
    import tomllib
    from importlib import resources  # not for every `--help`

    assets = resources.files("outrider.assets")
    listed = tomllib.loads(assets.joinpath("catalogue.toml").read_text("utf-8"))["model"]
    series = tomllib.loads(assets.joinpath("targets.toml").read_text("utf-8"))["series"]
    known = [*listed, *(model for one in series for model in one["models"])]
    files = {model.get("path") for model in listed}
    return [*(model["name"] for model in known), *(name for name in _library() if name not in files)]


def _library() -> list[str]:
    """What lies in the library, as it is named on the hub where it came from there."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(paths.models_dir().iterdir()):
            if not path.name.startswith(".") and (path.is_dir() or path.suffix == ".gguf"):
                found.append(path.name)
    return [_named(name) for name in found if not name.endswith(".partial")]


def _named(folder: str) -> str:
    """`org--name+Q8_0@main` as `org/name:Q8_0@main`."""
    from urllib.parse import unquote

    head, at, revision = folder.partition("@")
    repo, plus, label = head.partition("+")
    owner, dashes, name = repo.partition("--")
    return f"{owner}/{name}{plus and ':'}{unquote(label)}{at}{unquote(revision)}" if dashes else folder


def drafters() -> list[str]:
    """Names of the methods that are installed."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group="outrider.drafters")})


def trainable() -> list[str]:
    """Names of the methods that can be trained. Imports the methods, which load no torch."""
    return [name for name, method in _methods() if hasattr(method, "recipe")]


def _methods() -> list[tuple[str, object]]:
    """Every method that can be imported, by its name."""
    from importlib.metadata import entry_points

    found = []
    for entry in sorted(entry_points(group="outrider.drafters"), key=lambda entry: entry.name):
        with contextlib.suppress(Exception):  # a plugin of somebody else's
            found.append((entry.name, entry.load()))
    return found


def complete_trained(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """What may follow `outrider train`."""
    found = [*trainable(), "runs", "export"]
    return [name for name in found if name.startswith(incomplete.replace("-", "_"))]


def complete_run(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs of `outrider train`, each with how far it is; else folders."""
    from click.shell_completion import CompletionItem

    from outrider.app.commands import _runs

    found = [CompletionItem("last", help="the one last worked on")]
    found += [CompletionItem(run.name, help=f"{run.method}, {run.state}") for run in _runs.kept()]
    return [one for one in found if one.value.startswith(incomplete)] or [CompletionItem(incomplete, type="dir")]


def complete_option(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Options of the drafter that the line names, else of all of them, each with what it means."""
    from click.shell_completion import CompletionItem

    named = context.params.get("drafter") or context.params.get("name") or context.params.get("names") or []
    asked = {name.replace("-", "_") for name in ([named] if isinstance(named, str) else named)}
    options: dict[str, str] = {}
    for name, method in _methods():
        if not asked or name in asked:
            options |= getattr(method, "options", {})
    return [CompletionItem(f"{name}=", help=told) for name, told in options.items() if name.startswith(incomplete)]


def complete_device(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Where a model may compute."""
    return [name for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:1") if name.startswith(incomplete)]


def complete_drafters(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Who may draft, behind the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in ("auto", *drafters()) if name.startswith(last.replace("-", "_"))]


def complete_category(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Categories of the bundled prompts, behind the last comma."""
    from outrider.app.commands import _prompts

    before, comma, last = incomplete.rpartition(",")
    known = dict.fromkeys(one.category for one in _prompts.read(None))
    return [before + comma + name for name in known if name.startswith(last)]


def complete_weights(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of published drafters that begin so; where none does, files."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in _published() if incomplete and name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _published() -> list[str]:
    import tomllib
    from importlib import resources

    text = resources.files("outrider.assets").joinpath("drafters.toml").read_text("utf-8")
    methods = tomllib.loads(text)["method"]
    return list(dict.fromkeys(one["repo"] for method in methods for one in method["drafters"] if "repo" in one))


def complete_model(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that begin so; where none does, files."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in models() if name.startswith(incomplete) and " " not in name]
    return found or [CompletionItem(incomplete, type="file")]


def complete_drafter(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Who may draft, `auto` and `none` included."""
    return [name for name in ("auto", "none", *drafters()) if name.startswith(incomplete.replace("-", "_"))]


def complete_method(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Methods alone."""
    return [name for name in drafters() if name.startswith(incomplete.replace("-", "_"))]


def complete_chat(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest chats, each with its title."""
    from click.shell_completion import CompletionItem

    from outrider.app.store.chats import Store
    from outrider.app.store.opening import store_path
    from outrider.app.store.problems import StoreError
    from outrider.app.store.records import short

    found = [CompletionItem("last", help="the one last written in")]
    with contextlib.suppress(StoreError, OSError):
        if store_path().exists():
            with Store.open(patience=0.1, repairs=False) as store:
                found += [CompletionItem(short(row.id), help=row.title) for row in store.chats(_CHATS)]
    return [item for item in found if item.value.startswith(incomplete.lower())]
