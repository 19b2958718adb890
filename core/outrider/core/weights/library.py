"""The local library of models, and how a name becomes a path."""

from __future__ import annotations

import difflib
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outrider.core import paths
from outrider.core.errors import BrokenFileError, ModelError, UsageError
from outrider.core.protocol import ModelRow
from outrider.core.weights import catalogue, receipts
from outrider.core.weights.catalogue import Entry
from outrider.core.weights.checkpoint import Checkpoint, info, open_checkpoint
from outrider.core.weights.download import fetch, settle, work_folder
from outrider.core.weights.jobs import Job, Progress, size_of


def resolve(
    name: str,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    download: bool = True,
) -> Path:
    """The path of a model: a local file or folder, a catalogue name or a hub id, brought first if it is not here.

    Raises ModelError saying what was tried, DownloadError, Cancelled.
    """
    if not name.strip():
        raise UsageError("No model is named.", "Give a path, a catalogue name or a hub id with --model.")
    known = name in {entry.name for entry in catalogue.entries()}
    local = Path(name).expanduser()
    if not known and local.exists():
        return local
    entry = _in_library(name) if not known else catalogue.find(name)
    if entry is None:
        raise _unknown(name)
    job = Job(progress, cancelled)
    if settle(paths.models_dir(), entry, job):
        return paths.models_dir() / entry.path
    if not download:
        raise ModelError(f"The model {name!r} is not in the library.", f"Bring it: `outrider models pull {name!r}`.")
    return fetch(paths.models_dir(), entry, job)


def pull(name: str, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None) -> ModelRow:
    """Bring a catalogue model or a hub id into the library. Raises ModelError, DownloadError, Cancelled."""
    entry = catalogue.find(name)
    if entry is None:
        raise _unknown(name)
    fetch(paths.models_dir(), entry, Job(progress, cancelled))
    return _row(entry)


def rows() -> list[ModelRow]:
    """The catalogue, then whatever else lies in the library."""
    return [_row(entry) for entry in (*catalogue.entries(), *_others())]


def row(name: str, progress: Progress | None = None, rehash: bool = False) -> ModelRow:
    """One model with `detail`; with `rehash` its files are hashed again. Raises ModelError for a name that is nothing."""
    local = Path(name).expanduser()
    entry = catalogue.find(name) or _in_library(name)
    if entry is None or (local.exists() and catalogue.is_hub_id(name)):
        if not local.exists():
            raise _unknown(name)
        return _detailed(_described(ModelRow(name=name), local), local)
    found = _row(entry)
    path = paths.models_dir() / entry.path
    if not path.exists():
        return found
    if rehash:
        receipts.drop(paths.models_dir(), entry)
        if not settle(paths.models_dir(), entry, Job(progress)):
            found.problem = f"The files do not have their published checksums: `outrider models pull {name!r}`."
    return _detailed(found, path)


def remove(name: str) -> ModelRow:
    """Delete a model from the library; what lies outside is never touched. Raises ModelError."""
    entry = catalogue.find(name) or _in_library(name)
    library = paths.models_dir()
    if entry is None or not (library / entry.path).exists():
        outside = Path(name).expanduser()
        if outside.exists():
            raise ModelError(
                f"{outside} is not in the library, so it is not deleted.", "Delete it yourself if you want."
            )
        if entry is None:
            raise _unknown(name)
        shutil.rmtree(work_folder(library, entry), ignore_errors=True)
        raise ModelError(f"The model {name!r} is not in the library.", "See `outrider models list`.")
    found = _row(entry)
    path = library / entry.path
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    receipts.drop(library, entry)
    shutil.rmtree(work_folder(library, entry), ignore_errors=True)
    return found


def _others() -> Iterator[Entry]:
    """Entries for the library's files and folders that the catalogue does not know."""
    library = paths.models_dir()
    known = {entry.path for entry in catalogue.entries()}
    for path in sorted(library.iterdir()) if library.is_dir() else ():
        if path.name in known or path.name.startswith(".") or path.name.endswith(".partial"):
            continue
        if path.is_dir() or path.suffix == ".gguf":
            yield catalogue.find(path.name.replace("--", "/", 1)) or Entry(name=path.name, path=path.name)


def _in_library(name: str) -> Entry | None:
    for entry in _others():
        if name in (entry.name, entry.path, Path(entry.path).stem):
            return entry
    for entry in catalogue.entries():
        if name == entry.path:
            return entry
    return catalogue.find(name)


def _unknown(name: str) -> ModelError:
    names = [entry.name for entry in (*catalogue.entries(), *_others())]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return ModelError(
        f"There is no model {name!r}: it is neither a local file or folder, nor a catalogue name, nor a hub id (owner/name).",
        f"Near: {', '.join(near)}. Or give `--model PATH`, or bring one with `outrider models pull NAME`.",
    )


def _row(entry: Entry) -> ModelRow:
    library = paths.models_dir()
    path = library / entry.path
    found = ModelRow(
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
        return found
    receipt = receipts.read(library, entry)
    if receipt is not None:
        found.license = found.license or receipt.license
    if state == "broken":
        found.path = str(path)
        found.nbytes = size_of(path) if path.is_dir() else path.stat().st_size
        found.problem = f"Files are missing or cut off: `outrider models pull {entry.name!r}`."
        return found
    return _described(found, path)


def _described(found: ModelRow, path: Path) -> ModelRow:
    found.path = str(path)
    try:
        checkpoint = open_checkpoint(path)
    except ModelError as error:
        found.problem = error.message
        return found
    found.nbytes = checkpoint.nbytes
    found.format = checkpoint.format
    found.family = str(checkpoint.config.get("model_type", ""))
    found.title = found.title or path.name
    checkpoint.close()
    return found


def _detailed(found: ModelRow, path: Path) -> ModelRow:
    try:
        checkpoint = open_checkpoint(path)
    except ModelError:
        return found
    try:
        found.detail = _detail(checkpoint)
    except BrokenFileError as error:
        found.problem = found.problem or error.message
    finally:
        checkpoint.close()
    return found


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
        "context": checkpoint.config.get("max_position_embeddings"),
        "tokenizer": described.tokenizer,
        "template": bool(text.template or text.settings.get("chat_template")),
        "tensors": len(checkpoint.names()),
    }
