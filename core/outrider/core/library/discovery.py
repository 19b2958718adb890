"""Where the weights of drafters are: in the checkpoint, trained here, beside it, shipped, in the library, in the catalogue, or
nowhere yet.

A method says what it needs and judges what it is shown; looking around is done here, for all methods alike. What was trained
here, is beside a model or was shipped for it is used by itself; what is elsewhere is used when its method is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.core.base import paths
from outrider.core.base.errors import DrafterError, ModelError
from outrider.core.base.model_info import ModelInfo
from outrider.core.base.protocol import DrafterRow, KnownDrafter, Where
from outrider.core.drafting import registry

from . import catalogue, drafter_card, hubname, library
from .catalogue import Drafter

_ENDINGS = (".safetensors", ".gguf", ".bin", ".pt")
_MOST = 256  # folders of one place that are looked at
_SMALLER = 0.5  # of the target's size: what is larger does not draft for it
_MUCH_SMALLER = 0.25  # the same for what was not made for this target: it may be a quantised copy of it
OWN = ("trained", "shipped")  # places of drafters that Outrider made for the model
COMPETING = 3  # drafters made for a model that are used together, at most

Place = tuple[Where, Path]


def near(info: ModelInfo) -> list[DrafterRow]:
    """Every method, with weights that are in the checkpoint or beside it; looks no further. Best first."""
    return _placed(info, list(_here(info)))


def survey(info: ModelInfo, model: str, weights: str | None = None) -> list[DrafterRow]:
    """Every method with where its weights are, the library and the catalogue included; with `weights`, how those fit.

    `model`: the name that was asked for, `weights`: a path. Reads headers, no weights, and downloads nothing.
    """
    if weights is not None:
        rows = registry.survey(info, weights)
        takers = {entry.name for entry in registry.entries() if _takes(entry)}
        for row in rows:
            row.where = "given" if row.name in takers else ""
        return rows
    rows = _placed(info, [*_here(info), *_in_library(info)])
    known = _known(info, model)
    for row in rows:
        row.known = [told for told in known if told.method == row.name]
        if row.where == "train" and any(told.repo for told in row.known):
            row.where = "catalogue"
    return rows


def weights_for(name: str, info: ModelInfo) -> str | None:
    """The weights on this machine that the method `name` would take for `info`, if it waits for some."""
    entry = next((entry for entry in registry.entries() if entry.name == name), None)
    if entry is None or not _waits(registry.row(entry, info)):
        return None
    found = _first(entry, info, [*_here(info), *_in_library(info)])
    return found.weights if found is not None else None


def accepting(info: ModelInfo, weights: str) -> str:
    """The method that the files at `weights` are for: the best fit. Raises DrafterError with the reason of each."""
    rows = [row for row in survey(info, "", weights) if row.where == "given"]
    for row in rows:
        if row.usable:
            return row.name
    reasons = " ".join(f"{row.name}: {row.reason.rstrip('.')}." for row in rows)
    raise DrafterError(f"No drafter takes {Path(weights).name}. {reasons}", "See `outrider drafters list`.")


def automatic(rows: Sequence[DrafterRow]) -> tuple[str, ...]:
    """What is used unasked, the most promising last: all that are free (or the best that needs nothing), and the best made for
    this model, with a few others that were trained here or came with Outrider: those are small, and which is fastest is measured.

    Weights from elsewhere do not count; our own come first. Empty: none.
    """
    usable = [row for row in rows if row.usable and row.where != "library"]
    usable.sort(key=lambda row: (registry.FITS.index(row.fit), not row.trusted, -row.gain, row.name))
    cheap = [row for row in usable if row.fit == "any"]
    free = [row.name for row in cheap if row.free] or [row.name for row in cheap[:1]]
    made = [row for row in usable if row.fit in ("exact", "family")]
    others = [row.name for row in made[1:] if row.where in OWN][: COMPETING - 1]
    return (*reversed(free), *reversed(others), *(row.name for row in made[:1]))


# ------------------------------------------------------------------------------------------------ rows


def _placed(info: ModelInfo, places: Sequence[Place]) -> list[DrafterRow]:
    rows = []
    for entry in registry.entries():
        row = registry.row(entry, info)
        if _waits(row):
            row = _first(entry, info, places) or row
            row.where = row.where or "train"
        elif row.usable and row.weights:
            row.where = "checkpoint"
        rows.append(row)
    return sorted(rows, key=lambda row: (registry.FITS.index(row.fit), row.name))


def _first(entry: registry.Entry, info: ModelInfo, places: Sequence[Place]) -> DrafterRow | None:
    """The row of a method with the weights of the first place that it takes, made for this model before others."""
    if not places or not _takes(entry):
        return None
    found = []
    for where, path in places:
        row = registry.row(entry, info, str(path))
        made = where in OWN
        if row.usable and (row.fit == "exact" or (row.fit == "family" and (made or _apart(path, info)))):
            row.where = where
            _measured(row, path)
            found.append(row)
    return min(found, key=lambda row: registry.FITS.index(row.fit), default=None)


def _measured(row: DrafterRow, path: Path) -> None:
    """Tell how good a drafter was on texts that it had not seen, where its card says so."""
    card = drafter_card.read(path)
    if card is None or card.method != row.name or card.measured is None:
        return
    row.gain = max(1.0, card.measured.tokens_per_pass)
    row.reason = f"{row.reason.rstrip('.')}; {row.gain:.2f} tokens a pass on {card.measured.texts} texts new to it"


def _apart(path: Path, info: ModelInfo) -> bool:
    """Whether a folder cannot be another form of the target: it is much smaller, and does not bear its name."""
    named = path.parent != Path(info.path) and _title(info) in path.name.casefold()
    return not named and _weight(path) < _MUCH_SMALLER * _weight(Path(info.path))


def _waits(row: DrafterRow) -> bool:
    return row.fit in registry.FITS[:3] and not row.usable


def _takes(entry: registry.Entry) -> bool:
    try:
        return registry.takes_weights(entry)
    except DrafterError:  # its row tells
        return False


# ------------------------------------------------------------------------------------------------ places


def _here(info: ModelInfo) -> Iterator[Place]:
    """What is used by itself: trained for this model, in or beside it, shipped for it."""
    if not info.path:
        return
    for folder in drafter_card.own(Path(info.path)):
        yield "trained", folder
    yield from _beside(info)
    for folder in drafter_card.shipped(Path(info.path)):
        yield "shipped", folder


def _beside(info: ModelInfo) -> Iterator[Place]:
    """Folders with weights inside the model's folder, and next to the model those that carry its name."""
    if not info.path:
        return
    path, title = Path(info.path), _title(info)
    around = [*(_folders(path) if path.is_dir() else ())]
    around += [folder for folder in _folders(path.parent) if folder != path and title in folder.name.casefold()]
    for folder in around:
        if _may_draft(folder, info):
            yield "beside", folder


