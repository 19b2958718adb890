"""Models that other tools brought to this machine, used where they are. Nothing here is ever written or deleted.

| name | folder | moved by |
|---|---|---|
| `ORG/NAME[:LABEL][@REVISION]` | the hub client's cache | HF_HUB_CACHE, HF_HOME |
| `lmstudio:FILE` | LM Studio's models | |
| `ollama:NAME[:TAG]` | ollama's models | OLLAMA_MODELS |
| `llama.cpp:FILE` | llama.cpp's cache | LLAMA_CACHE |

Finding them reads names, sizes, indexes, ollama's manifests and the beginnings of cached GGUF files, and no weights. FILE is a
file name without `.gguf`.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from outrider.core.formats import shards, sidecar

from . import catalogue, file_choice
from .file_choice import Item
from .hubname import HubName, is_commit, parse

HUB_CACHE, LM_STUDIO, OLLAMA, LLAMA_CPP = "Hugging Face cache", "LM Studio", "ollama", "llama.cpp"
DELETE = {
    HUB_CACHE: "Delete it with `hf cache rm`.",
    LM_STUDIO: "Delete it in LM Studio.",
    OLLAMA: "Delete it with `ollama rm`.",
    LLAMA_CPP: "Delete the file yourself if you want.",
}
_MOST = 2000  # entries of one folder that are looked at
_LARGEST = 1 << 20  # bytes of a manifest
_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Found:
    """A model of another tool. `path`: a folder of safetensors or a GGUF file, of a split one the first part."""

    name: str
    source: str
    path: Path
    nbytes: int
    format: str
    label: str = ""
    commit: str = ""


def models() -> list[Found]:
    """All of them, by tool and name; only such that are complete."""
    found = [*_hub_cache(), *_lm_studio(), *_ollama(), *_llama_cpp()]
    unique: dict[str, Found] = {}
    for one in found:
        unique.setdefault(one.name, one)
    return list(unique.values())


def find(name: str) -> Found | None:
    """The model called `name`: as `models` lists it, `ollama:NAME` for the tag `latest`, a hub id with what it may have."""
    asked = parse(name)
    if asked is not None:
        return _in_hub_cache(asked)
    tool, colon, rest = name.partition(":")
    if not colon or not rest:
        return None
    wanted = {name, f"{name}:latest"} if tool == "ollama" else {name, name.removesuffix(".gguf")}
    scan = {
        "lmstudio": partial(_lm_studio, drafters=True),
        "llama.cpp": partial(_llama_cpp, drafters=True),
        "ollama": _ollama,
    }
    return next((one for one in (scan[tool]() if tool in scan else ()) if one.name in wanted), None)


# ------------------------------------------------------------------------------------------------ the hub's cache


class _Cached(msgspec.Struct, frozen=True):
    """One complete model in a snapshot."""

    path: Path
    nbytes: int
    label: str = ""


def _hub_cache() -> Iterator[Found]:
    for folder in _list(_hub_folder()):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if not folder.name.startswith("models--") or parse(repo) is None:
            continue
        commit = _commit(folder, "main")
        for cached in _models(folder / "snapshots" / commit) if commit else ():
            name = HubName(repo, cached.label).name
            yield Found(name, HUB_CACHE, cached.path, cached.nbytes, _format(cached.path), cached.label, commit)


def _in_hub_cache(asked: HubName) -> Found | None:
    folder = _repo_folder("models--" + asked.repo.replace("/", "--"))
    commit = _commit(folder, asked.revision or "main")
    snapshot = folder / "snapshots" / commit
    if not commit:
        return None
    whole, packed = _cached(snapshot, bare=catalogue.is_drafter(asked.repo))
    if whole is not None and not asked.label:
        return Found(asked.name, HUB_CACHE, whole.path, whole.nbytes, "safetensors", "", commit)
    try:
        best = file_choice.pick(packed, asked.label, _kinds(snapshot)) if packed else None
    except file_choice.NoChoice:  # what is meant is not here
        best = None
    if best is None:
        return None
    found = _gguf(snapshot, best)
    return Found(asked.name, HUB_CACHE, found.path, found.nbytes, "gguf", found.label, commit)


def _repo_folder(name: str) -> Path:
    """The folder of a repository in the hub's cache; the hub takes no notice of capitals in names."""
    folder = _hub_folder() / name
    if folder.is_dir():
        return folder
    return next((one for one in _list(_hub_folder()) if one.name.casefold() == name.casefold()), folder)


def _hub_folder() -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _commit(folder: Path, revision: str) -> str:
    """The commit of a branch, tag or (shortened) commit that is cached; empty if none is."""
    reference = folder / "refs" / revision
    if reference.is_file():
        commit = reference.read_text("utf-8", "replace")[:64].strip()
        return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else ""
    fitting = [path.name for path in _list(folder / "snapshots") if is_commit(revision, path.name)]
    return fitting[0] if len(fitting) == 1 else ""


def _cached(snapshot: Path, *, bare: bool = False) -> tuple[_Cached | None, list[list[Item]]]:
    """What a snapshot has whole: its safetensors with config and tokenizer, and GGUF files of any kind.

    `bare`: weights of a drafter will do.
    """
    sizes = {path.name: size for path in _list(snapshot) if (size := _size(path)) is not None}
    weights = _weights(snapshot, sizes) if "config.json" in sizes else []
    if bare and not weights and (pickle := file_choice.drafter_pickle(sizes)):
        weights = [pickle]
    usable = weights and (bare or file_choice.has_tokenizer(sizes))
    whole = _Cached(snapshot, sum(sizes[name] for name in weights)) if usable else None
    folders = [snapshot, *(path for path in _list(snapshot) if path.is_dir())]
    return whole, file_choice.variants(_item(snapshot, path, size) for path, size in _ggufs(folders))


