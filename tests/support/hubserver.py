"""A model hub on this machine: the calls of the real one that a download makes, and its ways to fail.

Files with weights are sent by a second server, a CDN, to which the first one redirects, as the real hub does. Revisions:
`main`, the tag `v1` and the commits. Ranges, entity tags and the X- headers are those of the real hub.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"
_WEIGHTS = (".safetensors", ".gguf", ".bin")
_PIECE = 8192  # bytes of one write


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    host: str  # hub or cdn
    path: str
    start: int  # of the range that was asked for
    token: str
    sent: int = 0  # bytes of the body


@dataclass
class Answer:
    """An answer in place of the right one."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Hub:
    """What the servers hold and how they behave; a test changes it at any time."""

    repos: dict[str, dict[str, dict[str, bytes]]]  # name -> commit -> path -> data
    url: str = ""
    cdn: str = ""
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[str], Answer | None] = lambda path: None  # instead of the right answer to a path
    cut: Callable[[str, int], tuple[int, bool] | None] = lambda path, size: None  # bytes to send first; with a reset?
    spoil: str = ""  # a file that is sent with a wrong byte
    ranges: bool = True
    sizes: bool = True  # listings tell sizes and hashes
    before_piece: Callable[[str], object] = lambda path: None  # of the file at a path

    def files(self, repo: str, revision: str) -> dict[str, bytes] | None:
        """The files of a repository at a revision."""
        commits = self.repos.get(repo, {})
        newest = next(iter(commits), "")
        return commits.get({"main": newest, "v1": list(commits)[-1] if commits else ""}.get(revision, revision))

    def paths(self, host: str = "") -> list[str]:
        """What was asked for, in order."""
        return [one.path for one in self.asked if host in ("", one.host)]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Both servers, until the end of the block."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub, host)) for host in ("hub", "cdn")]
    for server in servers:
        server.daemon_threads = True
        server.handle_error = lambda request, client_address: None  # type: ignore[method-assign] - clients hang up here
        threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True).start()
    hub.url, hub.cdn = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, host: str, *arguments: Any) -> None:
        self.hub, self.host = hub, host
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.hub.ranges else 0
        index = len(self.hub.asked)
        self.hub.asked.append(Asked(self.host, path, start, self.headers.get("Authorization", "")))
        answer, name = self.hub.answer(path), ""
        if answer is None:
            answer, name = self._moved(path) or self._listing(path) or self._file(path, start)
        sent = self._send(answer, body, path if name else "")
        self.hub.asked[index] = Asked(self.host, path, start, self.headers.get("Authorization", ""), sent)

    def _moved(self, path: str) -> tuple[Answer, str] | None:
        """To the spelling of the owner: the hub takes no notice of capitals in names."""
        match = re.fullmatch(r"(/api/models)?/([^/]+/[^/]+)(/.*)?", path)
        if match is None or match[2] in self.hub.repos:
            return None
        owner = next((name for name in self.hub.repos if name.casefold() == match[2].casefold()), "")
        return (Answer(307, {"Location": f"{match[1] or ''}/{owner}{match[3] or ''}"}), "") if owner else None

    def _listing(self, path: str) -> tuple[Answer, str] | None:
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if match is None:
            return None
        if match[1] not in self.hub.repos:
            return refused("RepoNotFound", 404), ""
        files = self.hub.files(match[1], match[2] or "main")
        if files is None:
            return refused("RevisionNotFound", 404), ""
        siblings = [self._sibling(name, data) for name, data in files.items()]
        commit = next(key for key, held in self.hub.repos[match[1]].items() if held is files)
        told = {"id": match[1], "sha": commit, "siblings": siblings, "cardData": {"license": "mit"}}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(told).encode()), ""

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        if not self.hub.sizes:
            return {"rfilename": name}
        told: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": tag_of(name, data, blob=True)}
        if name.endswith(_WEIGHTS):
            told["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
        return told

    def _file(self, path: str, start: int) -> tuple[Answer, str]:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        files = self.hub.files(match[1], match[2]) if match else None
        if match is None or files is None or match[3] not in files:
            return refused("EntryNotFound", 404), ""
        name, data = match[3], files[match[3]]
        commit = next(key for key, held in self.hub.repos[match[1]].items() if held is files)
        headers = {"ETag": f'"{tag_of(name, data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name.endswith(_WEIGHTS) and self.host == "hub":
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": headers["ETag"]}
            return Answer(302, headers | {"Location": self.hub.cdn + path}), ""
        if name == self.hub.spoil:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if "Range" not in self.headers or not self.hub.ranges:
            return Answer(200, headers, data), name
        if start >= len(data):
            return Answer(416, {"Content-Range": f"bytes */{len(data)}"}), ""
        told = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        return Answer(206, headers | told, data[start:]), name

    def _send(self, answer: Answer, body: bool, path: str) -> int:
        """Send an answer; the bytes of its body that went out. With `path`, a file, it may be cut."""
        self.send_response(answer.status)
        for key, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return 0
        cut = self.hub.cut(path, len(answer.body)) if path else None
        data = answer.body[: cut[0]] if cut else answer.body
        for at in range(0, len(data), _PIECE):
            if path:
                self.hub.before_piece(path)
            self.wfile.write(data[at : at + _PIECE])
        if cut:
            if cut[1]:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        return len(data)


def refused(code: str, status: int, **headers: str) -> Answer:
    """A refusal as the hub tells it."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Answer(status, {"X-Error-Code": code, "X-Error-Message": code, **named} if code else named)


def tag_of(name: str, data: bytes, blob: bool = False) -> str:
    """SHA-256 of a file with weights, the git blob id of any other one."""
    if name.endswith(_WEIGHTS) and not blob:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
