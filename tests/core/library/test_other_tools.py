"""Models of other tools: found by name, used where they lie, and never touched."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path

import pytest
import torch
from hubserver import COMMIT, OLDER, Hub
from safetensors.torch import save

from outrider.core.base.errors import BrokenFileError, DownloadError, ModelError
from outrider.core.library import catalogue, other_tools
from outrider.core.library import library as shelf
from outrider.core.library.catalogue import Entry, Source

CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1}
SMALL = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}"}
SOUND = save({"model.norm.weight": torch.ones(4)})
WHOLE = SMALL | {"model.safetensors": SOUND, "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'}
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


@pytest.fixture
def person(library: Path, tmp_path: Path) -> Path:
    """The home of a person without any model."""
    return tmp_path / "person"


def cached(top: Path, repo: str, files: dict[str, bytes], commit: str = COMMIT, branch: str = "main") -> Path:
    """A snapshot as the hub's client keeps it: links to blobs, a branch that names the commit."""
    folder = top / ("models--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / commit
    for i, (name, data) in enumerate(files.items()):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        blob = folder / "blobs" / f"{commit[:4]}{i}"
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(data)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    if branch:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / branch).write_text(commit)
    return snapshot


def put(path: Path, data: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names() -> list[str]:
    return [found.name for found in other_tools.models()]


def test_the_hub_clients_cache(person: Path) -> None:
    top = person / ".cache" / "huggingface" / "hub"
    whole = cached(top, "some/toy", SMALL | {name: b"weights" for name in SHARDS})
    cached(top, "some/single", SMALL | {"model.safetensors": b"w"})
    cached(top, "some/cut", SMALL | {SHARDS[0]: b"weights"})
    cached(top, "some/textless", {"config.json": b"{}", "model.safetensors": b"w"})
    cached(top, "some/unnamed", SMALL | {"model.safetensors": b"w"}, branch="")
    dangling = cached(top, "some/dangling", SMALL | {"model.safetensors": b"w"})
    (dangling / "model.safetensors").resolve().unlink()
    (top / "datasets--some--toy").mkdir()
    (top / ".locks").mkdir()
    assert names() == ["some/single", "some/toy"]
    found = other_tools.find("some/toy")
    assert found is not None
    assert (found.path, found.nbytes, found.format, found.commit) == (whole, 14, "safetensors", COMMIT)
    assert shelf.resolve("some/toy") == whole


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_published_drafter_in_the_cache_needs_no_tokenizer(person: Path, weights: str) -> None:
    top = person / ".cache" / "huggingface" / "hub"
    for repo in ("AngelSlim/Qwen3-8B_eagle3", "some/unpublished"):
        cached(top, repo, {"config.json": b"{}", weights: b"w"})
    assert shelf.resolve("AngelSlim/Qwen3-8B_eagle3", download=False).parent.parent.parent == top
    assert other_tools.find("some/unpublished") is None
    assert names() == []


def test_revisions_in_the_cache(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = person / "elsewhere"
    monkeypatch.setenv("HF_HOME", str(person / "no"))
    monkeypatch.setenv("HF_HUB_CACHE", str(top))
    newest = cached(top, "some/toy", SMALL | {"model.safetensors": b"w"})
    older = cached(top, "some/toy", SMALL | {"model.safetensors": b"o"}, OLDER, "v1")
    assert shelf.resolve("some/toy") == shelf.resolve("some/toy@main") == shelf.resolve(f"some/toy@{COMMIT}") == newest
    assert shelf.resolve("some/toy@v1") == shelf.resolve(f"some/toy@{OLDER[:7]}") == older
    for name in ("some/toy@v2", "some/toy:Q8_0", "some/other", "some/toy@" + "f" * 40):
        assert other_tools.find(name) is None
    monkeypatch.delenv("HF_HUB_CACHE")
    assert other_tools.find("some/toy") is None
    (person / "no").mkdir(parents=True)
    top.rename(person / "no" / "hub")
    assert other_tools.find("some/toy") is not None


def test_quantisations_in_the_cache(person: Path) -> None:
    top = person / ".cache" / "huggingface" / "hub"
    parts = [f"BF16/m-BF16-0000{i}-of-00002.gguf" for i in (1, 2)]
    snapshot = cached(
        top, "some/packed", {name: b"GGUF" for name in ["m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj.gguf", *parts]}
    )
    assert sorted(names()) == ["some/packed:BF16", "some/packed:Q4_0", "some/packed:Q8_0"]
    assert shelf.resolve("some/packed") == snapshot / "m-Q4_0.gguf"
    assert shelf.resolve("some/packed:q8_0") == snapshot / "m-Q8_0.gguf"
    found = other_tools.find("some/packed:bf16")
    assert found is not None and (found.path, found.nbytes) == (snapshot / parts[0], 8)
    assert other_tools.find("some/packed:Q5_0") is None


def test_lm_studio(person: Path) -> None:
    models = person / ".lmstudio" / "models"
    first = put(models / "some" / "M-GGUF" / "M-Q4_K_M.gguf")
    put(models / "some" / "M-GGUF" / "mmproj-M-F16.gguf")
    put(models / "one" / "N-GGUF" / "N-Q8_0.gguf")
    put(models / "two" / "N-GGUF" / "N-Q8_0.gguf")
    put(person / ".cache" / "lm-studio" / "models" / "old" / "O" / "O-Q4_0.gguf")
    assert names() == [
        "lmstudio:one/N-GGUF/N-Q8_0",
        "lmstudio:M-Q4_K_M",
        "lmstudio:two/N-GGUF/N-Q8_0",
        "lmstudio:O-Q4_0",
    ]
    assert shelf.resolve("lmstudio:M-Q4_K_M") == shelf.resolve("lmstudio:M-Q4_K_M.gguf") == first
    assert shelf.resolve("lmstudio:two/N-GGUF/N-Q8_0") == models / "two" / "N-GGUF" / "N-Q8_0.gguf"


def test_drafters_of_other_tools_are_found_by_name_and_not_listed(
    person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = person / ".lmstudio" / "models" / "some" / "M-GGUF"
    for name in ("M-Q4_0.gguf", "mtp-M-Q4_0.gguf", "mmproj-M.gguf"):
        put(folder / name)
    assert names() == ["lmstudio:M-Q4_0"]
    assert shelf.resolve("lmstudio:mtp-M-Q4_0") == folder / "mtp-M-Q4_0.gguf"
    assert other_tools.find("lmstudio:mmproj-M") is None


def manifest(top: Path, place: str, digest: str, media: str = "application/vnd.ollama.image.model") -> None:
    """A manifest of ollama."""
    layers = [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3}]
    layers.append({"mediaType": media, "digest": digest, "size": 4})
    put(top / "manifests" / place, json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}).encode())


