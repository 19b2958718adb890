"""Saved races: one JSON file each in the data folder, found again newest first."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from outrider.app import files, render
from outrider.app.chat.compare.race import Race, decoded
from outrider.app.store.writing import free_name
from outrider.core.base import paths


def folder() -> Path:
    """Where races are saved."""
    return paths.data_dir() / "races"


def save(race: Race, where: Path | None = None) -> Path:
    """Write it under a free name, in the data folder if no other is named. Raises OSError."""
    where = where or folder()
    files.make_folder(where)
    path = free_name(where, name_of(race), "json")
    files.write(path, as_json(race).encode())
    return path


def as_json(race: Race) -> str:
    """As it is saved."""
    return render.json_text(race, pretty=False).decode() + "\n"


def name_of(race: Race) -> str:
    """What its files are named after: time, prompt, lanes."""
    moment = datetime.fromtimestamp(race.created).strftime("%Y-%m-%d %H%M")
    return f"{moment} {race.prompt} {' '.join(lane.label for lane in race.lanes)}"


def load(path: Path) -> Race:
    """A saved race. Raises ValueError with a sentence, and OSError."""
    return decoded(path.read_bytes())


def find(words: str) -> Path:
    """A race by the name of its file, here or in the data folder, `.json` left out or not. Raises ValueError with a sentence."""
    given = Path(words).expanduser()
    kept = folder() / given.name
    for path in (given, kept, kept.with_name(f"{kept.name}.json")):
        if path.is_file():
            return path
    raise ValueError(f"There is no saved race {words}.")


def saved() -> list[Path]:
    """All races of the data folder, the newest first."""
    names = sorted(
        (path for path in folder().glob("*.json") if not path.name.startswith(".")), key=lambda path: path.name
    )
    return names[::-1]
