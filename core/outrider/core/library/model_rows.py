"""Rows of models with what the catalogue and the memory plan add to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import KnownDrafter, ModelChoice, ModelRow
from outrider.core.formats.checkpoint import open_checkpoint

from . import catalogue, hubname, library, plan
from .catalogue import Entry
from .file_choice import has_tokenizer
from .jobs import Progress


def rows(everything: bool, choice: ModelChoice) -> list[ModelRow]:
    """What is here and the starter; with `everything` all of the catalogue, with plans for `choice`."""
    listed = []
    for row in library.rows():
        entry = catalogue.known(row.name)
        if everything or row.path or row.partial or entry is None or entry.files:
            listed.append(_told(row, entry, choice if everything else None))
    return listed


def row(name: str, choice: ModelChoice, drafter: str | None = None) -> ModelRow:
    """One model with `detail` and a plan for `choice`, a drafter's weights counted in.

    Raises ModelError for a name that is nothing, UsageError for a choice that this machine or this model does not have.
    """
    found = library.row(name)
    entry = catalogue.known(found.name)
    if found.path is not None and not found.problem and not _is_drafter(name):
        found.unsupported = refusal(Path(found.path))
    return _told(found, entry, choice, drafter)


def pull(name: str, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None) -> ModelRow:
    """`library.pull`, and whether the engine can run what is there then. Raises as it does."""
    found = library.pull(name, progress, cancelled)
    if found.path is not None and not found.problem and not _is_drafter(name):
        found.unsupported = refusal(Path(found.path))
    return found


def _is_drafter(name: str) -> bool:
    asked = hubname.parse(name)
    return bool(catalogue.drafter_repo(name)) or (asked is not None and catalogue.is_drafter(asked.repo))


def refusal(path: Path) -> str:
    """Why a model cannot be run, as `run` would say it; empty if it can, and for weights of drafters, which no one chats with.

    Reads headers and the tokenizer, and no weights.
    """
    if path.is_dir() and not has_tokenizer(file.name for file in path.iterdir()) and not list(path.glob("*.gguf")):
        return ""
    from outrider.core.model import outline
    from outrider.core.text.tokenizer import Tokenizer

    try:
        with closing(open_checkpoint(path)) as checkpoint:
            Tokenizer(checkpoint.text())
            outline.check(checkpoint)
    except ModelError as error:
        return error.message.rstrip(".")
    return ""


def located(name: str) -> Path:
    """The path of a model that is here, for a look-up. Raises ModelError for any other, with what the catalogue knows of it."""
    try:
        return library.resolve(name, download=False)
    except ModelError as error:
        made = [f"{one.method} {one.repo}" for one in catalogue.drafters_for(name) if one.repo]
        if made:
            error.message += f" Drafters published for it: {', '.join(made)}."
        raise


def _told(row: ModelRow, entry: Entry | None, choice: ModelChoice | None, drafter: str | None = None) -> ModelRow:
    if entry is not None:
        _facts(row, entry)
    if choice is None or (row.path is not None and row.unsupported):
        return row
    with _subject(row, entry) as subject:
        if subject is not None and drafter is not None:
            with _guest(drafter) as guest:
                row.plan = plan.plan(subject, plan.settle(subject, choice), guest)
        elif subject is not None:
            row.plan = plan.plan(subject, plan.settle(subject, choice))
    return row


def _facts(row: ModelRow, entry: Entry) -> None:
    for key in ("series", "tier", "parameters", "active", "context", "form", "gguf", "gated"):
        setattr(row, key, getattr(entry, key))
    row.unsupported = row.unsupported or entry.unsupported
    row.about = entry.about and row.path is None
    row.drafters = [
        KnownDrafter(
            method=one.method, repo=one.repo, license=one.license, nbytes=one.size, about=one.about, note=one.note
        )
        for one in catalogue.drafters_for(entry.name)
    ]


@contextmanager
def _subject(row: ModelRow, entry: Entry | None) -> Iterator[plan.Subject | None]:
    """What a plan can be made for: the files if they are here and can be read and run, else what the catalogue tells."""
    if row.path is None:
        yield plan.of_entry(entry) if entry is not None and entry.parameters else None
        return
    try:
        checkpoint = open_checkpoint(Path(row.path))
    except ModelError:  # `models show` tells why; a list does not open what other tools keep
        yield None
        return
    with closing(checkpoint):
        try:
            subject = plan.of_checkpoint(checkpoint, row.name)
        except ModelError as error:
            row.unsupported, subject = error.message.rstrip("."), None
        yield subject


@contextmanager
def _guest(drafter: str) -> Iterator[plan.Subject]:
    """A drafter's weights: a model's as such, those of any other method as large as their files."""
    row = library.row(drafter)
    with _subject(row, catalogue.known(row.name)) as subject:
        yield subject or plan.Subject(
            drafter, "", 0, 0, lambda how: row.nbytes, lambda how: 0, lambda how: 0, about=True
        )
