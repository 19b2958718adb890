"""Connections that are cut at random bytes: what is in the library afterwards is a whole model or none."""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from hubserver import COMMIT, Hub

from outrider.core.base.errors import DownloadError
from outrider.core.library import hubget
from outrider.core.library import library as shelf

CUTS = 50
SHARDS = 3


def model(seed: int) -> dict[str, bytes]:
    """A model of a few files, none of them like another."""
    draw = random.Random(seed)
    names = [f"model-{i:05d}-of-{SHARDS:05d}.safetensors" for i in range(1, SHARDS + 1)]
    files = {name: draw.randbytes(draw.randrange(20_000, 90_000)) for name in names}
    index = json.dumps({"weight_map": {str(i): name for i, name in enumerate(names)}}).encode()
    return {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        "tokenizer.json": draw.randbytes(9000),
        **files,
    }


class Cutter:
    """A server's habit to cut a share of its answers after a random number of bytes, half of them by a reset.

    After `alive` cuts the connection is gone: every answer ends before its first byte, until `alive` is raised.
    """

    def __init__(self, seed: int, often: float, alive: float = math.inf) -> None:
        self.seed, self.often, self.alive = seed, often, alive
        self.done: list[str] = []
        self.asked: Counter[str] = Counter()
        self._guard = threading.Lock()

    def __call__(self, path: str, size: int) -> tuple[int, bool] | None:
        """What `Hub.cut` asks."""
        with self._guard:
            self.asked[path] += 1
            draw = random.Random(f"{self.seed} {path} {self.asked[path]}")
            if len(self.done) >= self.alive:
                return 0, False
            if size < 2 or draw.random() > self.often:
                return None
            self.done.append(path)
            return draw.randrange(size), draw.random() < 0.5


def state(folder: Path, files: dict[str, bytes]) -> str:
    """Whole, absent, or what is wrong."""
    if not folder.exists():
        return "absent"
    held = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return "whole" if held == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} else f"{held}"


def test_fifty_cuts_at_random_bytes(inside: Hub, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pull is cut again and again; half of them lose the connection for good, and the next one goes on."""
    monkeypatch.setattr(hubget, "_TRIES", 4)
    seen = {"whole": 0, "absent": 0}
    cuts = 0
    for seed in range(12):
        name, files = f"some/toy{seed}", model(seed)
        inside.repos[name] = {COMMIT: files}
        inside.cut = cutter = Cutter(seed, often=0.7, alive=seed // 2 + 1 if seed % 2 else math.inf)
        folder = library / name.replace("/", "--")
        while not folder.exists():
            try:
                shelf.pull(name)
            except DownloadError as error:
                assert "cannot be reached" in error.message
                cutter.alive = math.inf
            found = state(folder, files)
            assert found in seen
            seen[found] += 1
        cuts += len(cutter.done)
    assert cuts >= CUTS
    assert seen["whole"] == 12 and seen["absent"] >= 6


def test_nothing_is_fetched_twice(inside: Hub, library: Path) -> None:
    """With cuts that lose nothing on the way, the bytes sent are those of the files."""
    files = model(99)
    inside.repos["some/toy"] = {COMMIT: files}
    cutter = Cutter(99, often=0.8)
    inside.cut = lambda path, size: (told[0], False) if (told := cutter(path, size)) else None
    shelf.pull("some/toy")
    assert state(library / "some--toy", files) == "whole"
    assert sum(one.sent for one in inside.asked if "/resolve/" in one.path) == sum(map(len, files.values()))
    assert len(cutter.done) >= 5


@pytest.mark.parametrize("seed", [1, 2])
def test_a_real_child_process_goes_on_after_cuts(hub: Hub, library: Path, seed: int) -> None:
    files = model(seed)
    hub.repos["some/toy"] = {COMMIT: files}
    hub.cut = cutter = Cutter(seed, often=0.6)
    shelf.pull("some/toy")
    assert state(library / "some--toy", files) == "whole"
    assert len(cutter.done) >= 3
