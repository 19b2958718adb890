"""Models from a hub: the real client against a small server that speaks the hub's two calls."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from outrider.core.errors import Cancelled, DownloadError, ModelError
from outrider.core.weights import catalogue, hubget
from outrider.core.weights import library as shelf
from outrider.core.weights.catalogue import Entry, File, Source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": save({"model.norm.weight": torch.arange(400_000).float()}),
    "README.md": b"not wanted",
    "onnx/model.onnx": b"not wanted",
}


class Hub(BaseHTTPRequestHandler):
    """`/api/models/REPO[/revision/REV]` and `/REPO/resolve/REV/FILE` for one model."""

    files = FILES
    spoil = ""  # a file that is sent with a wrong byte
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        Hub.asked.append(path)
        if path.startswith("/api/models/some/toy"):
            return self._send(json.dumps(self._listing()).encode(), body, {"Content-Type": "application/json"})
        name = path.rpartition(f"/resolve/{COMMIT}/")[2]
        if path.startswith("/some/toy/resolve/") and name in self.files:
            data = self.files[name]
            tag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            return self._send(data[:-1] + b"!" if name == Hub.spoil else data, body, tag)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _listing(self) -> dict:
        def sibling(name: str, data: bytes) -> dict:
            found: dict = {"rfilename": name, "size": len(data)}
            if name.endswith(".safetensors"):
                sha256 = hashlib.sha256(data).hexdigest()
                found["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 100}
            return found

        siblings = [sibling(name, data) for name, data in self.files.items()]
        return {"id": "some/toy", "sha": COMMIT, "siblings": siblings, "cardData": {"license": "mit"}}

    def _send(self, data: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, library: Path, tmp_path: Path) -> Iterator[type[Hub]]:
    """The server, and an environment in which the client asks it."""
    Hub.asked, Hub.spoil = [], ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_hub_id_becomes_a_folder_of_the_library(hub: type[Hub], library: Path) -> None:
    seen: list[tuple[str, int, int, str]] = []
    path = shelf.resolve("some/toy", lambda *event: seen.append(event))
    assert path == library / "some--toy"
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert any(phase == "verify" for phase, *_ in seen)
    asked = len(hub.asked)
    assert shelf.resolve("some/toy") == path
    assert len(hub.asked) == asked  # local now
    row = shelf.row("some/toy")
    assert (row.license, row.family, row.detail["parameters"], row.problem) == ("mit", "llama", 400_000, "")
    assert "some/toy" in [row.name for row in shelf.rows()]
    assert not list(library.glob("*.partial"))


def test_a_file_that_arrives_broken_is_never_used(hub: type[Hub], library: Path) -> None:
    hub.spoil = "model.safetensors"
    with pytest.raises(DownloadError, match=r"model hub \(some/toy\): model.safetensors arrived broken"):
        shelf.resolve("some/toy")
    assert not (library / "some--toy").exists()
    hub.spoil = ""
    assert shelf.resolve("some/toy").is_dir()


def test_a_damaged_folder_is_replaced(hub: type[Hub], library: Path) -> None:
    weights = shelf.resolve("some/toy") / "model.safetensors"
    weights.write_bytes(b"short")
    assert "missing or cut off" in shelf.row("some/toy").problem
    with pytest.raises(ModelError, match="not in the library"):
        shelf.resolve("some/toy", download=False)
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_pinned_catalogue_entry(hub: type[Hub], library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("config.json", "model.safetensors")
    files = tuple(File(name, len(FILES[name]), hashlib.sha256(FILES[name]).hexdigest()) for name in names)
    entry = Entry("toy (bf16)", "some--toy", files=files, sources=(Source("hub", repo="some/toy", revision=COMMIT),))
    monkeypatch.setattr(catalogue, "entries", lambda: (entry,))
    assert shelf.resolve("toy (bf16)") == library / "some--toy"
    assert not any(path.startswith("/api/") for path in hub.asked)
    assert shelf.pull("some/toy").name == "toy (bf16)"  # the same folder under its hub id


def test_cancel_leaves_nothing(hub: type[Hub], library: Path) -> None:
    with pytest.raises(Cancelled):
        shelf.pull("some/toy", cancelled=lambda: True)
    assert not [path for path in library.iterdir() if not path.name.startswith(".")]


def test_a_model_that_does_not_exist(hub: type[Hub]) -> None:
    with pytest.raises(DownloadError, match=r"model hub \(no/such\): there is no such public model"):
        shelf.resolve("no/such")


def test_no_connection(hub: type[Hub], library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="the model hub cannot be reached"):
        shelf.resolve("some/toy")
    assert not list(library.glob("*.partial"))


def test_half_a_download_is_kept_for_the_next_try(hub: type[Hub], library: Path) -> None:
    kept = library / "some--toy.partial" / "hub" / "files" / "model.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"x" * (2 << 20))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DownloadError):
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        shelf.resolve("some/toy")
    assert kept.exists()
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not list(library.glob("*.partial"))


def test_which_files_of_a_repository_are_chosen() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert hubget.choose(["a.md", "config.json", "model.safetensors", *shards]) == ["config.json", "model.safetensors"]
    assert hubget.choose(["config.json", "tokenizer.json", *shards]) == ["config.json", "tokenizer.json", *shards]
    assert hubget.choose(["a.md", "one.gguf"]) == ["one.gguf"]
    with pytest.raises(SystemExit, match="2 GGUF files"):
        hubget.choose(["one.gguf", "two.gguf"])
    with pytest.raises(SystemExit, match="neither safetensors"):
        hubget.choose(["pytorch_model.bin"])
