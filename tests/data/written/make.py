"""Make the files beside this one: what Outrider 0.1.0 wrote while it was used, for `tests/test_written.py`.

    python tests/data/written/make.py ROOT

ROOT is a checkout of commit 284fa10, the last one before the modules of core moved into rooms. Files of a later version would
not show that older ones are still read, so this is run again only to add what another released version wrote. Everything is
done by commands of `outrider` in a folder and a home of their own. The one path of that folder that is written, the run's own in
its plan, becomes relative.

    toy/                  the target: small_model.py of benchmarks, width 16
    home/                 the home: history of the policy, a trained drafter with its card, the chats, a receipt
    run/                  a training run that was interrupted in the middle of its steps

The receipt is of the starter, as `outrider models pull starter` left it in the user's library.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "benchmarks"))
small_model: Any = importlib.import_module("small_model")

COMMON = ["--model", "toy", "--device", "cpu", "--dtype", "fp32", "--threads", "1"]
RECEIPT = ".verified/SmolLM2-135M-Instruct.Q4_1.gguf.json"
ASKED = [str(n) for n in range(24)]
TRAIN = ["train", "medusa", *COMMON, "--prompts", "prompts.jsonl", "--answer-tokens", "12", "--option", "heads=2"]


def command(root: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """How `outrider` of that checkout is started, in the current folder."""
    path = os.pathsep.join(str(root / tree) for tree in ("core", "plugins", "app", "assets"))
    environment = {**os.environ, "PYTHONPATH": path, "OUTRIDER_HOME": "home", "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-m", "outrider", *words], environment


def outrider(root: Path, *words: str, typed: str = "") -> None:
    """Run a command to its end."""
    line, environment = command(root, *words)
    subprocess.run(line, env=environment, input=typed.encode(), check=True)


def interrupted(root: Path, run: Path, steps: int) -> None:
    """Train into `run`, and press ctrl+c after so many steps."""
    line, environment = command(root, *TRAIN, "--epochs", "20", "--out", str(run))
    process = subprocess.Popen(line, env=environment)
    log = run / "log.jsonl"
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < steps):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait()


def main(root: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        small_model.write(Path("toy"), width=16, context=256)
        Path("prompts.jsonl").write_text("".join(f'{{"prompt": "{word} and {word}"}}\n' for word in ASKED))
        interrupted(root, Path("run"), 3)
        outrider(root, *TRAIN, "--epochs", "4", "--out", "whole")
        for prompt in ("The sea is red and the sea is", "one two three one two three one"):
            outrider(root, "run", *COMMON, "--temperature", "0", "--max-tokens", "80", "--raw", prompt)
        outrider(
            root, "chat", "--screen-reader", *COMMON, "--temperature", "0", "--max-tokens", "24", "--system", "Be short.",
            typed="Which river is long?\nAnd which one is wide?\n",
        )  # fmt: skip
        plan = Path("run/plan.json")
        plan.write_text(plan.read_text().replace(f"{Path.cwd()}/run", "run"))
        receipt = Path("home/data/models", RECEIPT)
        receipt.parent.mkdir(parents=True)
        shutil.copyfile(Path.home() / ".local/share/outrider/models" / RECEIPT, receipt)
        shutil.rmtree("home/cache")
        Path("home/state/engine.log").unlink()
        for name in ("toy", "home", "run"):
            shutil.rmtree(HERE / name, ignore_errors=True)
            shutil.copytree(name, HERE / name, ignore=shutil.ignore_patterns(".*lock"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
