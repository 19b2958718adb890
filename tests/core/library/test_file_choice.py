"""Which files of a repository make up its model, and what a hub id with its additions means."""

from __future__ import annotations

import pytest

from outrider.core.library import hubname
from outrider.core.library.file_choice import Choice, Item, NoChoice, choose, label_of, rank
from outrider.core.library.hubname import HubName

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def taken(*paths: str, label: str = "") -> list[str]:
    """Paths of the files that are chosen."""
    return [item.path for item in chosen(*paths, label=label).items]


def chosen(*paths: str, label: str = "") -> Choice:
    return choose((Item(path, 1_500_000_000) for path in paths), label)


def test_only_what_a_model_needs() -> None:
    needed = ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"]
    beside = [
        "README.md",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/model.safetensors",
        "flax.msgpack",
    ]
    beside += ["onnx/model.onnx", "tokenizer.model", "vocab.json", "merges.txt", "a.pth", "adapter_model.safetensors"]
    assert taken(*beside, *needed, *SHARDS, INDEX) == [*needed, INDEX, *SHARDS]
    assert taken(*needed, "model.safetensors", *beside) == [*needed, "model.safetensors"]


def test_shards_or_one_file() -> None:
    assert taken("config.json", "model.safetensors", *SHARDS) == ["config.json", "model.safetensors"]
    assert taken("config.json", "model.safetensors", *SHARDS, INDEX) == ["config.json", INDEX, *SHARDS]
    assert taken("config.json", "odd-4bit-128g.safetensors") == ["config.json", "odd-4bit-128g.safetensors"]
    with pytest.raises(NoChoice, match="some of its weight files are missing"):
        chosen("config.json", SHARDS[0], INDEX)


@pytest.mark.parametrize(
    ("there", "tokenizer"),
    [
        (["tokenizer.model", "tekken.json"], ["tekken.json"]),
        (["tokenizer.model", "merges.txt"], ["tokenizer.model"]),
        (["vocab.json", "merges.txt"], ["vocab.json", "merges.txt"]),
        (["vocab.json"], []),
    ],
)
def test_the_best_tokenizer_where_there_is_no_tokenizer_json(there: list[str], tokenizer: list[str]) -> None:
    assert taken("config.json", "model.safetensors", *there) == ["config.json", *tokenizer, "model.safetensors"]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("tiny-chat-v1.0.Q8_0.gguf", "Q8_0"),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Model.i1-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("BF16/Model-00001-of-00002.gguf", "BF16"),
        ("QwQ-32B.gguf", ""),
        ("phi-4k-instruct-q4.gguf", "Q4"),
        ("Model-f16.gguf", "F16"),
    ],
)
def test_the_label_of_a_file(path: str, label: str) -> None:
    assert label_of(path) == label


def test_a_quantisation_is_chosen_by_its_label_or_by_preference() -> None:
    files = [f"m-{label}.gguf" for label in ("BF16", "Q8_0", "Q5_K_M", "Q4_0", "Q4_K_M", "Q2_K")]
    assert taken(*files) == ["m-Q4_K_M.gguf"]
    assert taken(*files[:4]) == ["m-Q4_0.gguf"]
    assert taken(*files[:2]) == ["m-Q8_0.gguf"]
    assert taken(*files, label="q2_k") == ["m-Q2_K.gguf"]
    assert taken(*files, label="m-bf16") == ["m-BF16.gguf"]
    found = chosen(*files)
    assert found.label == "Q4_K_M" and found.labels == ("Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0", "BF16", "Q2_K")
    assert rank("Q4_K_M") < rank("Q4_0") < rank("Q5_K_M") < rank("Q8_0") < rank("F16") < rank("Q2_K")


