"""Pickled tables: what `torch.save` writes is read, and nothing that could be more than numbers."""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.pickled import SAFER, read_pickled

TABLE = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2], dtype=torch.int32)}


class Bomb:
    """Leaves a folder where it is opened."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("opened",)


def saved(path: Path, what: object, *, old: bool = False) -> Path:
    torch.save(what, path / "table.bin", _use_new_zipfile_serialization=not old)
    return path / "table.bin"


@pytest.mark.parametrize("old", [False, True])
def test_what_torch_saves(tmp_path: Path, old: bool) -> None:
    mixed = collections.OrderedDict(TABLE, half=torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))
    got = read_pickled(saved(tmp_path, mixed, old=old))
    assert list(got) == ["a.weight", "b", "half"]
    for name, tensor in mixed.items():
        assert got[name].dtype == tensor.dtype and not got[name].requires_grad
        torch.testing.assert_close(got[name], tensor.detach())


def test_a_large_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: (asked.append((k["mmap"], k["weights_only"])), load(*a, **k))[1])
    read_pickled(saved(tmp_path, TABLE))
    read_pickled(saved(tmp_path, TABLE, old=True))
    assert asked == [(True, True), (False, True)]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("what", "name"), [({"a": Bomb()}, f"{os.name}.mkdir"), ({"a": Path("x")}, "pathlib")])
def test_code_is_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: object, name: str, old: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=rf"table.bin asks for {name}\S*, which could run code when opened\.$") as told:
        read_pickled(saved(tmp_path, what, old=old))
    assert told.value.hint == SAFER and not isinstance(told.value, BrokenFileError)
    (tmp_path / "table.bin").write_bytes(pickle.dumps(what, 2))
    with pytest.raises(ModelError, match=f"asks for {name}"):
        read_pickled(tmp_path / "table.bin")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: [torch.ones(2)], "holds a list, not a table"),
        (lambda: torch.ones(2), "holds a Tensor, not a table"),
        (lambda: {"model": TABLE}, "else than tensors under the name 'model'"),
        (lambda: {**TABLE, "step": 3}, "under the name 'step'"),
        (lambda: {3: torch.ones(2)}, "under the name 3"),
        (lambda: {"s": torch.eye(2).to_sparse()}, "under the name 's'"),
        (lambda: {"m": torch.empty(2, device="meta")}, "under the name 'm'"),
    ],
)
def test_other_things(tmp_path: Path, make: Callable[[], object], why: str) -> None:
    file = saved(tmp_path, make())
    with pytest.raises(BrokenFileError, match=why) as told:
        read_pickled(file)
    assert told.value.hint


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", r"table.bin is empty\.$"),
        (b"<!DOCTYPE html><title>404", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
        (b"hello, this is no pickle", "cannot be read as a table of tensors"),
        (b"PK\x03\x04 cut off", "cannot be read as a table of tensors"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "table.bin").write_bytes(content)
    with pytest.raises(BrokenFileError, match=why):
        read_pickled(tmp_path / "table.bin")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none.bin cannot be read: No such file"):
        read_pickled(tmp_path / "none.bin")
    with pytest.raises(ModelError, match="cannot be read"):
        read_pickled(tmp_path)


def test_a_foreign_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "table.bin", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(BrokenFileError, match="cannot be read"):
        read_pickled(tmp_path / "table.bin")


@pytest.mark.parametrize("old", [False, True])
def test_cut_anywhere(tmp_path: Path, old: bool) -> None:
    file = saved(tmp_path, TABLE, old=old)
    whole = file.read_bytes()
    for length in range(1, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            read_pickled(file)
