"""What only a GPU can show: kernels and text as on the CPU, the cost of passes and drafts, the share of the memory's speed.

    python check.py OUT.json [--limit SECONDS] [--only WORDS] [--beside N]

Every check stands alone: it fills a table of figures, a failure is recorded and the next one runs. The file is written after
each; a run that finds a file goes on behind it, which is how a GPU that a kernel has broken is taken up anew. Checks of
correctness run as processes of their own, several at once, since they mostly wait for compilers. Without a GPU everything
runs with tiny sizes, so that the script itself is tested there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drafts
import expert_checks
import kernel_checks
import others
import passes
import texts
from rig import DEVICE, GPU, Check, Figures, TooLongError, free, wait

BESIDE = 15  # processes at once
TOGETHER = 130.0  # seconds for all of them


def first() -> list[Check]:
    """What this is, and whether it can work at all."""
    return [Check("machine", others.machine, 30), Check("fused steps", kernel_checks.triton_there, 30)]


def beside() -> list[Check]:
    """Checks of correctness. Without a GPU kernels run in Triton's interpreter, if there is one."""
    kernels = [
        Check("norms and gates", kernel_checks.norms_and_gates, 60),
        Check("attention", kernel_checks.attention, 90),
        Check("recurrences", kernel_checks.recurrences, 60),
        *(
            Check(f"quantised {str(some).removeprefix('torch.')}", kernel_checks.quantised(some), 90)
            for some in kernel_checks.DTYPES
        ),
        Check("experts", expert_checks.right, 90),
    ]
    return [
        *(kernels if GPU or os.environ.get("TRITON_INTERPRET") == "1" else ()),
        Check("noise and choices", texts.noise_and_choices, 40),
        *(Check(f"text {kind}", texts.of_kind(kind), 90) for kind in texts.KINDS),
        *(Check(f"exact {kind}", texts.exact(kind), 90) for kind in texts.KINDS),
    ]


def after() -> list[Check]:
    """Checks that have the device to themselves, the most valuable first."""
    return [
        *(Check(f"pass {name}", passes.of_model(name), seconds) for name, seconds in passes.FIRST.items()),
        Check("scripted drafter", drafts.scripted, 40),
        Check("drafter passes", drafts.passes, 50),
        *(Check(f"pass {name}", passes.of_model(name), seconds) for name, seconds in passes.THEN.items()),
        Check("sampling", passes.sampling, 20),
        Check("products", passes.products, 25),
        Check("cost of experts", expert_checks.cost, 50),
        Check("starter", others.starter, 40),
        Check("transformers", others.transformers, 90),
    ]


class Book:
    """The file of results."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self.checks: dict[str, Any] = {}
        if path.exists():
            self.checks = json.loads(path.read_text())["checks"]
        self._planned = list(names)

    def note(self, name: str, result: dict[str, Any]) -> None:
        """Add a result; the file is whole at every moment."""
        self.checks[name] = result
        scratch = self._path.with_suffix(".part")
        scratch.write_text(json.dumps({"planned": self._planned, "checks": self.checks}, indent=1))
        os.replace(scratch, self._path)
        words = "ok" if result["ok"] else f"FAIL {result['error']}"
        print(f"{name}: {result['seconds']:.1f} s {words}"[:400], flush=True)


def run(check: Check, limit: float) -> dict[str, Any]:
    """One check, stopped after its time or the `limit`."""
    figures: Figures = {}

    def stop(*_: object) -> None:
        raise TooLongError(f"stopped after {seconds:.0f} s")

    seconds = max(1.0, min(check.seconds, limit))
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began, error = time.perf_counter(), ""
    try:
        check.run(figures)
        wait()
    except (Exception, TooLongError) as problem:  # noqa: BLE001 - each check stands alone; the failure is recorded and decides the exit code
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}".strip()[:600]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    result = {"ok": not error, "seconds": round(time.perf_counter() - began, 2), **figures}
    return {**result, "error": error} if error else result


def alive() -> bool:
    """Whether the device still works after a failure."""
    try:
        wait()
        free()
        return bool((DEVICE.type == "cpu") or int(others.two()) == 2)
    except RuntimeError:
        return False


def run_beside(checks: Sequence[Check], book: Book, ends: float, most: int) -> None:
    """Checks as processes, so many at once, with two threads each."""
    waiting, running = list(checks), {}
    few = {**os.environ, "OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting and len(running) < most:
                check = waiting.pop(0)
                path, limit = Path(scratch) / f"{len(waiting)}.json", ends - time.time()
                command = [sys.executable, __file__, str(path), "--limit", f"{limit:.0f}", "--one", check.name]
                process = subprocess.Popen(command, env=few, stdout=subprocess.DEVNULL)
                running[check.name] = path, process, time.time() + max(0, min(limit, check.seconds)) + 30
            for name, (path, process, last) in list(running.items()):
                if process.poll() is None and time.time() < last:
                    continue
                process.kill()
                process.wait()
                del running[name]
                lost = {"ok": False, "seconds": 0.0, "error": f"its process ended with {process.returncode}"}
                book.note(name, json.loads(path.read_text())["checks"][name] if path.exists() else lost)
            time.sleep(0.05)


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=400)
    parser.add_argument("--only", default="", help="words; checks whose names contain one of them are run")
    parser.add_argument("--beside", type=int, default=BESIDE if GPU else 0)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)  # of a run that goes on
    return parser.parse_args()


def main() -> int:
    """Run what is asked for. Exit code 1 if something failed."""
    asked = options()
    ends = asked.ends or time.time() + asked.limit
    words = asked.only.split()
    plan = [[c for c in some if not words or any(w in c.name for w in words)] for some in (first(), beside(), after())]
    if asked.one:
        plan = [[], [], [check for check in itertools.chain(*plan) if check.name == asked.one]]
    book = Book(asked.out, [check.name for check in itertools.chain(*plan)])
    for number, some in enumerate(plan):
        left = [check for check in some if check.name not in book.checks]
        if number == 1 and asked.beside:
            run_beside(left, book, min(ends, time.time() + TOGETHER), asked.beside)
            continue
        for check in left:
            if ends - time.time() < 3:
                break
            book.note(check.name, run(check, ends - time.time()))
            if book.checks[check.name]["ok"]:
                free()
            elif not alive():
                print("the device is lost; going on in a new process", flush=True)
                again = [str(asked.out), "--ends", str(ends), "--only", asked.only, "--beside", str(asked.beside)]
                os.execv(sys.executable, [sys.executable, __file__, *again])
    return 0 if all(result["ok"] for result in book.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
