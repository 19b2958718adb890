"""Folders of safetensors: single, sharded, damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import describe, open_checkpoint

CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1}
NUMBERS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
NUMBERS += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
TENSORS = {
    "model.embed_tokens.weight": torch.arange(32).view(8, 4).bfloat16(),
    "model.norm.weight": torch.ones(4),
    "lm_head.weight": torch.arange(32).view(8, 4).bfloat16() + 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A single-file model."""
    path = tmp_path / "toy"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(TENSORS, path / "model.safetensors")
    return path


def plain(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A folder with these tensors."""
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.fixture
def sharded(folder: Path) -> Path:
    """The same in two shards with an index."""
    (folder / "model.safetensors").unlink()
    names = list(TENSORS)
    for i, part in enumerate((names[:2], names[2:]), 1):
        save_file({name: TENSORS[name] for name in part}, folder / f"model-0000{i}-of-00002.safetensors")
    listed = {name: f"model-0000{1 + i // 2}-of-00002.safetensors" for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return folder


@pytest.mark.parametrize("form", ["folder", "sharded"])
def test_it_reads_what_was_saved(form: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(form)
    checkpoint = open_checkpoint(path)
    assert checkpoint.format == "safetensors"
    assert checkpoint.quantisation == "bf16"
    assert sorted(checkpoint.names()) == sorted(TENSORS)
    assert checkpoint.nbytes == sum(file.stat().st_size for file in path.glob("*.safetensors"))
    for name, tensor in TENSORS.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.load(name), tensor)
    assert checkpoint.load("lm_head.weight", torch.float32).dtype == torch.float32
    last = checkpoint.load("lm_head.weight")
    checkpoint.close()
    assert torch.equal(last, TENSORS["lm_head.weight"])
    assert describe(path).name == "toy"


def test_generation_config_and_text_files(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (folder / "chat_template.jinja").write_text("new")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.generation == {"temperature": 0.5}
    assert checkpoint.text().template == "new"
    assert checkpoint.text().tokenizer is None
    assert describe(folder).tokenizer == ""


def test_other_safetensors_in_the_folder_do_not_disturb(folder: Path) -> None:
    save_file({"x": torch.ones(1)}, folder / "extra.safetensors")
    assert sorted(open_checkpoint(folder).names()) == sorted(TENSORS)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BrokenFileError, match=r"lacks the shard model-00002-of-00002.safetensors, which model.safe"):
        open_checkpoint(sharded)


def test_a_missing_shard_is_named_without_an_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert sorted(open_checkpoint(sharded).names()) == sorted(TENSORS)
    (sharded / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(BrokenFileError, match="lacks the shard model-00001"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"x": "../other.safetensors"}}, "outside its folder"),
        ({"weight_map": {"x": "model-00001-of-00002.safetensors"}}, "lacks the tensor x"),
        ({"weight_map": 5}, "names no files"),
        ([], "holds no table"),
    ],
)
def test_an_index_that_makes_no_sense(sharded: Path, index: object, message: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BrokenFileError, match=message):
        open_checkpoint(sharded)


def test_truncated_anywhere_it_is_a_broken_file(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(BrokenFileError, match=r"model.safetensors is broken"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff\xff",
        b'{"x": 1}',
        b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}',
        b"[" * 5000,
    ],
)
def test_headers_that_make_no_sense(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(BrokenFileError):
        open_checkpoint(folder)


def test_a_type_that_is_not_read(folder: Path) -> None:
    header = b'{"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(ModelError, match="has type F4, which is not read"):
        open_checkpoint(folder)


def test_an_unknown_quantisation_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "exotic"}}))
    with pytest.raises(ModelError, match="is quantised by exotic, which is not read"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0"])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BrokenFileError, match=r"config.json is broken"):
        open_checkpoint(folder)


@pytest.mark.parametrize("value", [None, "8", 0, True])
def test_a_config_without_a_size(folder: Path, value: object) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": value}))
    with pytest.raises(BrokenFileError, match="gives no usable hidden_size"):
        describe(folder)


def test_folders_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds config.json but no weights"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="holds pickled weights only"):
        open_checkpoint(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(ModelError, match="holds no model"):
        open_checkpoint(folder)
    with pytest.raises(ModelError, match="There is no file or folder"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "lone.safetensors").touch()
    with pytest.raises(ModelError, match="is not a model by itself"):
        open_checkpoint(tmp_path / "lone.safetensors")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    with pytest.raises(BrokenFileError, match=r"has no tensor model.missing"):
        open_checkpoint(folder).load("model.missing")


@pytest.mark.parametrize("config", [{}, {"base_model_name_or_path": "some/base"}])
def test_the_folder_of_an_adapter_says_so(tmp_path: Path, config: dict[str, str]) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({"x": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    of = " for some/base" if config else ""
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        with pytest.raises(ModelError, match=rf"is an adapter \(LoRA\){of}, not a model") as caught:
            open_checkpoint(path)
        assert "Merge it" in caught.value.hint


def test_an_adapter_beside_a_model_does_not_hide_it(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    save_file({"x": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert sorted(open_checkpoint(folder).names()) == sorted(TENSORS)


def test_a_stale_index_says_how_many_files_are_missing_and_what_is_there(sharded: Path) -> None:
    names = {name: f"model-{1 + i:05d}-of-00030.safetensors" for i, name in enumerate(TENSORS)}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(BrokenFileError) as caught:
        open_checkpoint(sharded)
    assert (
        f"and {len(names) - 1} more of its {len(names)}. There are 2 others: model-00001-of-00002"
        in caught.value.message
    )
    assert "delete its model.safetensors.index.json" in caught.value.hint


@pytest.mark.parametrize(
    "pattern", ["model.safetensors-0000{}-of-00002", "model-0000{}-of-000002", "model.fp16-0000{}-of-00002"]
)
def test_shards_of_every_naming_without_an_index(sharded: Path, pattern: str) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    for i in (1, 2):
        (sharded / f"model-0000{i}-of-00002.safetensors").rename(sharded / f"{pattern.format(i)}.safetensors")
    assert sorted(open_checkpoint(sharded).names()) == sorted(TENSORS)


def test_a_file_that_is_cut_while_its_tensors_are_in_use(tmp_path: Path) -> None:
    """A map would end the process with SIGBUS."""
    folder = plain(tmp_path, {"a": torch.arange(1 << 16, dtype=torch.float32), "b": torch.ones(1 << 16)})
    checkpoint = open_checkpoint(folder)
    tensor = checkpoint.load("a")
    os.truncate(folder / "model.safetensors", 1000)
    assert torch.equal(tensor, torch.arange(1 << 16, dtype=torch.float32))
    with pytest.raises(BrokenFileError, match="has become shorter"):
        checkpoint.load("b")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BrokenFileError, match="cannot be read: No such file"):
        checkpoint.load("a")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_of_every_kind_are_what_was_written(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = {"a": torch.arange(12).view(3, 4).to(dtype), "none": torch.empty(0, 4, dtype=dtype)}
    stored["one"] = torch.ones((), dtype=dtype)
    checkpoint = open_checkpoint(plain(tmp_path, stored))
    for name, tensor in stored.items():
        found = checkpoint.load(name)
        assert found.dtype == dtype and found.shape == tensor.shape and torch.equal(found.float(), tensor.float())


def test_tensors_that_overlap(tmp_path: Path) -> None:
    folder = plain(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"[16,32]", b"[ 0,16]"))
    with pytest.raises(BrokenFileError, match="overlap"):
        open_checkpoint(folder)
