"""A folder of settings of its own for every test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.app.config.read import config_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("OUTRIDER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def write(home: Path) -> Callable[[str], Path]:
    """Write the file of settings."""

    def call(text: str) -> Path:
        path = config_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    return call