def test_ollama(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = person / ".ollama" / "models"
    monkeypatch.setenv("OLLAMA_MODELS", str(top))
    blobs = [put(top / "blobs" / f"sha256-{letter * 64}") for letter in "ab"]
    manifest(top, "registry.example/library/tiny/latest", "sha256:" + "a" * 64)
    manifest(top, "registry.example/library/tiny/3b", "sha256:" + "b" * 64)
    manifest(top, "registry.example/person/own/1b", "sha256:" + "a" * 64)
    manifest(top, "hub.example/some/M-GGUF/Q4_K_M", "sha256:" + "b" * 64)
    manifest(top, "registry.example/library/gone/latest", "sha256:" + "c" * 64)
    manifest(top, "registry.example/library/evil/latest", "sha256:../../" + "a" * 64)
    manifest(top, "registry.example/library/safetensors/latest", "sha256:" + "a" * 64, "application/else")
    put(top / "manifests" / "registry.example" / "library" / "broken" / "latest", b"no json")
    assert names() == [
        "ollama:hub.example/some/M-GGUF:Q4_K_M",
        "ollama:person/own:1b",
        "ollama:tiny:3b",
        "ollama:tiny:latest",
    ]
    assert [found.label for found in other_tools.models()] == ["Q4_K_M", "", "", ""]
    assert shelf.resolve("ollama:tiny") == shelf.resolve("ollama:tiny:latest") == blobs[0]
    assert shelf.resolve("ollama:tiny:3b") == blobs[1]
    with pytest.raises(ModelError, match="There is no model 'ollama:tiny:7b'") as caught:
        shelf.resolve("ollama:tiny:7b")
    assert "ollama:tiny:3b" in caught.value.hint


def test_llama_cpp(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(person / "llama"))
    path = put(person / "llama" / "some_M-GGUF_M-Q4_0.gguf")
    put(person / "llama" / "N-Q4_0-00001-of-00002.gguf")
    put(person / "llama" / "M.gguf.downloadInProgress")
    assert names() == ["llama.cpp:some_M-GGUF_M-Q4_0"]
    assert shelf.resolve("llama.cpp:some_M-GGUF_M-Q4_0") == path


def test_they_are_listed_shown_pulled_and_refused(
    tiny, person: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(person))
    blob = put(person / "blobs" / f"sha256-{'a' * 64}", tiny.write().read_bytes())
    manifest(person, "registry.example/library/tiny/latest", "sha256:" + "a" * 64)
    listed = {row.name: row for row in shelf.rows()}["ollama:tiny:latest"]
    assert (listed.path, listed.source, listed.nbytes) == (str(blob), "ollama", blob.stat().st_size)
    shown = shelf.row("ollama:tiny")
    assert (shown.source, shown.family, shown.detail["layers"]) == ("ollama", "llama", 2)
    pulled = shelf.pull("ollama:tiny")
    assert pulled.path == str(blob) and "ollama" in pulled.note
    before = sorted(person.rglob("*"))
    with pytest.raises(ModelError, match="lies with ollama and not in the library") as caught:
        shelf.remove("ollama:tiny")
    assert "ollama rm" in caught.value.hint
    assert sorted(person.rglob("*")) == before
    assert not library.exists()


def test_a_cached_model_needs_no_network(inside: Hub, person: Path) -> None:
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "some/toy", WHOLE)
    inside.repos["some/toy"] = {COMMIT: {}}
    assert shelf.resolve("some/toy") == snapshot
    assert shelf.pull("some/toy").source == "Hugging Face cache"
    assert not inside.asked


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("model.safetensors", b"\xff" * 80),  # a header that makes no sense
        ("model.safetensors", SOUND[:-1]),  # cut off
        ("model.safetensors", b"<!doctype html><title>Sign in</title>"),
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_damaged_copy_in_the_cache_is_named_and_the_library_gets_a_sound_one(
    inside: Hub, person: Path, library: Path, file: str, data: bytes
) -> None:
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "some/toy", WHOLE | {file: data})
    told: list[str] = []
    with pytest.raises(DownloadError):  # the hub does not have it
        shelf.pull("some/toy")
    inside.repos["some/toy"] = {COMMIT: WHOLE}
    row = shelf.pull("some/toy", lambda phase, done, total, note: told.append(note) if phase == "note" else None)
    assert (row.source, row.path, row.problem) == ("library", str(library / "some--toy"), "")
    assert any("Hugging Face cache cannot be used" in text and str(snapshot) in text for text in told)
    assert shelf.resolve("some/toy") == library / "some--toy"  # and no longer the damaged one
    assert (snapshot / file).read_bytes() == data


