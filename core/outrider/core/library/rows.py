"""What lists and `models show` tell of a model."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.protocol import ModelRow
from outrider.core.formats.checkpoint import Checkpoint, info, open_checkpoint
from outrider.core.formats.config import AGAIN, ConfigReader, text_config
from outrider.core.formats.remembered import remembered

from . import receipts
from .catalogue import Entry
from .download import unfinished
from .file_choice import drafter_pickle
from .jobs import size_of
from .other_tools import Found

LIBRARY = "library"


def installed(library: Path, entry: Entry) -> ModelRow:
    """An entry as it is in the library, whole, in part, broken, or not at all."""
    path = library / entry.path
    row = ModelRow(
        name=entry.name,
        title=entry.title or entry.name,
        nbytes=entry.nbytes,
        format=entry.format,
        family=entry.family,
        license=entry.license,
        sources=[source.title() for source in entry.sources],
    )
    state = receipts.state(library, entry)
    if state == "missing":
        row.partial, total = unfinished(library, entry)
        row.nbytes = total or row.nbytes
        return row
    row.source = LIBRARY
    receipt = receipts.read(library, entry)
    if receipt is not None:
        row.license = row.license or receipt.license
        row.quantisation, row.revision, row.commit = receipt.label, receipt.revision, receipt.commit
    if state == "broken":
        row.path = str(path)
        row.nbytes = _size_on_disk(path)
        row.problem = f"Files are missing or cut off: `outrider models pull {entry.name!r}`."
        return row
    return described(row, path)


def from_found(found: Found) -> ModelRow:
    """A model of another tool, not opened."""
    return in_place(ModelRow(name=found.name, title=found.name), found)


def in_place(row: ModelRow, found: Found) -> ModelRow:
    """The row of a model that another tool has here."""
    row.path, row.source = str(found.path), found.source
    row.nbytes, row.format = found.nbytes, found.format
    row.quantisation, row.commit = found.label, found.commit
    return row


def described(row: ModelRow, path: Path) -> ModelRow:
    """The row with what the files at `path` say of themselves, or why they cannot be read."""
    row.path = str(path)
    try:
        found = _summary(path)
    except ModelError as error:
        row.nbytes = _size_on_disk(path)
        if path.is_dir() and drafter_pickle(file.name for file in path.iterdir()):
            row.format = "pickle"
        else:
            row.problem = error.message
        return row
    row.nbytes, row.format, row.family, quantisation = found
    row.quantisation = row.quantisation or quantisation
    row.title = row.title or path.name
    return row


@remembered
def _summary(path: Path) -> tuple[int, str, str, str]:
    """Bytes, format, family and quantisation of a model."""
    with closing(open_checkpoint(path)) as checkpoint:
        family = str(checkpoint.config.get("model_type", ""))
        return checkpoint.nbytes, checkpoint.format, family, checkpoint.quantisation


def damage(path: Path) -> str:
    """Why the files at `path` are no whole model, if they are damaged; empty also for what Outrider cannot run."""
    if path.is_dir() and drafter_pickle(file.name for file in path.iterdir()):
        return ""
    try:
        checkpoint = open_checkpoint(path)
        try:
            info(checkpoint)
        finally:
            checkpoint.close()
    except BrokenFileError as error:
        return error.message
    except ModelError:
        return ""
    return ""


def detailed(row: ModelRow, path: Path) -> ModelRow:
    """The row with `detail`, as far as the files at `path` can be read."""
    try:
        checkpoint = open_checkpoint(path)
    except ModelError:
        return row
    try:
        row.detail = _detail(checkpoint)
    except BrokenFileError as error:
        row.problem = row.problem or error.message
    finally:
        checkpoint.close()
    return row


def _size_on_disk(path: Path) -> int:
    return size_of(path) if path.is_dir() else path.stat().st_size


def _context(checkpoint: Checkpoint) -> int | None:
    settings = text_config(checkpoint.config)
    read = ConfigReader(settings, f"{checkpoint.path}: the config", AGAIN, BrokenFileError)
    key = "max_position_embeddings"
    return read.integer(key) if read.has(key) else None


def _detail(checkpoint: Checkpoint) -> dict[str, Any]:
    described = info(checkpoint)
    text = checkpoint.text()
    return {
        "architecture": described.architecture,
        "parameters": sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()),
        "quantisation": checkpoint.quantisation,
        "layers": described.layers,
        "width": described.width,
        "vocabulary": described.vocab,
        "context": _context(checkpoint),
        "tokenizer": described.tokenizer,
        "template": bool(text.template or text.settings.get("chat_template")),
        "tensors": len(checkpoint.names()),
    }
