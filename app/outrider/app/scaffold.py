"""`outrider plugins new`: a copy of the plugin template under a name of its own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from outrider.app.names import drafters
from outrider.app.render import Failure, WrongUsage

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED = ("auto", "none", "composite")


def drafter_name(text: str) -> str:
    """The name as drafters are written, `my_drafter` for `My-Drafter`. Raises WrongUsage."""
    name = text.lower().replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise WrongUsage(f"{text} cannot be the name of a drafter.", "Use letters, digits and -, such as my-drafter.")
    if name in (*_RESERVED, *drafters()):
        raise WrongUsage(f"There is a drafter {name} already.", "Choose another name.")
    return name


def create(name: str, folder: Path) -> list[str]:
    """Write the plugin of a drafter of that name into a new folder; the files, relative to it. Raises Failure, WrongUsage."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUsage(f"{folder} exists already.", "Name another folder with --to, or move that one away.")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    class_name = class_name.removesuffix("Drafter") or class_name  # the drafter of MyDrafter is no MyDrafterDrafter
    words = {
        "./plugin-template": f"./{folder.name}",
        "outrider-template": f"outrider-{name.replace('_', '-')}",
        "Template": class_name,
        "template": name,
    }
    written: list[str] = []
    try:
        _copy(files("outrider.assets") / "plugin_template", folder, words, written, "")
    except OSError as error:
        raise Failure(f"{folder} cannot be written: {error.strerror or error}.") from error
    return sorted(written)


def _copy(source: Traversable, folder: Path, words: dict[str, str], written: list[str], place: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        name = _renamed(entry.name, words)
        if entry.is_dir():
            if entry.name[0] not in "._":  # no caches of a checkout
                _copy(entry, folder / name, words, written, f"{place}{name}/")
        elif entry.name.endswith((".py", ".md", ".toml")):
            (folder / name).write_text(_renamed(entry.read_text("utf-8"), words), "utf-8")
            written.append(f"{place}{name}")


def _renamed(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text
