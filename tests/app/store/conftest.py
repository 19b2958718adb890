"""Helpers are in `store_support`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may lie."""
    return tmp_path / "data" / "chats.db"
