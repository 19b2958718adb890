"""States on disk are those that the target computes, and are made only once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pupils
import pytest
import torch

from outrider.core.base.errors import Cancelled, ModelError
from outrider.core.train.states import States, nbytes


def told(done: int, total: int) -> None: ...


def test_a_batch_lays_texts_one_after_another() -> None:
    teacher = pupils.teacher()
    texts = pupils.texts(teacher, 3, length=9)
    batch = pupils.batch(teacher, texts, (0, 6))
    assert batch.ids.tolist() == [token for text in texts for token in text.ids]
    assert [tuple(text) for text in batch.texts] == [(0, 6, 9), (9, 15, 18), (18, 24, 27)]
    assert batch.states.shape == (27, 2, 32)
    assert batch.answered == 9
    assert [list(rows) for rows in batch.rows(ahead=1)] == [[5, 6, 7], [14, 15, 16], [23, 24, 25]]
    torch.testing.assert_close(batch.states[9:18], teacher.read(texts[1].ids, (0, 6)))


def test_what_is_on_disk_is_what_is_computed_and_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = pupils.teacher()
    texts = pupils.texts(teacher, 3, length=9)
    fresh = States(teacher, texts, (3, 6), None).batch([2, 0])
    kept = States(teacher, texts, (3, 6), tmp_path / "states.bin")
    kept.prepare("these", told, lambda: False)
    assert (tmp_path / "states.bin").stat().st_size == nbytes(teacher, texts, (3, 6))
    torch.testing.assert_close(kept.batch([2, 0]).states, fresh.states)
    asked: list[Sequence[int]] = []
    real = teacher.read
    monkeypatch.setattr(teacher, "read", lambda ids, states: asked.append(ids) or real(ids, states))
    again = States(teacher, texts, (3, 6), tmp_path / "states.bin")
    again.prepare("these", told, lambda: False)
    torch.testing.assert_close(again.batch([2, 0]).states, fresh.states)
    assert not asked
    States(teacher, texts, (3, 6), tmp_path / "states.bin").prepare("others", told, lambda: False)
    assert len(asked) == 3


def test_a_stopped_reading_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    teacher = pupils.teacher()
    states = States(teacher, pupils.texts(teacher, 3, length=9), (6,), tmp_path / "states.bin")
    with pytest.raises(Cancelled):
        states.prepare("these", told, lambda: True)
    assert not (tmp_path / "states.json").exists()


def test_a_full_disk_is_told_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = pupils.teacher()
    states = States(teacher, pupils.texts(teacher, 1, length=9), (6,), tmp_path / "states.bin")
    monkeypatch.setattr("outrider.core.train.states.shutil.disk_usage", lambda _: type("", (), {"free": 1 << 20})())
    with pytest.raises(ModelError, match=r"takes 0\.0 GB and 0\.0 GB are free"):
        states.prepare("these", told, lambda: False)
