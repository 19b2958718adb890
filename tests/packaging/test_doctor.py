"""What doctor says of how Outrider was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.app.commands import doctor


class Package:
    metadata = {"Name": "nvidia-cublas-cu12"}  # noqa: RUF012 - read only


def test_a_cuda_build_without_a_gpu_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "distributions", list)
    assert doctor._unused_cuda(tmp_path) == []
    monkeypatch.setattr(doctor.metadata, "distributions", lambda: [Package()])
    (note,) = doctor._unused_cuda(tmp_path)
    assert note.level == "note" and "4 GB could go" in note.text
    (tmp_path / "nvidia0").touch()
    assert doctor._unused_cuda(tmp_path) == []
