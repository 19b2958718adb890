"""Models and drafters known by name, from the TOML files in `assets/outrider/assets`; hub ids become entries of the same form.

| file | what it holds |
|---|---|
| `catalogue.toml` | models whose files are pinned: every size and hash is known |
| `targets.toml` | models on the hub, by series; which files they have is asked when one is pulled |
| `drafters.toml` | published drafters, by method, and the models they were made for |

A key that no struct here knows is an error. `about = true` marks figures that are rounded.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import msgspec

from outrider.core.model.families import READERS

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SUFFIX = re.compile(r"[:@].*")  # the quantisation and the revision of a hub id
_FILES = (".gguf", ".safetensors", ".bin", ".json")
_BF16 = 2  # bytes

T = TypeVar("T")


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model. No `sha256`: the source gives none."""

    name: str
    bytes: int
    sha256: str = ""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a model comes from. `pypi`: `member` of the wheel of `package`; `hub`: files of `repo` at `revision`."""

    kind: str
    package: str = ""
    version: str = ""
    member: str = ""
    bytes: int = 0  # of what travels, if that is not the files themselves
    repo: str = ""
    revision: str = ""
    label: str = ""  # quantisation, for a repository with several GGUF files

    def title(self) -> str:
        """As lists and errors call it."""
        return f"PyPI ({self.package} {self.version})" if self.kind == "pypi" else f"model hub ({self.repo})"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model. `path` is its file or folder inside the library; `files` is empty while the hub has not been asked."""

    name: str
    path: str
    title: str = ""
    family: str = ""  # the model_type of its text part
    format: str = ""
    license: str = ""  # SPDX, or what the terms are called
    files: tuple[File, ...] = ()
    sources: tuple[Source, ...] = ()
    series: str = ""
    tier: int = 0  # 1: most people run these, 2: many do, 3: some do; 0: not ranked
    parameters: int = 0  # of the whole checkpoint, towers for pictures and sound included
    active: int = 0  # of them used for one token, where not all are
    form: str = ""  # what the weights are stored as: bf16, fp8, mxfp4, Q4_1, …
    size: int = 0  # bytes of the weights, while `files` is empty
    context: int = 0  # tokens
    kv: int = 0  # numbers that each token adds to the states of layers that see all of the context; 0: not known
    gguf: str = ""  # a repository with GGUF files of the same model
    gated: bool = False  # its terms have to be accepted on the hub first
    about: bool = False  # parameters and size are rounded

    @property
    def nbytes(self) -> int:
        """Size of all its files, about so while the hub has not been asked."""
        return sum(file.bytes for file in self.files) or self.size

    @property
    def repo(self) -> str:
        """Its repository on the hub, if it has one."""
        return next((source.repo for source in self.sources if source.kind == "hub"), "")

    @property
    def unsupported(self) -> str:
        """Why the engine cannot run it, or nothing."""
        if not self.family or self.family in READERS:
            return ""
        return f"the architecture {self.family} is not supported yet"


class Drafter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published drafter. Without `repo` it is in the target's own files; `targets` are catalogue names."""

    targets: tuple[str, ...]
    method: str = ""
    repo: str = ""
    license: str = ""
    size: int = 0  # bytes of the weights; 0: not known
    note: str = ""
    about: bool = False  # the size is rounded


class _Listed(msgspec.Struct, forbid_unknown_fields=True):
    """One model of a series; what it leaves out is as the series says."""

    name: str
    repo: str
    parameters: int
    active: int = 0
    size: int = 0  # 0: two bytes for each parameter
    kv: int = 0
    gguf: str = ""
    about: bool = False
    family: str | None = None
    license: str | None = None
    form: str | None = None
    context: int | None = None
    gated: bool | None = None