def test_a_damaged_copy_of_another_tool_is_refused(tiny, person: Path) -> None:
    put(person / ".lmstudio" / "models" / "some" / "M-GGUF" / "M-Q4_0.gguf", tiny.write().read_bytes()[:-9])
    with pytest.raises(BrokenFileError, match=r"The copy of lmstudio:M-Q4_0 in LM Studio cannot be used: ") as caught:
        shelf.pull("lmstudio:M-Q4_0")
    assert caught.value.hint == "Get it again with LM Studio."


ODD = [f"model.safetensors-0000{i}-of-00002.safetensors" for i in (1, 2)]


def indexed(*names: str) -> dict[str, bytes]:
    """The files and their index."""
    index = json.dumps({"metadata": {}, "weight_map": {f"tensor.{name}": name for name in names}}).encode()
    return {"model.safetensors.index.json": index, **dict.fromkeys(names, b"weights")}


def test_shards_in_the_cache_are_those_that_the_index_names(person: Path) -> None:
    top = person / ".cache" / "huggingface" / "hub"
    cached(top, "some/odd", SMALL | indexed(*ODD))
    cached(top, "some/fp8", SMALL | indexed("layers-0.safetensors", "outside.safetensors", "mtp.safetensors"))
    cached(top, "some/unindexed", SMALL | {name: b"weights" for name in ODD})
    both = indexed("model.safetensors", "model_mtp.safetensors")
    cached(top, "some/both", SMALL | both)
    both.pop("model_mtp.safetensors")
    cached(top, "some/lacking", SMALL | both)
    cached(top, "some/garbled", SMALL | {"model.safetensors": b"w", "model.safetensors.index.json": b"{"})
    assert sorted(names()) == ["some/both", "some/fp8", "some/odd", "some/unindexed"]
    sizes = {found.name: found.nbytes for found in other_tools.models()}
    assert sizes == {"some/both": 14, "some/fp8": 21, "some/odd": 14, "some/unindexed": 14}


