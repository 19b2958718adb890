"""The script for a machine with a GPU, in its CPU mode: all of it with packages hidden, and how it deals with trouble."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "gpu"
pytestmark = pytest.mark.skipif(os.name != "posix" or shutil.which("bash") is None, reason="the script is for bash")

HIDE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {"msgspec", "platformdirs", "textual", "click", "huggingface_hub", "httpx"}


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            found = PathFinder.find_spec(name, [folder for folder in sys.path if "site-packages" not in folder])
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return found


sys.meta_path.insert(0, Hidden())
"""

TROUBLE = """
import json, sys, time
from pathlib import Path
import check, others
from rig import Check

out = Path(sys.argv[1])

def good(figures):
    figures["one"] = 1

def bad(figures):
    figures["reached"] = 2
    raise ValueError("it broke")

def endless(figures):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass

real = check.beside
check.first = lambda: [Check("bad", bad, 9), Check("endless", endless, 0.2), Check("good", good, 9)]
check.beside = check.after = list
sys.argv = ["check.py", str(out)]
assert check.main() == 1
check.first = lambda: [Check("good", bad, 9), Check("more", good, 9)]  # one is in the file already
assert check.main() == 1

check.first, check.beside = list, real  # a process for each
sys.argv = ["check.py", str(out.with_name("beside.json")), "--only", "noise", "--beside", "2"]
assert check.main() == 0
sys.argv = ["check.py", str(out)]
check.beside = list

again = []

def execv(path, arguments):
    again.extend(arguments)
    raise SystemExit

check.alive, check.os.execv = (lambda: False), execv
check.first = lambda: [Check("worse", bad, 9)]
try:
    check.main()
except SystemExit:
    assert again[1:3] == [check.__file__, str(out)] and "--ends" in again
assert again

parts = Path(sys.argv[1]).parent / "parts"
(out.parent / "joined").mkdir()
whole = others.joined(parts, out.parent / "joined")
assert whole.read_bytes() == (out.parent / "model.bin").read_bytes()
first = parts / "model.bin.part-00"
first.write_bytes(first.read_bytes()[:-1] + b"x")
try:
    others.joined(parts, out.parent / "joined")
except ValueError as error:
    print(error)
first.unlink()
assert others.joined(parts, out.parent / "joined") is None
"""


def environment(folder: Path, *paths: Path) -> dict[str, str]:
    """For a process that finds this interpreter as `python3`, and modules in `paths`."""
    shims = folder / "bin"
    shims.mkdir()
    shim = shims / "python3"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    path = os.pathsep.join(map(str, paths))
    return {**os.environ, "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}


@pytest.mark.thorough
def test_everything_without_the_packages_of_the_set_up(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        ["bash", GPU / "run.sh", out], capture_output=True, text=True, env=environment(tmp_path, tmp_path), check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert found["checks"]["machine"]["msgspec"] == "stands in"
    assert [name for name in found["planned"] if not found["checks"][name]["ok"]] == []
    model = found["checks"]["pass llama-8b bf16"]
    assert model["expected_tokens"].startswith(model["expected_tokens"].split()[-1])  # as many as there are
    assert found["checks"]["text delta"]["graphs"] > 3
    assert done.stdout.splitlines()[-1] == f"{len(found['planned'])} of {len(found['planned'])} checks are fine"


@pytest.mark.thorough
def test_drafters_are_trained_on_one_set_of_answers(tmp_path: Path) -> None:
    told = {
        "GPU_TRAIN": "medusa,eagle,boom",
        "GPU_LIMIT": "12",
        "GPU_TRAIN_MORE": "--answers 22",
        "OUT": str(tmp_path / "out"),
    }
    done = subprocess.run(
        ["bash", GPU / "run.sh"], capture_output=True, text=True, env=environment(tmp_path) | told, check=False
    )
    assert done.returncode == 1, done.stderr[-3000:]  # there is no method boom
    found = json.loads((tmp_path / "out" / "train.json").read_text())
    assert found["answers"]["tokens"] > 100 and "error" in found["methods"].pop("boom")
    for method, one in found["methods"].items():
        assert one["tokens"] == found["answers"]["tokens"] and one["steps"] > 3 and one["measured"]["texts"] == 5
        with tarfile.open(tmp_path / "out" / f"{method}.tar.part-00") as tar:
            assert f"{method}/config.json" in tar.getnames() and f"{method}/outrider.json" in tar.getnames()


@pytest.mark.thorough
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    paths = (ROOT / "core", ROOT / "tests" / "support")
    command = [sys.executable, GPU / "compiles.py", "--few"]
    env = {**environment(tmp_path, *paths), "TRITON_CACHE_DIR": str(tmp_path / "kept")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 10


@pytest.mark.thorough
def test_trouble_is_written_down_and_parts_are_joined(tmp_path: Path) -> None:
    """A failing check, one without an end, a run that goes on, one in a process of its own; parts of a file, damaged too."""
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 10)
    small = {**os.environ, "PART_BYTES": "1000"}
    split = ["bash", ROOT / "packaging" / "split.sh", tmp_path / "model.bin", tmp_path / "parts"]
    subprocess.run(split, check=True, env=small, stdout=subprocess.DEVNULL)
    assert len(list((tmp_path / "parts").glob("model.bin.part-*"))) == 3
    paths = (GPU, ROOT / "core", ROOT / "plugins", ROOT / "assets", ROOT / "tests" / "support")
    command = [sys.executable, "-c", TROUBLE, tmp_path / "out.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path, *paths), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "model.bin.part-00 is not what was cut"
    checks = json.loads((tmp_path / "out.json").read_text())["checks"]
    assert checks["bad"] == {**checks["bad"], "ok": False, "reached": 2, "error": "ValueError: it broke"}
    assert not checks["endless"]["ok"] and "stopped after" in checks["endless"]["error"]
    assert checks["good"]["ok"] and checks["more"]["ok"]
    beside = json.loads((tmp_path / "beside.json").read_text())
    assert beside["checks"]["noise and choices"]["settings"] == 5


def test_the_table_tells_what_was_not_reached(tmp_path: Path) -> None:
    figures = {"ok": True, "seconds": 1.5, "ms": {"at 256": {"1": 4.5, "2": 4.6}}, "share": 0.7}
    failed = {"ok": False, "seconds": 2, "error": "E: no"}
    found = {"planned": ["a", "b", "c"], "checks": {"a": figures, "b": failed}}
    (tmp_path / "out.json").write_text(json.dumps(found))
    command = [sys.executable, GPU / "report.py", tmp_path / "out.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == [
        "ok    a (1.5 s)",
        "      ms at 256 1: 4.5  2: 4.6; share 0.7;",
        "FAIL  b (2.0 s)",
        "      E: no",
        "----  c: not reached",
        "1 of 3 checks are fine",
    ]