class _Series(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    tier: int
    family: str
    models: tuple[_Listed, ...]
    license: str = ""
    context: int = 0
    form: str = "bf16"
    gated: bool = False

    def entry(self, listed: _Listed) -> Entry:
        """One of its models as an entry."""
        shared = ("family", "license", "form", "context", "gated")
        told = {key: getattr(listed if getattr(listed, key) is not None else self, key) for key in shared}
        own = {key: getattr(listed, key) for key in ("name", "parameters", "active", "kv", "gguf", "about")}
        return Entry(
            path=_folder(listed.repo),
            title=listed.repo.partition("/")[2],
            format="safetensors",
            sources=(Source("hub", repo=listed.repo),),
            series=self.title,
            tier=self.tier,
            size=listed.size or _BF16 * listed.parameters,
            **own,
            **told,
        )


class _Method(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    drafters: tuple[Drafter, ...]


class _Pinned(msgspec.Struct, forbid_unknown_fields=True):
    model: tuple[Entry, ...]


class _Targets(msgspec.Struct, forbid_unknown_fields=True):
    series: tuple[_Series, ...]


class _Drafters(msgspec.Struct, forbid_unknown_fields=True):
    method: tuple[_Method, ...]


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form owner/name, and not that of a file."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith(_FILES)


@cache
def entries() -> tuple[Entry, ...]:
    """The catalogue: pinned models, then those on the hub by series."""
    hub = (series.entry(listed) for series in _read("targets.toml", _Targets).series for listed in series.models)
    return (*_read("catalogue.toml", _Pinned).model, *hub)


@cache
def drafters() -> tuple[Drafter, ...]:
    """All published drafters, by method."""
    methods = _read("drafters.toml", _Drafters).method
    return tuple(msgspec.structs.replace(one, method=each.name) for each in methods for one in each.drafters)


def known(name_or_repo: str) -> Entry | None:
    """The catalogue's entry for a name of its own, or for one of its repositories, whichever quantisation or revision."""
    repo = _SUFFIX.sub("", name_or_repo).casefold()
    same = (e for e in entries() if name_or_repo == e.name or (repo and repo in (e.repo.casefold(), e.gguf.casefold())))
    return next(same, None)


def drafters_for(name_or_repo: str) -> tuple[Drafter, ...]:
    """The drafters made for a model of the catalogue, named as for `known`; () for any other."""
    entry = known(name_or_repo)
    return () if entry is None else tuple(one for one in drafters() if entry.name in one.targets)


def is_drafter(repo: str) -> bool:
    """Whether a repository is a published drafter, which needs no tokenizer and may be pickled."""
    return any(one.repo and one.repo.casefold() == repo.casefold() for one in drafters())


def drafter_repo(name: str) -> str:
    """The repository of a published drafter by its bare name, with `@REVISION` if that is given; "" for any other name."""
    bare, at, revision = name.partition("@")
    repos = {one.repo for one in drafters() if bare and one.repo.partition("/")[2].casefold() == bare.casefold()}
    return f"{repos.pop()}{at}{revision}" if len(repos) == 1 else ""


def spelling(repo: str) -> str:
    """A repository as its owner writes it, if it is one of ours; the hub takes no notice of capitals in names."""
    ours = (*(name for entry in entries() for name in (entry.repo, entry.gguf)), *(one.repo for one in drafters()))
    return next((name for name in ours if name.casefold() == repo.casefold()), repo)


def find(name: str) -> Entry | None:
    """The entry called `name`: a catalogue name, or a hub id, whose folder a catalogue entry may share."""
    for entry in entries():
        if name == entry.name:
            return entry
    if not is_hub_id(name):
        return None
    path = _folder(name)
    for entry in entries():
        if entry.path.casefold() == path.casefold():
            return entry
    return Entry(name=name, path=path, title=name, sources=(Source("hub", repo=name),))


def _folder(repo: str) -> str:
    return repo.replace("/", "--")


def _read(file: str, kind: type[T]) -> T:
    text = resources.files("outrider.assets").joinpath(file).read_text("utf-8")
    found: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert(found, kind)
