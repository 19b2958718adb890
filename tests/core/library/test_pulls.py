"""Whole pulls from a hub on this machine, with the file names of repositories that people use: what comes, whether it runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from hubserver import COMMIT, Hub, refused
from repositories import GGUFS, MTP_NOW, SAFETENSORS
from safetensors.torch import save
from torch import Tensor
from toys import tokenizer_json

from outrider.core.base.errors import DownloadError, ModelError
from outrider.core.base.protocol import ModelRow
from outrider.core.formats.shards import INDEX
from outrider.core.library import hubget, model_rows, sources
from outrider.core.library import library as shelf

WIDTH, LAYERS, MIDDLE = 32, 8, 48
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": MIDDLE,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 300, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
TEXT = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": tokenizer_json().encode(),
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}).encode(),
}


def tensors() -> dict[str, Tensor]:
    made = {name: torch.zeros(300, WIDTH) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    made["model.norm.weight"] = torch.ones(WIDTH)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        made |= {f"{at}self_attn.{x}_proj.weight": torch.zeros(WIDTH, WIDTH) for x in "qkvo"}
        made |= {f"{at}mlp.{x}_proj.weight": torch.zeros(MIDDLE, WIDTH) for x in ("gate", "up")}
        made |= {f"{at}{x}_layernorm.weight": torch.ones(WIDTH) for x in ("input", "post_attention")}
        made[f"{at}mlp.down_proj.weight"] = torch.zeros(WIDTH, MIDDLE)
    return made


def split(names: Sequence[str]) -> dict[str, bytes]:
    """The model's tensors spread over files, and the index that names them."""
    weights = tensors()
    parts = {name: dict(list(weights.items())[i :: len(names)]) for i, name in enumerate(names)}
    index = {"metadata": {}, "weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    return {INDEX: json.dumps(index).encode(), **{name: save(part) for name, part in parts.items()}}


def repository(weights: Sequence[str], beside: Iterable[str], indexed: bool) -> dict[str, bytes]:
    files = {name: b"{}" if name.endswith(".json") else b"not wanted" for name in beside} | split(weights) | TEXT
    return files if indexed else {name: data for name, data in files.items() if name != INDEX}


def pull(name: str) -> tuple[ModelRow, list[str]]:
    """The row, and what was told meanwhile."""
    told: list[str] = []
    row = model_rows.pull(name, lambda phase, done, total, note: told.append(note) if phase == "note" else None)
    return row, told


@pytest.mark.parametrize(
    "repo",
    [
        "Qwen/Qwen3.5-0.8B",
        "Qwen/Qwen3.5-4B",
        "openai/gpt-oss-20b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "Qwen/Qwen3.8-27B-FP8",
        "unsloth/Qwen3.8-27B-NVFP4",
        "a quantised copy with its MTP layer apart",
        "Mistral in both forms, of as many files",
        "a variant beside the model",
    ],
)
def test_a_model_of_many_files_comes_whole_and_can_be_run(inside: Hub, library: Path, repo: str) -> None:
    weights, beside, indexed = SAFETENSORS[repo]
    inside.repos["some/model"] = {COMMIT: repository(weights, beside, indexed)}
    row, told = pull("some/model")
    assert (row.problem, row.unsupported, row.detail) == ("", "", {})
    assert {file.name for file in (library / "some--model").glob("*.safetensors")} == set(weights)
    assert (
        sum(text.startswith("some/model: ") and "MB to download; " in text and "are free in" in text for text in told)
        == 1
    )
    shown = model_rows.row("some/model", model_rows.ModelChoice(device="cpu"))
    assert shown.plan is not None and shown.detail["tensors"] == len(tensors())


@pytest.mark.parametrize(
    ("repo", "label", "path"),
    [
        ("unsloth/Qwen3.8-27B-GGUF", "", "Qwen3.8-27B-UD-Q4_K_M.gguf"),
        ("unsloth/Qwen3.8-27B-GGUF", ":q4_0", "Qwen3.8-27B-Q4_0.gguf"),
        ("unsloth/Qwen3.8-27B-GGUF", ":MTP/mtp-Qwen3.8-27B-Q4_0.gguf", "mtp-Qwen3.8-27B-Q4_0.gguf"),
        ("unsloth/gemma-4-26B-A4B-it-GGUF", "", "gemma-4-26B-A4B-it-UD-Q4_K_M.gguf"),
        ("unsloth/gemma-4-26B-A4B-it-GGUF, older", ":Q8_0", "gemma-4-26B-A4B-it-Q8_0.gguf"),
        ("unsloth/gemma-4-12B-it-qat-GGUF", "", "gemma-4-12B-it-qat-UD-Q4_K_XL.gguf"),
        ("ggml-org/gpt-oss-20b-GGUF", "", "gpt-oss-20b-MXFP4.gguf"),
    ],
)
def test_the_gguf_that_is_meant_comes(inside: Hub, tiny, library: Path, repo: str, label: str, path: str) -> None:
    data: bytes = tiny.write().read_bytes()
    inside.repos["some/packed"] = {COMMIT: dict.fromkeys(GGUFS[repo], data)}
    row, _ = pull(f"hf.co/some/packed{label}")
    assert row.path is not None and [file.name for file in Path(row.path).iterdir()] == [path]
    assert not row.problem
    asked = len(inside.asked)
    assert shelf.resolve(f"SOME/packed{label}") == Path(row.path)
    if not label:
        assert shelf.resolve(f"some/packed:{row.quantisation.removeprefix('UD-')}") == Path(
            row.path
        )  # what that is, too
    assert len(inside.asked) == asked


def test_a_label_that_is_here_in_part_only_is_asked_for(inside: Hub, tiny, library: Path) -> None:
    data: bytes = tiny.write().read_bytes()
    inside.repos["some/packed"] = {COMMIT: {f"m-{label}.gguf": data for label in ("UD-Q4_K_M", "Q4_K_M", "Q8_0")}}
    first, _ = pull("some/packed:UD-Q4_K_M")
    second, _ = pull("some/packed:Q4_K_M")  # the plain one is meant, and is there
    assert first.path != second.path and second.quantisation == "Q4_K_M"


def test_a_drafter_that_was_pulled_is_not_taken_for_the_model(inside: Hub, tiny, library: Path) -> None:
    data: bytes = tiny.write().read_bytes()
    inside.repos["some/packed"] = {COMMIT: dict.fromkeys(("MTP/mtp-m-Q4_0.gguf", "m-Q4_0.gguf", "m-Q8_0.gguf"), data)}
    drafter, _ = pull("some/packed:mtp-m-Q4_0")
    assert drafter.path != pull("some/packed:Q4_0")[0].path
    shelf.remove("some/packed:Q4_0")
    model, _ = pull("some/packed")
    assert [file.name for file in Path(str(model.path)).iterdir()] == ["m-Q4_0.gguf"]
    assert shelf.resolve("some/packed:mtp-m-Q4_0") == Path(str(drafter.path))


def test_a_drafter_that_hides_a_model_is_never_advised(inside: Hub, library: Path) -> None:
    inside.repos["some/packed"] = {COMMIT: dict.fromkeys(MTP_NOW | {"m-Q5_K_M.gguf": 1}, b"GGUF")}
    with pytest.raises(DownloadError, match=r"it has no F16; there is Q5_K_M") as caught:
        pull("some/packed:F16")
    assert "some/packed:Q5_K_M" in caught.value.hint


@pytest.mark.parametrize("name", ["SOME/Model", "https://huggingface.co/some/model/tree/main", "some/model/"])
def test_other_spellings_of_a_name(inside: Hub, library: Path, name: str) -> None:
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False)}
    row, _ = pull(name)
    assert row.path is not None and not row.unsupported
    asked = len(inside.asked)
    assert shelf.resolve("some/model") == shelf.resolve("Some/MODEL") == Path(row.path)
    assert len(inside.asked) == asked


