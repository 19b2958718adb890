"""What repositories that people use really hold, and what is taken of them: state of December 2026, read from public listings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from repositories import BIG, E4B, GB, GEMMA, GGUFS, SAFETENSORS, shards

from outrider.core.formats.shards import INDEX
from outrider.core.library.file_choice import Item, NoChoice, choose, label_of


@pytest.mark.parametrize("repo", SAFETENSORS)
def test_safetensors_by_their_index(repo: str) -> None:
    weights, beside, has_index = SAFETENSORS[repo]
    listed = [*beside, *([INDEX] if has_index else []), *weights, "README.md", ".gitattributes"]
    taken = [
        item.name for item in choose((Item(name, 1) for name in listed), index=weights if has_index else None).items
    ]
    assert {name for name in taken if name.endswith(".safetensors")} == set(weights)
    assert (INDEX in taken) is has_index
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize(
    "repo", [name for name in SAFETENSORS if "FP8" not in name and "MTP" not in name and "NVFP4" not in name]
)
def test_safetensors_by_name_where_there_is_no_index(repo: str) -> None:
    weights, beside, _ = SAFETENSORS[repo]
    listed = [name for name in (*beside, *weights) if "index" not in name]
    taken = {item.name for item in choose(Item(name, 1) for name in listed).items}
    assert {name for name in taken if name.endswith(".safetensors")} == set(weights)


def test_an_index_that_does_not_agree_with_the_listing() -> None:
    def taken(index: Sequence[str], *names: str) -> list[str]:
        return [
            item.name for item in choose((Item(name, 1) for name in ("config.json", INDEX, *names)), index=index).items
        ]

    assert taken(shards(30), "model.safetensors") == [
        "config.json",
        "model.safetensors",
    ]  # of another form of the model
    with pytest.raises(
        NoChoice,
        match=r"are missing: the shard model-00003-of-00030\S*, which model.safetensors.index.json names, and 27 more of its 30",
    ):
        taken(shards(30), *shards(30)[:2])
    with pytest.raises(NoChoice, match=r"the shard \.\./out\.safetensors, which"):
        taken(["../out.safetensors", "model.safetensors"], "model.safetensors")


@pytest.mark.parametrize(
    ("numbers", "total", "missing"),
    [
        ([1], 3, "model-00002-of-00003.* and 1 more of its 3"),
        ([0, 2], 2, "model-00001-of-00002"),
        ([2], 2, "model-00001"),
    ],
)
def test_what_the_numbers_imply(numbers: list[int], total: int, missing: str) -> None:
    names = [f"model-{number:05d}-of-{total:05d}.safetensors" for number in numbers]
    with pytest.raises(NoChoice, match=f"the shard {missing}"):
        choose(Item(name, 1) for name in ("config.json", *names))


def test_an_adapter_is_no_model() -> None:
    with pytest.raises(NoChoice, match="an adapter") as caught:
        choose(Item(name, 1) for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"))
    assert "Merge it" in caught.value.hint


# ------------------------------------------------------------------------------------------------ GGUF

TAKEN = [  # repository, label, path of the first file that is taken
    ("unsloth/Qwen3.5-9B-GGUF", "", "Qwen3.5-9B-Q4_K_M.gguf"),
    ("unsloth/Qwen3.5-9B-GGUF", "q4_k_m", "Qwen3.5-9B-Q4_K_M.gguf"),  # the plain one before UD-Q4_K_M
    ("unsloth/Qwen3.5-9B-GGUF", "Q4_K_XL", "Qwen3.5-9B-UD-Q4_K_XL.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "", "Qwen3.8-27B-UD-Q4_K_M.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "Q4_0", "Qwen3.8-27B-Q4_0.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "Q4_K_M", "Qwen3.8-27B-UD-Q4_K_M.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "Q6_K_L", "Qwen3.8-27B-UD-Q6_K_L.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "UD-Q8_K_L", "Qwen3.8-27B-UD-Q8_K_L.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "Q8_0", "Qwen3.8-27B-Q8_0.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "BF16", "BF16/Qwen3.8-27B-BF16-00001-of-00002.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "mtp-Qwen3.8-27B-Q4_0", "MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
    ("unsloth/Qwen3.8-27B-GGUF", "MTP/mtp-Qwen3.8-27B-Q4_0.gguf", "MTP/mtp-Qwen3.8-27B-Q4_0.gguf"),
    ("unsloth/Qwen3.6-35B-A3B-GGUF", "", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
    ("unsloth/Qwen3.6-35B-A3B-GGUF", "Q4_K_M", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
    ("unsloth/Qwen3.6-35B-A3B-GGUF", "MXFP4", "Qwen3.6-35B-A3B-MXFP4_MOE.gguf"),
    ("unsloth/Qwen3.6-35B-A3B-GGUF", "MXFP4_MOE", "Qwen3.6-35B-A3B-MXFP4_MOE.gguf"),
    *((f"unsloth/gemma-4-26B-A4B-it-GGUF{age}", label, path) for age in ("", ", older") for label, path in (
        ("", f"{GEMMA}-UD-Q4_K_M.gguf"),
        ("Q8_0", f"{GEMMA}-Q8_0.gguf"),
        ("UD-Q4_K_M", f"{GEMMA}-UD-Q4_K_M.gguf"),
        ("BF16", f"BF16/{GEMMA}-BF16-00001-of-00002.gguf"),
        ("bf16/", f"BF16/{GEMMA}-BF16-00001-of-00002.gguf"),
    )),
    ("unsloth/gemma-4-E4B-it-GGUF", "", f"{E4B}-Q4_K_M.gguf"),
    ("unsloth/gemma-4-E4B-it-GGUF", "Q8_0", f"{E4B}-Q8_0.gguf"),
    ("unsloth/gemma-4-E4B-it-GGUF", "BF16", f"{E4B}-BF16.gguf"),
    ("unsloth/gemma-4-E4B-it-GGUF", "Q4_0", f"{E4B}-Q4_0.gguf"),
    ("unsloth/gemma-4-12B-it-qat-GGUF", "", "gemma-4-12B-it-qat-UD-Q4_K_XL.gguf"),
    ("ggml-org/gpt-oss-20b-GGUF", "", "gpt-oss-20b-MXFP4.gguf"),
    ("ggml-org/gpt-oss-20b-GGUF", "mxfp4", "gpt-oss-20b-MXFP4.gguf"),
    ("ggml-org/gpt-oss-20b-GGUF", "eagle3-gpt-oss-20b-Q8_0", "eagle3-gpt-oss-20b-Q8_0.gguf"),
    ("ggml-org/gpt-oss-20b-GGUF, older", "", "gpt-oss-20b-mxfp4.gguf"),
    ("ggml-org/Qwen3.6-27B-GGUF", "", "Qwen3.6-27B-Q4_K_M.gguf"),
    ("ggml-org/Qwen3.6-27B-GGUF", "Q8_0", "Qwen3.6-27B-Q8_0.gguf"),
    ("ggml-org/Qwen3-8B-GGUF", "Q8_0", "Qwen3-8B-Q8_0.gguf"),
    ("ggml-org/gemma-4-E4B-it-GGUF", "Q8_0", f"{E4B}-Q8_0.gguf"),
    ("ggml-org/gemma-4-E4B-it-GGUF", "Q4_0", f"{E4B}-Q4_0.gguf"),
    ("ggml-org/gemma-3-4b-it-GGUF", "F16", "gemma-3-4b-it-f16.gguf"),
    ("unsloth/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-GGUF", "", "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-UD-Q4_K_M.gguf"),
    ("unsloth/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-GGUF", "IQ4_XS", "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-UD-IQ4_XS.gguf"),
    ("unsloth/Nemotron-3-Nano-30B-A3B-GGUF", "", "Nemotron-3-Nano-30B-A3B-Q4_K_M.gguf"),
    ("unsloth/Muse-Glimmer-30B-GGUF", "", "Muse-Glimmer-30B-UD-Q4_K_XL.gguf"),
    ("meta-models/Muse-Glimmer-30B-GGUF", "", "Muse-Glimmer-30B-KQuant-17GB-Q4_K_M.gguf"),
    ("meta-models/Muse-Glimmer-30B-GGUF", "Q4_K_XL", "Muse-Glimmer-30B-KQuant-Dynamic-Q4_K_XL.gguf"),
    ("unsloth/GLM-4.7-Flash-GGUF", "", "GLM-4.7-Flash-UD-Q4_K_XL.gguf"),
    ("unsloth/Qwen3-30B-A3B-GGUF", "", "Qwen3-30B-A3B-Q4_K_M.gguf"),
    ("mistralai/Ministral-3-3B-Instruct-2512-GGUF", "", "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf"),
    ("mistralai/Ministral-3-3B-Instruct-2512-GGUF", "BF16", "Ministral-3-3B-Instruct-2512-BF16.gguf"),
    ("a folder for each label", "", f"UD-Q4_K_XL/{BIG}-UD-Q4_K_XL-00001-of-00004.gguf"),
    ("a folder for each label", "Q2_K_XL", f"UD-Q2_K_XL/{BIG}-UD-Q2_K_XL-00001-of-00003.gguf"),
    ("a folder for each label", f"UD-Q2_K_XL/{BIG}-UD-Q2_K_XL-00002-of-00003.gguf",
     f"UD-Q2_K_XL/{BIG}-UD-Q2_K_XL-00001-of-00003.gguf"),
    ("unsloth/Qwen3.6-27B-MTP-GGUF", "", "Qwen3.6-27B-UD-Q4_K_XL.gguf"),
    ("whole models with their MTP inside", "", "Qwen3.6-27B-MTP-Q4_K_M.gguf"),
    ("bartowski/Qwen_Qwen3-0.6B-GGUF", "", "Qwen_Qwen3-0.6B-Q4_K_M.gguf"),
    ("drafters alone", "", "Qwen3-8B-DFlash-Q4_K_M.gguf"),
    ("a drafter that is called so", "", "model-Q4_K_M.gguf"),
    ("an assistant", "", f"{GEMMA}-Q4_K_M.gguf"),
    ("an assistant", "Q8_0", f"{GEMMA}-Q8_0.gguf"),
    ("mixtures that few know", "", "m-Q4_K_P.gguf"),
    ("GGUF beside a stale index", "", "m-Q4_K_M.gguf"),
    ("lora inside a word", "", "Flora-7B.Q4_K_M.gguf"),
    ("labels that few know", "", "gemma-3-4b-it-qat_q4_0-it.gguf"),
    ("labels that few know", "tq3_4s", "m-TQ3_4S.gguf"),
    ("labels that few know", "PTQ1_0", "m-PTQ1_0.gguf"),
]  # fmt: skip


def items(repo: str) -> list[Item]:
    return [Item(path, size) for path, size in GGUFS[repo].items()]


@pytest.mark.parametrize(("repo", "label", "path"), TAKEN)
def test_a_gguf_by_label_or_by_default(repo: str, label: str, path: str) -> None:
    found = choose(items(repo), label.rstrip("/"))
    assert found.items[0].path == path
    assert len(found.items) == (int(path[-10:-5]) if "-of-" in path else 1)


@pytest.mark.parametrize("repo", GGUFS)
def test_every_quantisation_that_is_offered_can_be_had(repo: str) -> None:
    for label in choose(items(repo)).labels:
        found = choose(items(repo), label)
        assert found.label == label == label_of(found.items[0].path)


@pytest.mark.parametrize(
    ("repo", "label"),
    [
        ("unsloth/gemma-4-E4B-it-GGUF", "F16"),  # only a drafter has it
        ("ggml-org/Qwen3.6-27B-GGUF", "Q4_0"),
        ("ggml-org/gpt-oss-20b-GGUF", "Q8_0"),
        ("unsloth/gemma-4-26B-A4B-it-GGUF", "MTP"),
        ("unsloth/Qwen3.5-9B-GGUF", "Q4_K"),
    ],
)
def test_a_label_that_no_model_has_names_one_that_can_be_had(repo: str, label: str) -> None:
    with pytest.raises(NoChoice, match=f"it has no {label}; there is ") as caught:
        choose(items(repo), label)
    advised = caught.value.hint.partition("NAME:")[2]
    assert choose(items(repo), advised).items == choose(items(repo)).items
    assert "mtp" not in str(caught.value) and "eagle" not in str(caught.value)


def test_what_goes_beside_a_model_is_none() -> None:
    with pytest.raises(NoChoice, match=r"mmproj-BF16\.gguf is a projector") as caught:
        choose(items("unsloth/Qwen3.5-9B-GGUF"), "mmproj-BF16")
    assert "the model that it goes with" in caught.value.hint
    with pytest.raises(NoChoice, match=r"all that it holds is adapter \(LoRA\) and importance matrix"):
        choose([Item("my-lora-f16.gguf", 1), Item("imatrix.gguf", 1)])


def test_two_files_of_one_name_are_told_apart_by_their_folders() -> None:
    twice = [Item("a/m-Q4_0.gguf", GB), Item("b/m-Q4_0.gguf", GB)]
    with pytest.raises(NoChoice, match=r"several of its files fit: a/m-Q4_0.gguf \(1.0 GB\), b/m-Q4_0.gguf") as caught:
        choose(twice)
    advised = caught.value.hint.partition("NAME:")[2]
    assert choose(twice, advised).items[0].path == "a/m-Q4_0.gguf"


@pytest.mark.parametrize(
    "path", ["..gguf", ".gguf", "..", "a/../m.gguf", "/m.gguf", "a\\m.gguf", "..\\e.safetensors", "a\n.gguf"]
)
def test_names_that_are_no_files_below_a_folder_are_left_out(path: str) -> None:
    assert [item.path for item in choose([Item(path, 1), Item("m-Q4_0.gguf", 1)]).items] == ["m-Q4_0.gguf"]
    with pytest.raises(NoChoice, match="holds neither"):
        choose([Item("config.json", 1), Item(path, 1)])
