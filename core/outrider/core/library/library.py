"""The local library of models, and how a name becomes a path."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from outrider.core.base import paths
from outrider.core.base.errors import BrokenFileError, ModelError, UsageError
from outrider.core.base.protocol import ModelRow
from outrider.core.formats import sidecar

from . import catalogue, file_choice, hubname, other_tools, receipts
from .catalogue import Entry, Source
from .download import fetch, lock_file, settle, unfinished, work_folder
from .hubname import HubName
from .jobs import Job, Progress
from .locks import lock
from .other_tools import Found
from .rows import damage, described, detailed, from_found, in_place, installed
from .sources import size_text

_PARTIAL = ".partial"


def resolve(
    name: str,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    download: bool = True,
) -> Path:
    """The path of a model, by the first of these that has it; brought from its source if none does.

    A local file or folder, the library (a catalogue name, a hub id), the folders of other tools.
    Raises ModelError saying what was tried, DownloadError, Cancelled.
    """
    if not name.strip():
        raise UsageError("No model is named.", "Give a path, a catalogue name or a hub id with --model.")
    local = Path(name).expanduser()
    if not _in_catalogue(name) and local.exists():
        return local
    library, entry, job = paths.models_dir(), _entry(name), Job(progress, cancelled)
    if entry is not None and settle(library, entry, job):
        return library / entry.path
    found = _elsewhere(name, entry)
    if found is not None:
        return found.path
    if entry is None:
        raise _unknown(name)
    if not download:
        size = f" ({size_text(entry.nbytes)})" if entry.nbytes else ""
        hint = f"Bring it{size}: `outrider models pull {name!r}`."
        raise ModelError(f"The model {name!r} is not in the library.", hint)
    _refuse_unsupported(name, entry)
    return fetch(library, entry, job)


def pull(name: str, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None) -> ModelRow:
    """Bring a catalogue model or a hub id into the library, unless another tool has a sound copy of it here already.

    The row has a `problem` if what came cannot be opened. Raises ModelError, DownloadError, Cancelled.
    """
    library, entry, job = paths.models_dir(), _entry(name), Job(progress, cancelled)
    found = _elsewhere(name, entry) if entry is None or receipts.state(library, entry) == "missing" else None
    broken = damage(found.path) if found is not None else ""
    if found is not None and not broken:
        row = described(from_found(found), found.path)
        row.note = f"It is in the {found.source} and is used from there: nothing was copied."
        return row
    if found is not None and entry is None:
        hint = f"Get it again with {found.source}."
        raise BrokenFileError(f"The copy of {name} in {found.source} cannot be used: {broken}", hint)
    if entry is None:
        raise _unknown(name)
    _refuse_unsupported(name, entry)
    if found is not None:
        job.notice(f"The copy in the {found.source} cannot be used, so the library gets one of its own. {broken}")
    fetch(library, entry, job)
    row = _row(entry)
    row.note = _other_labels(name, entry)
    return row


def _other_labels(name: str, entry: Entry) -> str:
    """Which quantisation was taken, if none was named and there are others."""
    receipt, asked = receipts.read(paths.models_dir(), entry), hubname.parse(name)
    if not receipt or not asked or asked.label or len(receipt.labels) < 2:
        return ""
    others = ", ".join(label for label in receipt.labels if label != receipt.label)
    return f"{receipt.label or 'One file'} was taken; {asked.repo}:LABEL brings another one: {others}."


def advice(hint: str, name: str) -> str:
    """A hint about a damaged file with the name that was asked for, if that is no local path."""
    local = not _in_catalogue(name) and Path(name).expanduser().exists()
    return hint if local else hint.replace("models pull NAME", f"models pull {name!r}")


def rows() -> list[ModelRow]:
    """The catalogue, then whatever else is in the library, whole or in part, then what other tools have here."""
    there = {found.name: found for found in other_tools.models()}
    listed: list[ModelRow] = []
    for entry in (*catalogue.entries(), *_others(), *_unfinished()):
        shown = _row(entry)
        found = there.pop(entry.name, None) or (there.pop(entry.repo, None) if not entry.files else None)
        listed.append(in_place(shown, found) if found and shown.path is None else shown)
    return [*listed, *(from_found(found) for found in there.values())]


def row(name: str, progress: Progress | None = None, rehash: bool = False) -> ModelRow:
    """One model with `detail`; with `rehash` its files are hashed again. Raises ModelError for a name that is nothing."""
    local = Path(name).expanduser()
    entry = _entry(name)
    if not _in_catalogue(name) and local.exists():
        return detailed(described(ModelRow(name=name), local), local)
    if entry is None or receipts.state(paths.models_dir(), entry) == "missing":
        found = _elsewhere(name, entry)
        if found is not None:
            shown = in_place(_row(entry), found) if entry else from_found(found)
            return detailed(described(shown, found.path), found.path)
        if entry is None:
            raise _unknown(name)
    shown = _row(entry)
    path = paths.models_dir() / entry.path
    if not path.exists():
        return shown
    if rehash:
        receipts.drop(paths.models_dir(), entry)
        if not settle(paths.models_dir(), entry, Job(progress)):
            shown.problem = f"The files do not have their published checksums: `outrider models pull {name!r}`."
    return detailed(shown, path)


def remove(name: str) -> ModelRow:
    """Delete a model from the library, or what a stopped pull left of it; what is outside is never touched.

    Raises ModelError, also while a pull of it is under way.
    """
    entry, library = _entry(name), paths.models_dir()
    here = entry is not None and ((library / entry.path).exists() or unfinished(library, entry)[0])
    if entry is None or not here:
        raise _not_removed(name, entry)

    def busy() -> None:
        raise ModelError(f"{name} is just being brought by another Outrider.", "Stop that one first.")

    with lock(lock_file(library, entry), busy):
        gone = _row(entry)
        path = library / entry.path
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        receipts.drop(library, entry)
        shutil.rmtree(work_folder(library, entry), ignore_errors=True)
    return gone


def _not_removed(name: str, entry: Entry | None) -> ModelError:
    outside, found = Path(name).expanduser(), _elsewhere(name, entry)
    if outside.exists() and not _in_catalogue(name):
        hint = "Delete it yourself if you want."
        return ModelError(f"{outside} is not in the library, so it is not deleted.", hint)
    if found is not None:
        hint = other_tools.DELETE[found.source]
        return ModelError(f"{name} lies with {found.source} and not in the library, so it is not deleted.", hint)
    if entry is None:
        return _unknown(name)
    return ModelError(f"The model {name!r} is not in the library.", "See `outrider models list`.")


# ------------------------------------------------------------------------------------------------ names


def _in_catalogue(name: str) -> bool:
    return name in {entry.name for entry in catalogue.entries()}


def _entry(name: str) -> Entry | None:
    """What `name` means here: a catalogue name, something in the library, or what a hub id would become."""
    for entry in catalogue.entries():
        if name in (entry.name, entry.path):
            return entry
    for entry in _others():
        if name in (entry.name, entry.path, Path(entry.path).stem):
            return entry
    asked = hubname.parse(name) or hubname.parse(catalogue.drafter_repo(name))
    if asked is None:
        return next((entry for entry in catalogue.entries() if name.casefold() == entry.name.casefold()), None)
    asked = replace(asked, repo=catalogue.spelling(asked.repo))
    return _same(asked) or _hub_entry(asked)


def _same(asked: HubName) -> Entry | None:
    """A pulled model of the same repository that is what `asked` means: of the same revision and, if told, quantisation."""
    fitting = []
    for entry in _others():
        receipt = receipts.read(paths.models_dir(), entry)
        if receipt is None or receipt.repo.casefold() != asked.repo.casefold():
            continue
        if receipt.revision != asked.revision and not hubname.is_commit(asked.revision, receipt.commit):
            continue
        place = _meant(receipt, _file(entry), asked.label)
        if place is not None:
            fitting.append((place, file_choice.rank(receipt.label), entry.name, entry))
    return min(fitting, key=lambda one: one[:3])[3] if fitting else None


def _file(entry: Entry) -> str:
    """The file by whose name a model was pulled; empty if it was by another name."""
    asked = hubname.from_folder(entry.path)
    return asked.label if asked is not None and not file_choice.is_label(asked.label) else ""


def _meant(receipt: receipts.Receipt, file: str, label: str) -> int | None:
    """How well a pulled model is what a label means, 0 the best; None if it is not, or if its repository has a better one.

    A drafter that was pulled by its `file` is meant by that name alone.
    """
    beside = bool(file and sidecar.by_name(file))
    if not label:
        return None if beside else 0
    name = file or (receipt.files[0].name if receipt.files else "")
    place = file_choice.fit(name, receipt.label, label) if receipt.label or name.lower().endswith(".gguf") else None
    if place == 0 or beside:
        return None if place else place
    others = [file_choice.fit("", other, label) for other in receipt.labels if other != receipt.label]
    return place if place is not None and all(other is None or other > place for other in others) else None


def _elsewhere(name: str, entry: Entry | None) -> Found | None:
    """What another tool has of a name; of a catalogue entry without pinned files also by its repository."""
    return other_tools.find(name) or (
        other_tools.find(entry.repo) if entry and entry.repo and not entry.files else None
    )


def _hub_entry(asked: HubName) -> Entry | None:
    """The entry of a hub id, whose folder a catalogue entry may share."""
    if not asked.label and not asked.revision:
        return catalogue.find(asked.repo)
    source = Source("hub", repo=asked.repo, revision=asked.revision, label=asked.label)
    return Entry(name=asked.name, path=asked.folder, title=asked.name, sources=(source,))


def _others() -> Iterator[Entry]:
    """Entries for the library's files and folders that the catalogue does not know."""
    library = paths.models_dir()
    known = {entry.path for entry in catalogue.entries()}
    for path in sorted(library.iterdir()) if library.is_dir() else ():
        if path.name in known or path.name.startswith(".") or path.name.endswith(_PARTIAL):
            continue
        if path.is_dir() or path.suffix == ".gguf":
            yield _from_folder(path.name)


