"""Headers that are read once for each state of their files, and the library as several threads ask it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import ModelChoice
from outrider.core.formats.checkpoint import describe
from outrider.core.formats.remembered import remembered
from outrider.core.library import discovery, model_rows, receipts
from outrider.core.library import library as shelf
from outrider.core.library.catalogue import Entry, File
from outrider.core.library.jobs import Job

T = TypeVar("T")
THREADS = 8


def at_once(work: Callable[[], T]) -> list[T]:
    """What several threads get that begin together."""
    barrier = Barrier(THREADS)

    def begin() -> T:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return [future.result() for future in [pool.submit(begin) for _ in range(THREADS)]]


def test_it_is_read_again_where_a_file_has_changed(tmp_path: Path) -> None:
    seen: list[Path] = []

    @remembered
    def read(path: Path) -> str:
        seen.append(path)
        return path.read_text()

    file = tmp_path / "x.gguf"
    file.write_text("one")
    assert read(file) == read(file) == "one" and len(seen) == 1
    file.write_text("two")
    os.utime(file, ns=(1, 1))  # as long as before
    assert read(file) == "two" and len(seen) == 2
    os.utime(file, ns=(2, 2))
    assert read(file) == "two" and len(seen) == 3
    part = tmp_path / "x-00001-of-00002.gguf"
    part.write_text("part")
    assert read(part) == read(part) == "part" and len(seen) == 5
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")


def test_a_folder_is_read_again_where_any_of_its_files_has_changed(tmp_path: Path) -> None:
    count = iter(range(10))
    read = remembered(lambda path: next(count))
    (tmp_path / "a").write_text("")
    assert [read(tmp_path), read(tmp_path)] == [0, 0]
    (tmp_path / "b").write_text("")
    assert [read(tmp_path), read(tmp_path)] == [1, 1]
    (tmp_path / "b").unlink()
    assert read(tmp_path) == 0  # the state that was read first
    os.utime(tmp_path / "a", ns=(1, 1))
    assert read(tmp_path) == 2


def test_a_failure_is_not_kept(tmp_path: Path, tiny) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        describe(file)
    assert describe(tiny.write()).layers == 2


def test_who_changes_a_description_changes_only_their_own(tiny) -> None:
    path = tiny.write()
    first = describe(path)
    assert isinstance(first.config, dict)
    first.config.clear()
    assert describe(path).config["num_hidden_layers"] == 2


def test_lists_are_the_same_for_all_who_ask_at_once(tiny, library: Path) -> None:
    library.mkdir(parents=True)
    path = tiny.write()
    (library / "tiny.gguf").write_bytes(path.read_bytes())
    lists = at_once(lambda: model_rows.rows(False, ModelChoice()))
    assert all(rows == lists[0] for rows in lists) and "tiny.gguf" in {row.name for row in lists[0]}
    surveys = at_once(lambda: discovery.survey(describe(path), "tiny"))
    assert all(rows == surveys[0] for rows in surveys) and surveys[0]


def test_a_model_without_a_receipt_is_found_sound_by_all_who_ask_at_once(
    tiny, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.write().read_bytes()
    library.mkdir(parents=True)
    (library / "toy.gguf").write_bytes(data)
    digest = receipts.digest(library / "toy.gguf", Job(), 0, 0)
    entry = Entry(name="toy", path="toy.gguf", files=(File("toy.gguf", len(data), digest),), sources=())
    monkeypatch.setattr("outrider.core.library.catalogue.entries", lambda: (entry,))
    assert at_once(lambda: shelf.resolve("toy")) == [library / "toy.gguf"] * THREADS
    assert receipts.state(library, entry) == "ready"
    assert [one.name for one in (library / ".verified").iterdir()] == ["toy.gguf.json"]