def test_an_address_elsewhere_is_refused_in_words(library: Path) -> None:
    with pytest.raises(
        ModelError, match=r"There is no model at 'https://example.org/a/b': .* outside the model hub"
    ) as caught:
        shelf.pull("https://example.org/a/b")
    assert "https://huggingface.co/ORG/NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": b"{}"}, False),
        ({"tokenizer_config.json": b'{"chat_template": null}'}, False),
        ({"tokenizer_config.json": b"{}", "chat_template.jinja": b"{{ messages }}"}, True),
        ({"tokenizer_config.json": b"{}", "chat_template.json": b'{"chat_template": "{{ messages }}"}'}, True),
        ({"tokenizer_config.json": b'{"chat_template": "{{ messages }}"}'}, True),
    ],
)
def test_a_repository_without_a_chat_template_says_so(
    inside: Hub, library: Path, files: dict[str, bytes], template: bool
) -> None:
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False) | files}
    order: list[str] = []
    inside.before_piece = lambda path: order.append(path) if path.endswith(".safetensors") else None
    row, told = pull("some/model")
    assert row.path is not None
    assert [text for text in told if "has no chat template" in text] == told[1:] and bool(told[1:]) is not template


def test_only_a_tekken_file_and_no_template(inside: Hub, library: Path) -> None:
    files = repository(["model.safetensors"], (), False) | {"tekken.json": b"{}"}
    inside.repos["some/mistral"] = {
        COMMIT: {name: files[name] for name in ("config.json", "model.safetensors", "tekken.json")}
    }
    _, told = pull("some/mistral")
    assert "some/mistral has no chat template" in told[1] and "--chat-template" in told[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config.json": json.dumps(CONFIG | {"model_type": "unheard_of"}).encode()}, "unheard_of"),
        ({"config.json": json.dumps(CONFIG | {"hidden_size": 64}).encode()}, "the config says"),
        ({"config.json": json.dumps(CONFIG | {"num_hidden_layers": 9}).encode()}, "has no tensor model.layers.8."),
        ({"tokenizer.json": b'{"model": {"type": "Unheard", "vocab": {}}}'}, "tokenizer"),
    ],
)
def test_what_a_load_would_refuse_is_not_called_ready(
    inside: Hub, library: Path, change: dict[str, bytes], reason: str
) -> None:
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False) | change}
    row, _ = pull("some/model")
    assert reason in row.unsupported + row.problem
    shown = model_rows.row("some/model", model_rows.ModelChoice(device="cpu"))
    assert shown.plan is None and reason in shown.unsupported + shown.problem