def _unfinished() -> Iterator[Entry]:
    """Entries of which only a part is here, and that are not among the others."""
    library = paths.models_dir()
    known = {entry.path for entry in (*catalogue.entries(), *_others())}
    for work in sorted(library.glob(f"*{_PARTIAL}")):
        entry = _from_folder(work.name.removesuffix(_PARTIAL))
        if entry.path not in known and unfinished(library, entry)[0]:
            yield entry


def _from_folder(folder: str) -> Entry:
    asked = hubname.from_folder(folder)
    return (_hub_entry(asked) if asked else None) or Entry(name=folder, path=folder)


def _unknown(name: str) -> ModelError:
    names = [entry.name for entry in (*catalogue.entries(), *_others())] + [one.name for one in other_tools.models()]
    address = hubname.no_model(name)
    if address:
        return ModelError(
            f"There is no model at {name!r}: {address}.",
            "Give the address of a model's page, as in https://huggingface.co/ORG/NAME, or ORG/NAME alone.",
        )
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return ModelError(
        f"There is no model {name!r}: it is neither a local file or folder, nor a catalogue name, nor a hub id (owner/name).",
        f"Near: {', '.join(near)}. Or give `--model PATH`, or bring one with `outrider models pull NAME`.",
    )


def _refuse_unsupported(name: str, entry: Entry) -> None:
    """Raises ModelError for a catalogue name that the engine cannot run; who names the repository has it all the same."""
    if name == entry.name and entry.unsupported:
        raise ModelError(
            f"{name} is not brought: {entry.unsupported}.",
            f"To have its files all the same: `outrider models pull {entry.repo}`.",
        )


def _row(entry: Entry) -> ModelRow:
    return installed(paths.models_dir(), entry)