def test_capitals_of_a_name_do_not_matter(person: Path) -> None:
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "Some/Toy", SMALL | {"model.safetensors": b"w"})
    assert shelf.resolve("some/toy") == snapshot == shelf.resolve("https://huggingface.co/SOME/toy")
    assert other_tools.find("some/toy:Q4_0") is None


def test_headers_in_the_cache_tell_a_drafter_from_a_model(tiny, person: Path) -> None:
    def gguf(**metadata: str) -> bytes:
        tiny.metadata = {"general.architecture": "llama", "general.type": None} | tiny.metadata  # as converters begin
        return tiny.write(**metadata).read_bytes()

    files = {
        "flora-lora-Q4_0.gguf": gguf(general__type="model"),  # whatever its name says
        "small-Q8_0.gguf": gguf(general__architecture="eagle3"),
        "extra-Q8_0.gguf": gguf(general__type="adapter"),
        "MTP/flora-Q8_0-MTP.gguf": gguf(),
    }
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "some/flora", files)
    assert names() == ["some/flora:Q4_0"]
    assert shelf.resolve("some/flora") == snapshot / "flora-lora-Q4_0.gguf"
    assert shelf.resolve("some/flora:small-Q8_0") == snapshot / "small-Q8_0.gguf"
    assert other_tools.find("some/flora:Q8_0") is None


def test_labels_in_the_cache_match_as_on_the_hub(person: Path) -> None:
    files = {f"m-{label}.gguf": b"GGUF" for label in ("UD-Q4_K_XL", "UD-Q4_K_M", "Q8_0", "MXFP4_MOE")}
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "some/packed", files)
    for asked, label in (
        ("", "UD-Q4_K_M"),
        (":q4_k_m", "UD-Q4_K_M"),
        (":Q4_K_XL", "UD-Q4_K_XL"),
        (":MXFP4", "MXFP4_MOE"),
    ):
        assert shelf.resolve(f"some/packed{asked}") == snapshot / f"m-{label}.gguf"


def test_a_catalogue_model_may_lie_in_the_cache(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("toy", "some--toy", size=99, sources=(Source("hub", repo="some/toy"),))
    monkeypatch.setattr(catalogue, "entries", lambda: (entry,))
    snapshot = cached(person / ".cache" / "huggingface" / "hub", "some/toy", SMALL | {"model.safetensors": b"w"})
    assert shelf.resolve("toy") == snapshot
    assert [(row.name, row.source, row.nbytes) for row in shelf.rows()] == [("toy", "Hugging Face cache", 1)]


def test_nothing_but_manifests_is_read(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(person / ".cache" / "huggingface" / "hub", "some/toy", SMALL | {"model.safetensors": b"w"})
    put(person / ".lmstudio" / "models" / "some" / "M" / "M-Q4_0.gguf")
    real = builtins.open
    opened: list[str] = []

    def watch(path, *rest, **more):
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(builtins, "open", watch)
    monkeypatch.setattr("io.open", watch)
    assert len(other_tools.models()) == 2
    assert [Path(path).name for path in opened] == ["main"]


def test_folders_that_cannot_be_read_are_left_out(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(person / ".lmstudio", b"a file where the folder should be")
    monkeypatch.setenv("HF_HUB_CACHE", str(person / ".lmstudio"))
    monkeypatch.setenv("LLAMA_CACHE", "")
    assert names() == []