def _models(snapshot: Path) -> list[_Cached]:
    """The complete models of a snapshot: its safetensors, or each of its quantisations."""
    whole, packed = _cached(snapshot)
    return [whole] if whole else [_gguf(snapshot, files) for files in file_choice.models(packed, _kinds(snapshot))]


def _weights(snapshot: Path, sizes: Mapping[str, int]) -> list[str]:
    """The weight files of a snapshot; [] if one is missing or its index cannot be read."""
    try:
        known = sizes.get(shards.INDEX, shards.LARGEST_INDEX) < shards.LARGEST_INDEX
        return shards.weights(sizes, shards.indexed((snapshot / shards.INDEX).read_bytes()) if known else None)
    except (OSError, ValueError, shards.Incomplete):
        return []


def _kinds(top: Path) -> Callable[[str], sidecar.Kind]:
    return lambda path: sidecar.of_file(top / path, path)


def _gguf(snapshot: Path, files: Sequence[Item]) -> _Cached:
    return _Cached(snapshot / files[0].path, sum(file.bytes for file in files), file_choice.label_of(files[0].path))


def _item(top: Path, path: Path, size: int) -> Item:
    return Item(path.name, size, remote=path.relative_to(top).as_posix())


# ------------------------------------------------------------------------------------------------ other tools


def _lm_studio(drafters: bool = False) -> list[Found]:
    tops = [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    folders = [(top, repo) for top in tops for org in _list(top) for repo in _list(org)]
    return _named("lmstudio", LM_STUDIO, folders, drafters)


def _llama_cpp(drafters: bool = False) -> list[Found]:
    if os.environ.get("LLAMA_CACHE"):
        folder = Path(os.environ["LLAMA_CACHE"]).expanduser()
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "llama.cpp"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "llama.cpp"
    return _named("llama.cpp", LLAMA_CPP, [(folder, folder)], drafters)


def _named(prefix: str, source: str, folders: Iterable[tuple[Path, Path]], drafters: bool) -> list[Found]:
    """The GGUF models in (top, folder) pairs, called by their file; by their path under the top if two files are namesakes.

    `drafters`: with those that go beside a model.
    """
    found = []
    for top, folder in folders:
        packed = file_choice.variants(_item(top, path, size) for path, size in _ggufs([folder]))
        beside = [files for files in packed if sidecar.by_name(files[0].path) == "drafter"] if drafters else []
        for files in [*(one for one in file_choice.models(packed) if one not in beside), *beside]:
            first, nbytes = files[0], sum(file.bytes for file in files)
            label = file_choice.label_of(first.name)
            found.append(Found(first.path.removesuffix(".gguf"), source, top / first.path, nbytes, "gguf", label))
    namesakes = Counter(Path(one.name).name for one in found)
    return [
        replace(one, name=f"{prefix}:{one.name if namesakes[Path(one.name).name] > 1 else Path(one.name).name}")
        for one in found
    ]


class _Layer(msgspec.Struct):
    mediaType: str
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


def _ollama() -> list[Found]:
    """Models by their manifests: `manifests/HOST/OWNER/NAME/TAG` names the blob that is a GGUF file."""
    given = os.environ.get("OLLAMA_MODELS")
    service = Path("/usr/share/ollama/.ollama/models")  # where the Linux package keeps them
    tops = [Path(given).expanduser()] if given else [Path.home() / ".ollama" / "models", service]
    found = []
    for top in tops:
        for manifest in _deep(top / "manifests", 4):
            blob = _blob(manifest)
            path = top / "blobs" / blob
            size = _size(path) if blob else None
            if size:
                name = _tagged(manifest.relative_to(top / "manifests").parts)
                found.append(Found(name, OLLAMA, path, size, "gguf", file_choice.label_of(f"{manifest.name}.gguf")))
    return sorted(found, key=lambda one: one.name)


def _tagged(parts: Sequence[str]) -> str:
    host, owner, name, tag = parts
    shelf = [host, owner]
    if host.startswith("registry."):  # ollama's own registry is left out of names, and so is its main shelf
        shelf = [] if owner == "library" else [owner]
    return "ollama:" + "/".join([*shelf, f"{name}:{tag}"])


def _blob(manifest: Path) -> str:
    """The file of the model that a manifest names; empty if it names none."""
    if (_size(manifest) or _LARGEST) >= _LARGEST:
        return ""
    try:
        layers = msgspec.json.decode(manifest.read_bytes(), type=_Manifest).layers
    except (OSError, msgspec.MsgspecError):  # not ours to fix: ollama says so itself
        return ""
    digests = [layer.digest for layer in layers if layer.mediaType == _MODEL]
    return digests[0].replace(":", "-") if len(digests) == 1 and _DIGEST.fullmatch(digests[0]) else ""


# ------------------------------------------------------------------------------------------------ folders


def _format(path: Path) -> str:
    return "gguf" if path.suffix.lower() == ".gguf" else "safetensors"


def _list(folder: Path) -> list[Path]:
    """What is in a folder, in order; nothing if it is not there or closed to us."""
    try:
        return sorted(islice(folder.iterdir(), _MOST))
    except OSError:
        return []


def _deep(folder: Path, depth: int) -> Iterator[Path]:
    for path in _list(folder):
        if depth > 1:
            yield from _deep(path, depth - 1)
        else:
            yield path


def _size(path: Path) -> int | None:
    """Bytes of a file, links followed; None for what is no file."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _ggufs(folders: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    for folder in folders:
        for path in _list(folder):
            size = _size(path) if path.suffix.lower() == ".gguf" else None
            if size:
                yield path, size
