"""Names of models on the hub: `ORG/NAME`, with `:LABEL` for one quantisation and `@REVISION` for a branch, tag or commit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from outrider.core.weights import catalogue, choice

_PART = re.compile(r"[:@][^:@\s]+")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


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
        tail = (f"+{self.label}" if self.label else "") + (f"@{quote(self.revision, safe='')}" if self.revision else "")
        return self.repo.replace("/", "--") + tail


def parse(name: str) -> HubName | None:
    """`ORG/NAME[:LABEL][@REVISION]` in either order, or None if `name` has another form."""
    end = min((name.find(sign) for sign in ":@" if sign in name), default=len(name))
    repo, tail = name[:end], name[end:]
    parts = _PART.findall(tail)
    signs = {part[0]: part[1:] for part in parts}
    if "".join(parts) != tail or len(signs) != len(parts) or not catalogue.is_hub_id(repo):
        return None
    label, revision = signs.get(":", ""), signs.get("@", "")
    if (label and not _LABEL.fullmatch(label)) or (revision and not _valid(revision)):
        return None
    return HubName(repo, label.upper() if choice.is_label(label) else label, revision)


def from_folder(folder: str) -> HubName | None:
    """The name of a folder of the library, or None if it was not made by a pull."""
    head, _, revision = folder.partition("@")
    repo, _, label = head.partition("+")
    name = HubName(repo.replace("--", "/", 1), label, unquote(revision))
    return name if parse(name.name) == name and name.folder == folder else None


def is_commit(revision: str, commit: str) -> bool:
    """Whether a revision names this commit, in full or shortened."""
    return bool(_COMMIT.fullmatch(revision)) and commit.startswith(revision)


def _valid(revision: str) -> bool:
    return bool(_REVISION.fullmatch(revision)) and ".." not in revision and not revision.endswith("/")
