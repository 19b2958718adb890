"""A race as files: JSON that opens again, Markdown to paste, a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.style import Style

from outrider.app import files
from outrider.app.chat.compare import keeping, picture, verdict
from outrider.app.chat.compare.race import Race
from outrider.app.chat.marks import ACCEPTED
from outrider.app.chat.palette import Palette
from outrider.app.store.writing import free_name, write_file

_MADE: tuple[tuple[str, Callable[[Race], str]], ...] = (
    ("json", keeping.as_json),
    ("md", verdict.markdown),
    ("svg", picture.svg),
)


def export(race: Race, where: Path) -> list[Path]:
    """All three into a folder, under one free name. Raises OSError."""
    stem = free_name(where, keeping.name_of(race), "json").stem
    paths = []
    for kind, make in _MADE:
        path = where / f"{stem}.{kind}"
        write_file(path, make(race))
        paths.append(path)
    return paths


def export_here(race: Race) -> str:
    """All three into the working folder; what came of it in words."""
    try:
        paths = export(race, Path.cwd())
    except OSError as error:
        return f"The race could not be written: {files.reason(error)} ({error.filename})."
    return f"Wrote {paths[0].stem}.json, .md and .svg to {paths[0].parent}"


def marks_of(palette: Palette) -> Callable[[str], Style | None]:
    """How a token of each kind looks in a lane: accepted ones are marked, whatever the chat marks; None for all others."""
    return lambda kind: palette.style(ACCEPTED) if kind == "A" else None