def _title(info: ModelInfo) -> str:
    """The name of the model's file or folder, without an owner."""
    return drafter_card.title(Path(info.path)).casefold()


def _in_library(info: ModelInfo) -> Iterator[Place]:
    own = Path(info.path) if info.path else None
    for folder in _folders(paths.models_dir()):
        if folder != own and _may_draft(folder, info):
            yield "library", folder


def _folders(path: Path) -> list[Path]:
    try:
        found = [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]
    except OSError:
        return []
    return [one for one in sorted(found)[:_MOST] if one.suffix != ".partial"]


def _may_draft(folder: Path, info: ModelInfo) -> bool:
    """Whether a folder holds weights that are small beside those of the target."""
    return 0 < _weight(folder) < _SMALLER * _weight(Path(info.path))


def _weight(path: Path) -> int:
    """Bytes of the weight files in a folder, or of a file."""
    try:
        files = [file for file in path.iterdir() if file.suffix in _ENDINGS] if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


# ------------------------------------------------------------------------------------------------ the catalogue


def _known(info: ModelInfo, model: str) -> list[KnownDrafter]:
    """The published drafters of a model, with where they are if they are here."""
    found = (catalogue.drafters_for(name) for name in _names(info, model))
    return [_told(one) for one in next(filter(None, found), ())]


def _names(info: ModelInfo, model: str) -> Iterator[str]:
    """What the catalogue may know a model by: the name asked for, or the repository that its folder tells."""
    yield model
    if info.path:
        path = Path(info.path)
        for folder in (path, *path.parents[:3]):
            asked = hubname.from_folder(folder.name.removeprefix("models--"))
            if asked is not None:
                yield asked.repo


def _told(one: Drafter) -> KnownDrafter:
    told = KnownDrafter(
        method=one.method, repo=one.repo, license=one.license, nbytes=one.size, about=one.about, note=one.note
    )
    if one.repo:
        try:
            told.path = str(library.resolve(one.repo, download=False))
        except ModelError:  # it is not here
            return told
    return told