def test_a_stale_index_is_left_where_it_is(inside: Hub, library: Path) -> None:
    stale = {INDEX: split([f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)])[INDEX]}
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False) | stale}
    row, _ = pull("some/model")
    assert (row.problem, row.unsupported) == ("", "") and not (library / "some--model" / INDEX).exists()
    inside.repos["some/part"] = {
        COMMIT: stale | {name: TEXT[name] for name in TEXT} | {"model-00001-of-00003.safetensors": b""}
    }
    with pytest.raises(DownloadError, match=r"the shard model-00002-of-00003.*, and 1 more of its 3"):
        pull("some/part")


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"weight_map": {}}', b'{"weight_map": {"x": 5}}'])
def test_an_index_that_names_nothing(inside: Hub, library: Path, data: bytes) -> None:
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False) | {INDEX: data}}
    with pytest.raises(DownloadError, match=r"its model\.safetensors\.index\.json names no files"):
        pull("some/model")


def test_a_wait_is_told_and_bounded(inside: Hub, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    told: list[str] = []

    def pause(self: hubget._Transfer, seconds: float, error: Exception) -> None:
        monkeypatch.setattr(self._stop, "wait", waits.append)
        real(self, seconds, error)

    real = hubget._Transfer._pause
    monkeypatch.setattr(hubget._Transfer, "_pause", pause)
    monkeypatch.setattr(
        Path, "write_text", lambda path, text, encoding: told.append(text) if path.name == "status" else None
    )
    monkeypatch.setattr(sources, "RETRY_WAIT", 1.0)
    inside.answer = lambda path: refused("", 500)
    with pytest.raises(DownloadError, match="the hub itself has trouble"):
        pull("some/model")
    assert told[:2] == ["the hub answered 500, trying again in 1 s", "the hub answered 500, trying again"]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_look_up_downloads_nothing(inside: Hub, library: Path) -> None:
    inside.repos["some/model"] = {COMMIT: repository(["model.safetensors"], (), False)}
    for name in ("some/model", "qwen3-8b", "Qwen/Qwen3-8B"):
        with pytest.raises(ModelError, match="is not in the library") as caught:
            model_rows.located(name)
        assert f"outrider models pull '{name}'" in caught.value.hint
    assert "eagle AngelSlim/Qwen3-8B_eagle3" in caught.value.message
    assert "16.4 GB" in caught.value.hint
    assert not inside.asked
