"""The examples of `outrider run` in README and help, as a shell runs them with the starter."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.app import cli
from outrider.app.commands import run
from outrider.core.base import paths

ROOT = Path(__file__).parents[3]
NOTES = (
    "The meeting is on Tuesday. Anna books the room. We moved the launch to June, because the tests are not finished.\n"
)
MAIN = 'def area(width, height):\n    """The area of a rectangle."""\n    return width * height\n'
OTHERS = ("~/models", "ORG/NAME", "…")  # what a stranger's machine does not have
SEEDS = ("1", "2")  # a small model does not succeed every time


def examples() -> list[str]:
    """Each line of a shell that ends in, or begins with, `outrider run`."""
    texts = [(ROOT / "README.md").read_text(), run.run.epilog or "", cli.cli.epilog or ""]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = [line for line in lines if re.match(r"(outrider run|[a-z][^.]* \| outrider run) ", line)]
    whole = [re.split(r"\s+# |(?<=\S) {3,}|(?<=[\"\w]) {2,}(?=[a-z])", line)[0] for line in found]
    return [line for line in dict.fromkeys(whole) if not any(word in line for word in OTHERS)]


def test_the_examples_are_found() -> None:
    lines = examples()
    assert len(lines) >= 9 and all(line.count('"') % 2 == 0 for line in lines), lines
    assert any(" | " in line for line in lines) and any("<" in line for line in lines)


@pytest.mark.real
@pytest.mark.parametrize("line", examples())
def test_an_example_is_one_that_the_starter_can_do(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not list(paths.models_dir().glob("SmolLM2-135M-Instruct.Q4_1.gguf")):
        pytest.skip("the starter is not in the local library: outrider models pull starter")
    (tmp_path / "notes.txt").write_text(NOTES)
    (tmp_path / "main.py").write_text(MAIN)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    commit = "git init -q . && git add . && git commit -qm 'The library closes at six on Fridays from now on.'"
    subprocess.run(["bash", "-c", commit], cwd=tmp_path, check=True)
    shell = f'outrider() {{ {shlex.quote(sys.executable)} -m outrider "$@"; }}\nset -o pipefail\n{line}'
    told = []
    for seed in SEEDS:
        environ = {**os.environ, "OUTRIDER_SAMPLING_SEED": seed, "OUTRIDER_SAMPLING_MAX_TOKENS": "400"}
        done = subprocess.run(
            ["bash", "-c", shell], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        written = done.stdout + "".join(path.read_text() for path in tmp_path.glob("add.py"))
        cut = "cut off" in done.stderr and "--max-tokens" not in line
        if done.returncode == 0 and written.strip() and not cut and "repeats itself" not in done.stderr:
            return
        told.append(f"{done.returncode}: {written[-200:]}\n{done.stderr}")
    pytest.fail("\n".join([line, *told]))
