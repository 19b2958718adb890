"""Exports as files: the format by the ending of the name, all of a file or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.app import files
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Whole

FORMATS = ("md", "json", "html", "svg")
_ALSO = {"markdown": "md", "htm": "html"}


def kind_of(path: Path | None) -> str:
    """The format that the ending of `path` means, Markdown without one. Raises `StoreError` for an unknown ending."""
    if path is None or not path.suffix:
        return "md"
    ending = path.suffix[1:].lower()
    kind = _ALSO.get(ending, ending)
    if kind not in FORMATS:
        raise StoreError(
            f"{path.suffix} is none of the formats.", f"There are {', '.join(FORMATS)}; --format names one.", code=2
        )
    return kind


def written(kind: str, wholes: Sequence[Whole]) -> str:
    """These chats in a format; one chat unless it is json."""
    from outrider.app.store import exports, page, picture

    if kind == "json":
        return exports.to_json(wholes)
    write = {"md": exports.to_markdown, "html": page.to_html, "svg": picture.to_svg}[kind]
    return write(wholes[0])


def write_file(path: Path, text: str) -> None:
    """All of it or nothing, with the modes that the user's files have. Raises OSError that names it."""
    files.write(path, text.encode(), files.ANYONE)


def free_name(folder: Path, title: str, kind: str) -> Path:
    """A file in `folder` named after a title, one that is not there yet."""
    letters = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
    stem = "-".join(letters)[:48].strip("-") or "chat"
    names = (f"{stem}.{kind}", *(f"{stem}-{number}.{kind}" for number in range(2, 1000)))
    return next(path for name in names if not (path := folder / name).exists())
