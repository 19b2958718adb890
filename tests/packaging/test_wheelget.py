"""The starter's package without pip: one index page, one wheel, by the client that is a dependency anyway."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outrider.core.library import wheelget

WHEEL = b"PK" + bytes(range(256)) * 400
NAME = "toy_model-1.0-py3-none-any.whl"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """An index on this machine; what it has, by path."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield pages
        server.shutdown()


def page(sha256: str) -> bytes:
    older = {"filename": "toy_model-0.9-py3-none-any.whl", "url": "../../no", "hashes": {}}
    sdist = {"filename": "toy_model-1.0.tar.gz", "url": "../../no", "hashes": {}}
    wheel = {"filename": NAME, "url": f"../../files/{NAME}", "hashes": {"sha256": sha256}}
    return json.dumps({"files": [older, sdist, wheel]}).encode()


def test_the_wheel_of_that_version_comes(index: dict[str, bytes], tmp_path: Path) -> None:
    index["/simple/toy-model/"] = page(hashlib.sha256(WHEEL).hexdigest())
    index[f"/files/{NAME}"] = WHEEL
    assert wheelget.fetch("toy-model", "1.0", tmp_path).read_bytes() == WHEEL
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    ("version", "sha256", "reason"),
    [("1.0", "0" * 64, "is not what the index says"), ("2.0", "", "no wheel of toy-model 2.0")],
)
def test_what_does_not_fit_is_refused(
    index: dict[str, bytes], tmp_path: Path, version: str, sha256: str, reason: str
) -> None:
    index["/simple/toy-model/"], index[f"/files/{NAME}"] = page(sha256), WHEEL
    with pytest.raises(wheelget._NoWheelError, match=reason):
        wheelget.fetch("toy-model", version, tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_a_package_that_the_index_does_not_have(index: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(wheelget._NoWheelError, match="answers 404"):
        wheelget.fetch("toy-model", "1.0", tmp_path)
