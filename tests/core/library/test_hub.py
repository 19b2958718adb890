"""Models from a hub: the real client against a server on this machine that speaks the hub's calls."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest
import torch
from hubserver import COMMIT, OLDER, Answer, Hub, refused, tag_of
from safetensors.torch import save

from outrider.core.base.errors import Cancelled, DownloadError, ModelError
from outrider.core.library import catalogue, hubget, receipts, sources
from outrider.core.library import library as shelf
from outrider.core.library.catalogue import Entry, File, Source
from outrider.core.library.file_choice import Item
from outrider.core.library.hubget import Plan
from outrider.core.library.locks import lock

CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1}
TOY = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": save({"model.norm.weight": torch.arange(100_000).float()}),
    "tokenizer_config.json": b"{}",
    "README.md": b"not wanted",
    "onnx/model.onnx": b"not wanted",
}
WANTED = ["config.json", "model.safetensors", "tokenizer_config.json"]
WEIGHTS = TOY["model.safetensors"]


@pytest.fixture
def toy(hub: Hub) -> Hub:
    """The hub with one model, in two versions."""
    older = TOY | {"config.json": json.dumps(CONFIG | {"older": True}).encode()}
    hub.repos["some/toy"] = {COMMIT: TOY, OLDER: older}
    return hub


def left(library: Path) -> list[str]:
    """What lies in the library, the locks and the receipts aside."""
    return sorted(path.name for path in library.iterdir() if not path.name.startswith(".")) if library.exists() else []


def half(library: Path, count: int, data: bytes = WEIGHTS) -> Path:
    """What a killed pull left of the toy: the plan, all small files, `count` bytes of the weights."""
    files = library / "some--toy.partial" / "hub" / "files"
    files.mkdir(parents=True)
    items = []
    for name in WANTED:
        lfs = name == "model.safetensors"
        items.append(
            Item(
                name, len(TOY[name]), tag_of(name, TOY[name]) if lfs else "", git="" if lfs else tag_of(name, TOY[name])
            )
        )
        (files / name).write_bytes(data[:count] if lfs else TOY[name])
    (files.parent / "plan.json").write_bytes(msgspec.json.encode(Plan(COMMIT, tuple(items))))
    return files / "model.safetensors"


# ------------------------------------------------------------------------------------------------ what is brought


def test_a_hub_id_becomes_a_folder_of_the_library(toy: Hub, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    seen: list[tuple[str, int, int, str]] = []
    path = shelf.resolve("some/toy", lambda *event: seen.append(event))
    assert path == library / "some--toy"
    assert sorted(file.name for file in path.iterdir()) == WANTED
    assert all((path / name).read_bytes() == TOY[name] for name in WANTED)
    total = sum(len(TOY[name]) for name in WANTED)
    assert seen[-1] == ("verify", total, total, "model.safetensors")
    assert {whole for phase, done, whole, _ in seen if phase == "download" and done} <= {total}
    # the CDN gets no token
    assert {one.token for one in toy.asked if one.host == "hub"} == {"Bearer secret"}
    assert [(one.path, one.token) for one in toy.asked if one.host == "cdn"] == [
        (f"/some/toy/resolve/{COMMIT}/model.safetensors", "")
    ]
    asked = len(toy.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert shelf.resolve("some/toy") == path and shelf.pull("some/toy").path == str(path)
    assert len(toy.asked) == asked  # local now
    row = shelf.row("some/toy")
    assert (row.license, row.family, row.detail["parameters"], row.problem) == ("mit", "llama", 100_000, "")
    assert (row.source, row.commit, row.quantisation) == ("library", COMMIT, "fp32")
    assert "some/toy" in [row.name for row in shelf.rows()]
    assert left(library) == ["some--toy"]


def test_the_receipt_tells_where_a_model_came_from(inside: Hub, toy: Hub, library: Path) -> None:
    for name, commit, folder in (("some/toy", COMMIT, "some--toy"), ("some/toy@v1", OLDER, "some--toy@v1")):
        row = shelf.pull(name)
        assert (row.name, row.commit, row.path) == (name, commit, str(library / folder))
    receipt = receipts.read(library, Entry("", "some--toy@v1"))
    assert receipt is not None
    assert (receipt.repo, receipt.revision, receipt.commit) == ("some/toy", "v1", OLDER)
    for file in receipt.files:
        data = toy.repos["some/toy"][OLDER][file.name]
        assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert json.loads((library / "some--toy@v1" / "config.json").read_bytes())["older"]
    asked = len(toy.asked)
    assert shelf.resolve(f"some/toy@{OLDER}") == shelf.resolve(f"some/toy@{OLDER[:8]}") == library / "some--toy@v1"
    assert shelf.resolve("some/toy") == library / "some--toy"
    assert len(toy.asked) == asked


def test_a_pickled_drafter_is_pulled(inside: Hub, hub: Hub, library: Path) -> None:
    repo = "some/medusa"
    hub.repos[repo] = {COMMIT: {"config.json": b"{}", "medusa_lm_head.pt": b"x" * 99, "README.md": b"not wanted"}}
    row = shelf.pull(f"{repo}@main")
    assert (row.format, row.nbytes, row.problem) == ("pickle", 101, "")
    assert left(library / "some--medusa@main") == ["config.json", "medusa_lm_head.pt"]


def test_a_published_drafter_is_pulled_by_its_bare_name(inside: Hub, hub: Hub, library: Path) -> None:
    hub.repos["AngelSlim/Qwen3-8B_eagle3"] = {
        COMMIT: {name: TOY[name] for name in ("config.json", "model.safetensors")}
    }
    assert shelf.resolve("qwen3-8b_eagle3") == library / "AngelSlim--Qwen3-8B_eagle3"


def test_a_quantisation_is_pulled_by_its_label(inside: Hub, hub: Hub, library: Path, tiny) -> None:
    data = tiny.write().read_bytes()
    names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "big/m-F16-00001-of-00002.gguf", "big/m-F16-00002-of-00002.gguf"]
    hub.repos["some/packed"] = {COMMIT: {name: data for name in [*names, "mmproj-F16.gguf"]}}
    row = shelf.pull("some/packed")
    assert (row.name, row.quantisation, row.family) == ("some/packed", "Q4_K_M", "llama")
    assert row.note == "Q4_K_M was taken; some/packed:LABEL brings another one: Q8_0, F16."
    asked = len(hub.asked)
    assert shelf.resolve("some/packed:q4_k_m") == library / "some--packed"
    assert len(hub.asked) == asked
    assert shelf.pull("some/packed:q8_0").path == str(library / "some--packed+Q8_0")
    assert shelf.row("some/packed:Q8_0").quantisation == "Q8_0"
    path = shelf.resolve("some/packed:F16")
    assert sorted(file.name for file in path.iterdir()) == ["m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"]
    with pytest.raises(DownloadError, match=r"it has no Q3_K; there is Q4_K_M \(0.0 GB\), Q8_0") as caught:
        shelf.pull("some/packed:Q3_K")
    assert "some/packed:Q4_K_M" in caught.value.hint
    shelf.remove("some/packed")
    assert shelf.resolve("some/packed", download=False) == library / "some--packed+Q8_0"  # rather than nothing


def test_a_pinned_catalogue_entry(inside: Hub, toy: Hub, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("config.json", "model.safetensors")
    files = tuple(File(name, len(TOY[name]), hashlib.sha256(TOY[name]).hexdigest()) for name in names)
    entry = Entry("toy (bf16)", "some--toy", files=files, sources=(Source("hub", repo="some/toy", revision=COMMIT),))
    monkeypatch.setattr(catalogue, "entries", lambda: (entry,))
    assert shelf.resolve("toy (bf16)") == library / "some--toy"
    assert not any(path.startswith("/api/") for path in toy.paths())
    assert shelf.pull("some/toy").name == "toy (bf16)"  # the same folder under its hub id


def test_a_listing_without_sizes(inside: Hub, toy: Hub, library: Path) -> None:
    toy.sizes = False
    path = shelf.resolve("some/toy")
    assert all((path / name).read_bytes() == TOY[name] for name in WANTED)


# ------------------------------------------------------------------------------------------------ going on


def test_what_arrived_is_not_fetched_again(toy: Hub, library: Path) -> None:
    half(library, 150_000)
    seen: list[tuple[str, int, int, str]] = []
    path = shelf.resolve("some/toy", lambda *event: seen.append(event))
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert [(one.start, one.sent) for one in toy.asked if one.host == "cdn"] == [(150_000, len(WEIGHTS) - 150_000)]
    assert not any("config.json" in one.path for one in toy.asked)
    assert min(done for phase, done, *_ in seen if phase == "download") >= 150_000  # the bar begins where the try did
    assert left(library) == ["some--toy"]


def test_another_version_begins_anew(inside: Hub, toy: Hub, library: Path) -> None:
    half(library, 150_000)
    changed = WEIGHTS[:-1] + b"!"
    toy.repos["some/toy"] = {OLDER: TOY | {"model.safetensors": changed}}
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == changed
    assert [one.start for one in toy.asked if one.host == "cdn"] == [0]
    assert not any("config.json" in one.path for one in toy.asked)  # that one is the same in both


def test_a_server_without_ranges(inside: Hub, toy: Hub, library: Path) -> None:
    half(library, 150_000)
    toy.ranges = False
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == WEIGHTS


def test_a_partial_file_that_is_damaged(inside: Hub, toy: Hub, library: Path) -> None:
    """Such a file cannot be told from a sound one before its last byte is here; then it is deleted, and only that one."""
    half(library, 150_000, b"\0" * len(WEIGHTS))
    with pytest.raises(DownloadError, match=r"model.safetensors arrived broken .* was deleted"):
        shelf.resolve("some/toy")
    assert left(library) == ["some--toy.partial"]
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == WEIGHTS
    assert not any("config.json" in one.path for one in toy.asked)


def test_a_stopped_pull_is_kept_listed_and_gone_on_with(toy: Hub, library: Path) -> None:
    pieces, stopped, total = [], threading.Event(), sum(len(TOY[name]) for name in WANTED)
    toy.before_piece = lambda path: pieces.append(path) or (len(pieces) > 10 and stopped.wait(20))
    seen = [0]
    with pytest.raises(Cancelled):
        shelf.pull("some/toy", lambda _, done, *rest: seen.append(done), lambda: seen[-1] > 20_000)
    stopped.set()
    assert left(library) == ["some--toy.partial"]
    row = next(row for row in shelf.rows() if row.name == "some/toy")
    assert row.path is None and 20_000 < row.partial < total and row.nbytes == total
    toy.asked.clear()
    shelf.pull("some/toy")
    assert sum(one.sent for one in toy.asked if "/resolve/" in one.path) == total - row.partial
    assert left(library) == ["some--toy"]


def test_a_kept_part_can_be_removed(library: Path) -> None:
    half(library, 150_000)
    assert shelf.remove("some/toy").partial > 150_000
    assert left(library) == []


def test_a_pull_that_was_stopped_at_once_leaves_nothing(toy: Hub, library: Path) -> None:
    with pytest.raises(Cancelled):
        shelf.pull("some/toy", cancelled=lambda: True)
    assert left(library) == []


def test_the_child_ends_with_its_parent(toy: Hub, library: Path) -> None:
    """After a kill -9 nobody writes on, and the next pull has the files for itself."""
    coming, released = threading.Event(), threading.Event()
    toy.before_piece = lambda path: path.endswith(".safetensors") and (coming.set(), released.wait(20))
    code = "from outrider.core.library import library; library.pull('some/toy')"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        assert coming.wait(20)
        parent.send_signal(signal.SIGKILL)
    room = library / "some--toy.partial" / "hub"
    with lock(room / "lock", lambda: None):  # it was the child's until it ended
        pass
    released.set()
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == WEIGHTS
    assert left(library) == ["some--toy"]


def test_a_model_that_is_just_being_pulled_is_not_removed(library: Path) -> None:
    half(library, 10)
    with lock(library / ".some--toy.lock", lambda: None), pytest.raises(ModelError, match="just being brought"):
        shelf.remove("some/toy")
    assert left(library) == ["some--toy.partial"]


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_a_file_that_arrives_broken_is_never_used(inside: Hub, toy: Hub, library: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        toy.spoil = name
        with pytest.raises(DownloadError, match=rf"model hub \(some/toy\): {name} arrived broken"):
            shelf.resolve("some/toy")
        assert not (library / "some--toy").exists()
        shelf.remove("some/toy")
    toy.spoil = ""
    assert shelf.resolve("some/toy").is_dir()


def test_a_damaged_folder_is_replaced(inside: Hub, toy: Hub, library: Path) -> None:
    weights = shelf.resolve("some/toy") / "model.safetensors"
    weights.write_bytes(b"short")
    assert "missing or cut off" in shelf.row("some/toy").problem
    with pytest.raises(ModelError, match="not in the library"):
        shelf.resolve("some/toy", download=False)
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == WEIGHTS


PAGE = Answer(200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>Welcome to our guest network</html>")


@pytest.mark.parametrize(
    ("where", "answer", "reason", "hint"),
    [
        (
            "/resolve/",
            refused("GatedRepo", 403),
            "its licence has to be accepted first",
            "/some/toy, sign in with `hf auth",
        ),
        ("/resolve/", refused("GatedRepo", 401), "its licence has to be accepted first", "HF_TOKEN"),
        ("/api/", refused("RepoNotFound", 401), "there is no such public model", "Check the spelling"),
        ("/api/", refused("", 401), "does not let this account in (HTTP 401)", "the token may be wrong"),
        ("/resolve/", refused("", 403), "does not let this account in (HTTP 403)", "lack rights"),
        ("/resolve/", refused("EntryNotFound", 404), "a file of the model is gone", "/some/toy"),
        ("/api/", refused("", 429, Retry_After="600"), "limits how often it may be asked", "in 10 minutes"),
        ("/resolve/", refused("", 429, RateLimit='"api";r=0;t=75'), "limits how often it may be asked", "in 75 s"),
        ("/api/", refused("", 429), "limits how often it may be asked", "hf auth login"),
        ("/api/", refused("", 503), "the hub itself has trouble (HTTP 503)", "later"),
        ("/resolve/", refused("", 500), "the hub itself has trouble (HTTP 500)", "later"),
        ("/api/", refused("", 418), "the hub refused (HTTP 418)", "HF_ENDPOINT"),
        ("/api/", PAGE, "what answered is not the model hub", "sign in to the network"),
        ("/resolve/", PAGE, "what answered is not the model hub", "sign in to the network"),
        ("/api/", Answer(200, {}, b"[1]"), "what answered is not the model hub", "browser"),
        ("/resolve/", Answer(200, {}, b"something else"), "is not the 65 bytes that it listed", "proxy"),
        ("/resolve/", Answer(206, {"Content-Range": "bytes 9-64/65"}, b"x" * 56), "is not the 65 bytes", "proxy"),
    ],
)
def test_refusals(
    inside: Hub,
    toy: Hub,
    library: Path,
    where: str,
    answer: Answer,
    reason: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(toy.repos["some/toy"], COMMIT, TOY | {"config.json": b"x" * 65})
    toy.answer = lambda path: answer if where in path and (where == "/api/" or path.endswith("/config.json")) else None
    with pytest.raises(DownloadError) as caught:
        shelf.resolve("some/toy")
    assert caught.value.message.startswith("some/toy cannot be brought from the model hub (some/toy): ")
    assert reason in caught.value.message and hint in caught.value.hint
    assert "Traceback" not in caught.value.message and caught.value.message.count(". ") == 0
    assert not (library / "some--toy").exists()


def test_names_that_the_hub_does_not_know(inside: Hub, toy: Hub) -> None:
    with pytest.raises(DownloadError, match=r"model hub \(no/such\): there is no such public model"):
        shelf.resolve("no/such")
    with pytest.raises(DownloadError, match="it has no branch, tag or commit 'nowhere'") as caught:
        shelf.resolve("some/toy@nowhere")
    assert "leave @nowhere out" in caught.value.hint
    old = {"config.json": b"{}", "pytorch_model.bin": b"x", "tokenizer.json": b"{}"}
    toy.repos["some/old"] = {COMMIT: old}
    with pytest.raises(DownloadError, match="it holds pickled weights only"):
        shelf.resolve("some/old")
    with pytest.raises(DownloadError, match="not a valid model id"):
        shelf.resolve("some/a--b")


def test_what_passes_is_waited_for(inside: Hub, toy: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(hubget._Transfer, "_pause", lambda self, seconds, error: waits.append(seconds))
    monkeypatch.setattr(sources, "RETRY_WAIT", 1.0)
    answers = [refused("", 429, Retry_After="7"), refused("", 503), refused("", 429, RateLimit='"api";r=0;t=9')]
    answers += [refused("", 500)] * 3
    toy.answer = lambda path: answers.pop(0) if answers else None
    assert shelf.resolve("some/toy").is_dir()
    assert waits == [7.0, 2.0, 9.0, 8.0, 16.0, 30.0]


def test_no_connection(hub: Hub, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"the model hub cannot be reached \(.*[Cc]onnection refused"):
        shelf.resolve("some/toy")
    assert left(library) == []
    half(library, 150_000)
    with pytest.raises(DownloadError) as caught:
        shelf.resolve("some/toy")
    assert "0 MB of 0 MB are kept" in caught.value.hint
    assert left(library) == ["some--toy.partial"]


def test_offline_is_said(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set") as caught:
        shelf.resolve("some/toy")
    assert "Unset it" in caught.value.hint


def test_too_little_room_is_said_before_the_first_byte(
    inside: Hub, toy: Hub, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    free = [10**9, 17_000_000, 17_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, free.pop(0)))
    with pytest.raises(DownloadError, match="The disk is full: 17 MB are needed and 17 MB are free"):
        shelf.pull("some/toy")
    assert not any("/resolve/" in path for path in toy.paths())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full here")
def test_the_disk_fills_up_in_the_middle(toy: Hub, library: Path) -> None:
    """A real child process whose file for the weights is a link to a device that is full."""
    part = half(library, 0)
    part.unlink()
    part.symlink_to("/dev/full")
    with pytest.raises(DownloadError, match="The disk is full") as caught:
        shelf.pull("some/toy")
    assert "Free some space" in caught.value.hint
    assert left(library) == ["some--toy.partial"]
    part.unlink()
    assert (shelf.resolve("some/toy") / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EDQUOT, "The disk is full"),
        (errno.EFBIG, r"the library cannot be written: .*File too large"),
        (errno.EACCES, r"the library cannot be written: .*Permission denied"),
    ],
)
def test_other_failures_of_the_disk(
    inside: Hub, toy: Hub, library: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def fail(self: hubget._Transfer, item: Item) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(hubget._Transfer, "_stream", fail)
    with pytest.raises(DownloadError, match=message):
        shelf.pull("some/toy")


def test_a_file_that_is_too_large_for_one_request(
    inside: Hub, toy: Hub, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(DownloadError, match="more than the hub sends in one piece") as caught:
        shelf.pull("some/toy")
    assert "hf download some/toy model.safetensors" in caught.value.hint


def test_four_files_come_at_once(inside: Hub, toy: Hub) -> None:
    """Each of them waits until all four have been asked for."""
    names = [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    toy.repos["some/sharded"] = {COMMIT: {"config.json": b"{}", **{name: name.encode() for name in names}}}
    together = threading.Barrier(4)
    toy.before_piece = lambda path: together.wait(5) if path.endswith(".safetensors") else None
    shelf.pull("some/sharded")
    assert not together.broken