def test_a_split_set_is_one_and_lies_flat() -> None:
    parts = [f"Q8_0/m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    found = chosen("m-Q4_K_M.gguf", *parts, "mmproj-m-Q8_0.gguf", label="Q8_0")
    assert [item.path for item in found.items] == parts
    assert [item.name for item in found.items] == [path.partition("/")[2] for path in parts]
    assert taken(*parts) == parts
    assert taken(*parts, "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    with pytest.raises(NoChoice):
        chosen(parts[0])


def test_a_label_beside_safetensors() -> None:
    both = ["config.json", "model.safetensors", "m-Q4_0.gguf"]
    assert taken(*both) == both[:2]
    assert taken(*both, label="Q4_0") == both[2:]
    with pytest.raises(NoChoice, match="it has no GGUF files, so there is no Q4_0"):
        chosen(*both[:2], label="Q4_0")


@pytest.mark.parametrize("pickle", ["medusa_lm_head.pt", "hydra_lm_head.pt", "pytorch_model.bin"])
def test_the_pickle_of_a_drafter_is_taken_where_there_is_nothing_safer(pickle: str) -> None:
    assert taken("config.json", pickle, "README.md") == ["config.json", pickle]
    safe = ["config.json", "model.safetensors"]
    assert taken(*safe, pickle) == safe
    with pytest.raises(NoChoice, match="pickled weights only"):
        chosen(pickle)
    with pytest.raises(NoChoice, match="pickled weights only"):
        chosen("config.json", f"sub/{pickle}")


def test_heads_may_lie_beside_a_tokenizer() -> None:
    assert taken("config.json", "medusa_lm_head.pt", "tokenizer.json") == ["config.json", "medusa_lm_head.pt"]


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(NoChoice, match=r"it has no Q9_K; there is Q4_0 \(1.5 GB\), Q8_0 \(1.5 GB\)") as caught:
        chosen("m-Q8_0.gguf", "m-Q4_0.gguf", label="Q9_K")
    assert caught.value.hint.endswith("NAME:Q4_0")
    with pytest.raises(NoChoice, match=r"several of its files fit: a\.gguf .*, b\.gguf") as caught:
        chosen("a.gguf", "b.gguf")
    assert caught.value.hint.endswith("NAME:a")
    assert taken("a.gguf", "b.gguf", label="b") == ["b.gguf"]
    with pytest.raises(NoChoice, match="pickled weights only"):
        chosen("config.json", "pytorch_model.bin", "tokenizer.json")
    with pytest.raises(NoChoice, match="neither safetensors"):
        chosen("README.md", "model.safetensors", "../m.gguf")


@pytest.mark.parametrize(
    ("name", "meant", "folder"),
    [
        ("some/toy", HubName("some/toy"), "some--toy"),
        ("some/toy@v1.0", HubName("some/toy", revision="v1.0"), "some--toy@v1.0"),
        ("some/toy:q4_k_m", HubName("some/toy", "Q4_K_M"), "some--toy+Q4_K_M"),
        (
            "some/toy@refs/pr/3:ud-Q4_K_XL",
            HubName("some/toy", "UD-Q4_K_XL", "refs/pr/3"),
            "some--toy+UD-Q4_K_XL@refs%2Fpr%2F3",
        ),
        ("some/toy:b@main", HubName("some/toy", "b", "main"), "some--toy+b@main"),
    ],
)
def test_hub_names(name: str, meant: HubName, folder: str) -> None:
    assert hubname.parse(name) == meant
    assert meant.folder == folder
    assert hubname.from_folder(folder) == meant
    assert hubname.parse(meant.name) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("hf.co/some/Toy-GGUF:q4_k_m", HubName("some/Toy-GGUF", "Q4_K_M")),
        ("HF.co/some/toy", HubName("some/toy")),
        ("hf.co/some/toy:latest", HubName("some/toy")),
        ("huggingface.co/some/toy/", HubName("some/toy")),
        ("some/toy/", HubName("some/toy")),
        ("  some/toy\n", HubName("some/toy")),
        ("hf://some/toy/m-Q4_0.gguf", HubName("some/toy", "m-Q4_0")),
        ("http://www.huggingface.co/some/toy", HubName("some/toy")),
        ("https://huggingface.co/some/toy?library=transformers#usage", HubName("some/toy")),
        ("https://huggingface.co/some/toy.git", HubName("some/toy")),
        ("https://huggingface.co/some/toy/tree/main", HubName("some/toy")),
        ("https://huggingface.co/some/toy/tree/v1.0/", HubName("some/toy", revision="v1.0")),
        ("https://huggingface.co/some/toy/tree/refs%2Fpr%2F3", HubName("some/toy", revision="refs/pr/3")),
        ("https://huggingface.co/some/toy/resolve/refs/pr/3/m.gguf", HubName("some/toy", "m", "refs/pr/3")),
        ("https://huggingface.co/some/toy/commit/0123456789abcdef", HubName("some/toy", revision="0123456789abcdef")),
        ("https://huggingface.co/some/toy/discussions/3", HubName("some/toy")),
        ("https://huggingface.co/some/toy/blob/main/config.json", HubName("some/toy")),
        ("https://huggingface.co/some/toy/blob/main/model-00001-of-00002.safetensors", HubName("some/toy")),
        ("https://huggingface.co/some/toy/tree/main/UD-Q4_K_XL", HubName("some/toy", "UD-Q4_K_XL")),
        ("https://huggingface.co/some/toy/tree/main/original", HubName("some/toy")),
        ("https://huggingface.co/some/toy/blob/main/m-Q4_0.gguf", HubName("some/toy", "m-Q4_0")),
        ("https://huggingface.co/some/toy/resolve/v1/m-Q4_0.gguf?download=true", HubName("some/toy", "m-Q4_0", "v1")),
        ("https://huggingface.co/some/toy/blob/main/m-Q4_0-00001-of-00002.gguf", HubName("some/toy", "m-Q4_0")),
        ("https://huggingface.co/some/toy/blob/main/MTP/mtp-m.gguf", HubName("some/toy", "MTP/mtp-m.gguf")),
        ("https://huggingface.co/some/toy?show_file_info=m-Q4_0.gguf", HubName("some/toy", "m-Q4_0")),
        ("https://mirror.example/some/toy/tree/main", HubName("some/toy")),
        ("some/toy:MTP/mtp-toy-Q4_0", HubName("some/toy", "MTP/mtp-toy-Q4_0")),
        ("some/toy:MTP/mtp-toy.gguf@v1", HubName("some/toy", "MTP/mtp-toy.gguf", "v1")),
    ],
)
def test_addresses_of_the_hub_are_hub_names(name: str, meant: HubName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert hubname.parse(name) == meant
    assert hubname.from_folder(meant.folder) == meant == hubname.parse(meant.name)
    assert "/" not in meant.folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("https://example.org/some/toy", "outside the model hub"),
        ("ftp://huggingface.co/some/toy", "outside the model hub"),
        ("https://huggingface.co.example.org/some/toy", "outside the model hub"),
        ("https://huggingface.co@example.org/some/toy", "outside the model hub"),
        ("https://[/some/toy", "outside the model hub"),
        ("https://huggingface.co/datasets/some/toy", "not the page of a model"),
        ("https://huggingface.co/some", "not the page of a model"),
        ("huggingface.co/spaces/some/toy", "not the page of a model"),
        ("a/b/c", ""),
    ],
)
def test_other_addresses_are_refused_in_words(name: str, reason: str) -> None:
    assert hubname.parse(name) is None
    assert reason in hubname.no_model(name) and bool(reason) == bool(hubname.no_model(name))


@pytest.mark.parametrize(
    "name",
    ["toy", "a/b/c", "a/b:", "a/b@", "a/b@x@y", "a/b:x:y", "a/b@../x", "a/b:c/d", "ollama:a/b", "a/b @x", "a/b.gguf"],
)
def test_what_is_no_hub_name(name: str) -> None:
    assert hubname.parse(name) is None


def test_folders_of_other_origin_are_no_hub_names() -> None:
    for folder in ("mine", "mine.gguf", "a--b--c+", "some--toy@../x"):
        assert hubname.from_folder(folder) is None
