"""Names of models on the hub: `ORG/NAME`, with `:LABEL` for one quantisation and `@REVISION` for a branch, tag or commit.

Addresses of the hub's pages mean the same, with or without `https://`: `huggingface.co/ORG/NAME`, `hf.co/ORG/NAME:LABEL`,
`.../tree/REVISION`, `.../blob/REVISION/FILE`, `.../resolve/REVISION/FILE`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from . import catalogue, file_choice

_PART = re.compile(r"[:@][^:@\s]+")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co")
_NO_MODELS = ("datasets", "spaces", "docs", "collections", "papers", "blog", "models", "tasks", "buckets")
_MAIN = "main"
_NEWEST = "latest"  # ollama's word for no label


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and what of it is meant; empty: what the hub gives when nothing is said."""

    repo: str
    label: str = ""
    revision: str = ""

    @property
    def name(self) -> str:
        """As a person writes it."""
        return self.repo + (f":{self.label}" if self.label else "") + (f"@{self.revision}" if self.revision else "")

    @property
    def folder(self) -> str:
        """Its folder in the library. The signs + and @ cannot stand in the name of a repository."""
        tail = (f"+{quote(self.label, safe='')}" if self.label else "") + (
            f"@{quote(self.revision, safe='')}" if self.revision else ""
        )
        return self.repo.replace("/", "--") + tail


def parse(name: str) -> HubName | None:
    """`ORG/NAME[:LABEL][@REVISION]` in either order, or an address of the hub; None if `name` has another form.

    A label may be a file: by its name, or by its path if that ends with `.gguf` or names a quantisation.
    """
    name = name.strip()
    address = _address(name)
    if address is not None:
        return _page(*address)
    name = name.rstrip("/")
    end = min((name.find(sign) for sign in ":@" if sign in name), default=len(name))
    repo, tail = name[:end], name[end:]
    parts = _PART.findall(tail)
    signs = {part[0]: part[1:] for part in parts}
    if "".join(parts) != tail or len(signs) != len(parts) or not catalogue.is_hub_id(repo):
        return None
    label, revision = signs.get(":", ""), signs.get("@", "")
    label = "" if label == _NEWEST else label
    if (label and not _is_label(label)) or (revision and not _valid(revision)):
        return None
    return HubName(repo, label.upper() if file_choice.is_label(label) else label, revision)


def no_model(name: str) -> str:
    """Why an address that `parse` refuses is none of a model, as errors say it; empty if `name` is no address."""
    if _address(name.strip()) is not None:
        return "that is a page of the model hub, but not the page of a model"
    return "that is an address outside the model hub" if "://" in name else ""


def _address(name: str) -> tuple[list[str], str] | None:
    """Path and query of an address of the hub; None if `name` is none."""
    scheme, sign, rest = name.partition("://")
    if not sign:
        rest = name
    elif scheme.casefold() == "hf":
        rest = f"hf.co/{rest}"
    elif scheme.casefold() not in ("http", "https"):
        return None
    try:
        found = urlsplit(f"https://{rest}")
    except ValueError:  # brackets that are no IPv6 address
        return None
    mirror = urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc if sign else ""
    if found.netloc.casefold() not in (*_HOSTS, mirror.casefold() or _HOSTS[0]):
        return None
    return [unquote(part) for part in found.path.split("/") if part], found.query


def _page(path: Sequence[str], query: str) -> HubName | None:
    """What the page of a model means: its repository, revision and file."""
    if len(path) < 2 or path[0] in _NO_MODELS or "/" in path[0]:
        return None
    last = "/".join(path[1:]) if ":" in path[1] or "@" in path[1] else path[1].removesuffix(".git")
    asked = parse(f"{path[0]}/{last}")
    if asked is None or last != path[1].removesuffix(".git"):
        return asked
    revision, file = "", "/".join(path[2:]) if path[-1].lower().endswith(".gguf") else ""
    if len(path) > 3 and path[2] in ("tree", "blob", "resolve", "raw", "commit"):
        length = 3 if path[3] == "refs" else 1  # refs/pr/3
        revision, file = "/".join(path[3 : 3 + length]), "/".join(path[3 + length :])
    file = file or parse_qs(query).get("show_file_info", [""])[0]
    label = file if not file.lower().endswith(".gguf") or "/" in file else file_choice.handle(file)
    if not (file.lower().endswith(".gguf") or file_choice.is_label(file)) or not _is_label(label):
        label = ""
    tail = (f":{label}" if label else "") + (f"@{revision}" if revision not in ("", _MAIN) else "")
    return parse(asked.name + tail) if tail else asked


def _is_label(text: str) -> bool:
    """Whether `text` can name a quantisation or a file."""
    looks_like_file = "/" not in text or text.lower().endswith(".gguf") or bool(file_choice.label_of(text))
    return bool(_LABEL.fullmatch(text)) and ".." not in text and looks_like_file


def from_folder(folder: str) -> HubName | None:
    """The name of a folder of the library, or None if it was not made by a pull."""
    head, _, revision = folder.partition("@")
    repo, _, label = head.partition("+")
    name = HubName(repo.replace("--", "/", 1), unquote(label), unquote(revision))
    return name if parse(name.name) == name and name.folder == folder else None


def is_commit(revision: str, commit: str) -> bool:
    """Whether a revision names this commit, in full or shortened."""
    return bool(_COMMIT.fullmatch(revision)) and commit.startswith(revision)


def _valid(revision: str) -> bool:
    return bool(_REVISION.fullmatch(revision)) and ".." not in revision and not revision.endswith("/")
