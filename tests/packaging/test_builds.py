"""Compiled kernels of earlier versions do not stay for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

from outrider.core.model.kernels import compiled


def test_libraries_that_nobody_loads_any_more_go(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in ("native-a-b.so", "native-c-d.so", "mine-a-b.so"))
    for path in (old, new, other):
        path.write_bytes(b"")
    long_ago = time.time() - compiled.UNUSED - 60
    os.utime(old, (long_ago, long_ago))
    os.utime(other, (long_ago, long_ago))
    compiled.prune(tmp_path, "native")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-a-b.so", "native-c-d.so"]


def test_a_library_that_is_loaded_counts_as_used(tmp_path: Path, monkeypatch) -> None:
    body = b"not really one"
    monkeypatch.setattr(compiled.ctypes, "CDLL", lambda path: path)
    path = tmp_path / "native-a-x.so"
    path.write_bytes(body)
    path = path.rename(tmp_path / f"native-a-{compiled._digest(path)}.so")
    os.utime(path, (0, 0))
    assert compiled._kept(tmp_path, "native-a") is not None
    assert path.stat().st_atime > time.time() - 3600 and path.stat().st_mtime == 0
