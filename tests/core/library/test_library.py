"""Names to paths, the list of models, and removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.formats.gguf.reader import AGAIN
from outrider.core.library import catalogue, sources
from outrider.core.library import library as shelf
from outrider.core.measure import doctor


def test_pinned_entries_are_complete() -> None:
    for entry in catalogue.entries():
        if not entry.files:
            continue
        assert entry.title and entry.license and entry.sources and entry.files
        assert all(len(file.sha256) == 64 and file.bytes > 0 for file in entry.files)
        assert all(source.kind == "pypi" or len(source.revision) == 40 for source in entry.sources)
    starter = catalogue.find("starter")
    assert starter is not None
    assert [source.kind for source in starter.sources] == ["pypi", "hub"]
    assert starter.nbytes == 98_362_432
    other = catalogue.find("starter (bf16)")
    assert other is not None and other == catalogue.find("HuggingFaceTB/SmolLM2-135M-Instruct")


def test_a_path_is_itself(tiny, library: Path) -> None:
    path = tiny.write()
    assert shelf.resolve(str(path)) == path
    assert shelf.resolve(str(path.parent)) == path.parent


def test_a_folder_called_starter_does_not_hide_the_starter(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starter").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="'starter' is not in the library") as caught:
        shelf.resolve("starter", download=False)
    assert "outrider models pull 'starter'" in caught.value.hint


def test_advice_names_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert shelf.advice(AGAIN, "some/toy") == "Get the file again: `outrider models pull 'some/toy'`, or copy it anew."
    assert shelf.advice(AGAIN, "here") == AGAIN


def test_capitals_of_catalogue_names_do_not_matter(library: Path) -> None:
    for name in ("Qwen3-8B", "QWEN/qwen3-8b"):
        assert shelf.row(name).name == "qwen3-8b"


@pytest.mark.parametrize(
    "name", ["startr", "no-such-thing", "./nowhere.gguf", "models/nowhere.gguf", "/nowhere/at/all"]
)
def test_a_name_that_is_nothing(library: Path, name: str) -> None:
    for call in (shelf.resolve, shelf.pull, shelf.row, shelf.remove):
        with pytest.raises(ModelError, match="There is no model") as caught:
            call(name)
        assert name in caught.value.message
        assert "starter" in caught.value.hint and "--model PATH" in caught.value.hint


def test_an_empty_name(library: Path) -> None:
    with pytest.raises(UsageError, match="No model is named"):
        shelf.resolve(" ")


def test_what_is_put_into_the_library_by_hand_is_listed_and_found(tiny, library: Path) -> None:
    library.mkdir(parents=True)
    tiny.write().rename(library / "mine.gguf")
    (library / "owner--folder").mkdir()
    (library / "notes.txt").touch()
    rows = {row.name: row for row in shelf.rows()}
    assert list(rows) == [*(entry.name for entry in catalogue.entries()), "mine.gguf", "owner/folder"]
    assert rows["starter"].path is None and not rows["starter"].source
    assert rows["mine.gguf"].source == rows["owner/folder"].source == "library"
    assert rows["mine.gguf"].family == "llama" and rows["mine.gguf"].format == "gguf"
    assert "holds no model" in rows["owner/folder"].problem
    assert shelf.resolve("mine") == shelf.resolve("mine.gguf") == library / "mine.gguf"
    assert shelf.row("mine").detail["layers"] == 2
    assert shelf.row("mine").detail["template"] is True


def test_show_takes_a_path_too(tiny, library: Path) -> None:
    path = tiny.write()
    row = shelf.row(str(path))
    assert row.path == str(path) and row.detail["quantisation"] == "fp32"
    path.write_bytes(path.read_bytes()[:500])
    assert "is broken" in shelf.row(str(path)).problem


def test_a_catalogue_model_that_is_not_here_can_be_shown(library: Path) -> None:
    row = shelf.row("starter")
    assert row.path is None and row.nbytes == 98_362_432 and len(row.sources) == 2


def test_remove(tiny, library: Path) -> None:
    library.mkdir(parents=True)
    outside = tiny.write("outside.gguf")
    tiny.write().rename(library / "mine.gguf")
    (library / "link.gguf").symlink_to(outside)
    with pytest.raises(ModelError, match="is not in the library, so it is not deleted"):
        shelf.remove(str(outside))
    with pytest.raises(ModelError, match="'starter' is not in the library"):
        shelf.remove("starter")
    assert shelf.remove("mine").path == str(library / "mine.gguf")
    shelf.remove("link.gguf")
    assert outside.exists()
    assert not [row.name for row in shelf.rows() if row.path]


@pytest.mark.parametrize("name", ["..", "../..", "../../secret", "."])
def test_nothing_outside_the_library_is_ever_removed(library: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library.mkdir(parents=True)
    secret = library.parent.parent / "secret"
    secret.mkdir()
    monkeypatch.chdir(library)
    with pytest.raises(ModelError):
        shelf.remove(name)
    assert secret.exists() and library.exists()


def test_doctor_says_where_the_starter_can_be_had(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def starter() -> list[str]:
        return [finding.text for finding in doctor.findings() if finding.topic == "starter"]

    monkeypatch.setattr(doctor, "_torch", list)
    monkeypatch.setattr(doctor, "_fused", list)
    assert starter() == []
    monkeypatch.setattr(sources, "pip_command", lambda source, folder: None)
    assert starter() == ["not here, and without pip or uv it comes from the model hub alone"]
