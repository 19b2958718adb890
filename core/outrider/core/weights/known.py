"""Rows of models with what the catalogue and the memory plan add to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from outrider.core.errors import ModelError
from outrider.core.protocol import KnownDrafter, ModelChoice, ModelRow
from outrider.core.weights import catalogue, library, plan
from outrider.core.weights.catalogue import Entry
from outrider.core.weights.checkpoint import open_checkpoint


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
    return _told(found, catalogue.known(found.name), choice, drafter)


def _told(row: ModelRow, entry: Entry | None, choice: ModelChoice | None, drafter: str | None = None) -> ModelRow:
    if entry is not None:
        _facts(row, entry)
    if choice is None:
        return row
    with _subject(row, entry) as subject:
        if subject is not None and drafter is not None:
            with _guest(drafter) as guest:
                row.plan = plan.plan(subject, plan.settle(subject, choice), guest)
        elif subject is not None:
            row.plan = plan.plan(subject, plan.settle(subject, choice))
    return row


def _facts(row: ModelRow, entry: Entry) -> None:
    for key in ("series", "tier", "parameters", "active", "context", "form", "gguf", "gated", "unsupported"):
        setattr(row, key, getattr(entry, key))
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
            row.unsupported, subject = error.message, None
        yield subject


@contextmanager
def _guest(drafter: str) -> Iterator[plan.Subject]:
    """A drafter's weights: a model's as such, those of any other method as large as their files."""
    row = library.row(drafter)
    with _subject(row, catalogue.known(row.name)) as subject:
        yield subject or plan.Subject(
            drafter, "", 0, 0, lambda how: row.nbytes, lambda how: 0, lambda how: 0, about=True
        )
