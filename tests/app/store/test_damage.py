"""One trial of each kind of damage that `benchmarks/store_damage.py` does hundreds of."""

from __future__ import annotations

import importlib
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

store_damage = importlib.import_module("store_damage")


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, ...]:
    """A store, the same with the log of a killed program, and what is on which of their pages."""
    if not sqlite3.connect(":memory:").execute("SELECT 1 FROM pragma_module_list WHERE name = 'dbstat'").fetchone():
        pytest.skip("this SQLite has no dbstat")
    folder = tmp_path_factory.mktemp("damage")
    path, killed = folder / "chats.db", folder / "killed.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_damage, "CHATS", 50)
        store_damage.make(path, random.Random(3))
    data, truth = path.read_bytes(), store_damage.truth_of(path)
    store_damage.make_log(path, killed)
    log = Path(f"{killed}-wal").read_bytes()
    return data, killed.read_bytes(), log, truth, store_damage.truth_of(path)


@pytest.mark.parametrize("kind", store_damage.HARMS)
def test_damage_costs_what_is_on_the_page(kind: str, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, data_beside, log, truth, truth_beside = whole
    monkeypatch.setenv("OUTRIDER_HOME", "")  # is put back
    sums = store_damage.Sums()
    for seed in range(2):
        if store_damage.HARMS[kind] is store_damage.beside_a_log:
            assert store_damage.trial(data_beside, log, truth_beside, kind, seed, sums) == []
        else:
            assert store_damage.trial(data, b"", truth, kind, seed, sums) == []
    assert sums.lost <= sums.on_pages
