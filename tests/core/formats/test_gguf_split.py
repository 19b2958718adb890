"""Models in several GGUF files: any part opens the whole, and a part that is missing or foreign is one clear error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from gguf_writer import write_gguf

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import describe, open_checkpoint


def split(tiny, folder: Path, name: str = "big", count: int = 3, **told: int) -> list[Path]:
    """The tiny llama in parts: all metadata in the first, and nearly equal numbers of tensors."""
    folder.mkdir(exist_ok=True)
    rows = list(tiny.tensors.items())
    each = -(-len(rows) // count)
    paths = []
    for part in range(count):
        keys = {"split.no": part, "split.count": count, "split.tensors.count": len(rows)}
        keys |= {key.replace("_", "."): value for key, value in told.items()} if part == 1 else {}
        metadata = (tiny.metadata if part == 0 else {}) | keys
        path = folder / f"{name}-{part + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, metadata, dict(rows[part * each : (part + 1) * each])))
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2, None])
def test_any_part_opens_the_whole(tiny, tmp_path: Path, opened: int | None) -> None:
    paths = split(tiny, tmp_path / "parts")
    path = tmp_path / "parts" if opened is None else paths[opened]
    whole, parts = open_checkpoint(tiny.write("whole.gguf")), open_checkpoint(path)
    assert parts.names() == whole.names()
    assert parts.config == whole.config
    assert parts.path == paths[0]
    assert parts.nbytes == sum(path.stat().st_size for path in paths)
    assert all(torch.equal(parts.load(name), whole.load(name)) for name in whole.names())
    assert describe(path).name == "big"
    assert parts.text().metadata == whole.text().metadata


def test_a_first_part_without_tensors(tiny, tmp_path: Path) -> None:
    first, *others = split(tiny, tmp_path, count=2)
    shutil.move(others[0], tmp_path / "big-00003-of-00003.gguf")
    moved = {key: tiny.metadata[key] for key in tiny.metadata}
    rows = list(tiny.tensors.items())
    keys = {"split.count": 3, "split.tensors.count": len(rows)}
    write_gguf(tmp_path / "big-00001-of-00003.gguf", moved | keys | {"split.no": 0}, {})
    write_gguf(tmp_path / "big-00002-of-00003.gguf", keys | {"split.no": 1}, dict(rows[:9]))
    write_gguf(tmp_path / "big-00003-of-00003.gguf", keys | {"split.no": 2}, dict(rows[9:]))
    first.unlink()
    assert len(open_checkpoint(tmp_path).names()) == len(rows)


@pytest.mark.parametrize("gone", [0, 2])
def test_a_missing_part_is_named(tiny, tmp_path: Path, gone: int) -> None:
    paths = split(tiny, tmp_path)
    paths[gone].unlink()
    with pytest.raises(ModelError, match=f"is one of 3 parts, and {paths[gone].name} is missing") as caught:
        open_checkpoint(paths[1])
    assert caught.value.hint
    with pytest.raises(ModelError, match="is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"split_no": 2}, "is not part 2 of 3 of the model beside it"),
        ({"split_count": 4}, "is not part 2 of 3 of the model beside it"),
        ({"split_tensors_count": 7}, "is not part 2 of 3 of the model beside it"),
    ],
)
def test_a_part_that_says_it_is_another(tiny, tmp_path: Path, told: dict[str, int], message: str) -> None:
    paths = split(tiny, tmp_path)
    keys = {"split.no": 1, "split.count": 3, "split.tensors.count": len(tiny.tensors)}
    write_gguf(paths[1], keys | {key.replace("_", ".", 1).replace("_", "."): told[key] for key in told}, {})
    with pytest.raises(BrokenFileError, match=message):
        open_checkpoint(paths[0])


def test_a_tensor_in_two_parts_and_one_too_few(tiny, tmp_path: Path) -> None:
    paths = split(tiny, tmp_path)
    keys = {"split.no": 2, "split.count": 3, "split.tensors.count": len(tiny.tensors)}
    name, row = next(iter(tiny.tensors.items()))
    write_gguf(paths[2], keys, {name: row})
    with pytest.raises(BrokenFileError, match="lies in another part too"):
        open_checkpoint(paths[0])
    write_gguf(paths[2], keys, {})
    with pytest.raises(BrokenFileError, match="hold 14 tensors, not as many as they promise"):
        open_checkpoint(paths[0])


def test_a_truncated_part(tiny, tmp_path: Path) -> None:
    paths = split(tiny, tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-5])
    with pytest.raises(BrokenFileError, match=r"00003-of-00003\.gguf is broken"):
        open_checkpoint(paths[0])


def test_a_folder_with_two_models_in_parts(tiny, tmp_path: Path) -> None:
    split(tiny, tmp_path)
    split(tiny, tmp_path, "other", 2)
    with pytest.raises(ModelError, match="holds 5 GGUF files"):
        open_checkpoint(tmp_path)
