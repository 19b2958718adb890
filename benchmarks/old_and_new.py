"""CPU cost of two checkouts: the same answers by the old and the new engine in turns, at one thread.

    python benchmarks/old_and_new.py --old PATH [--new PATH] [--forms toy,bf16,stored,int8]
        [--drafters none,prompt_lookup,auto,eagle] [--pairs 12] [--processes 3] [--tokens 64] [--json FILE]

Each side is a process of its own, `python -m outrider.core.service` with that checkout on its path and a home of its own, and
answers greedily. Answers are made in pairs, old and new by turns first, so that both see the same noise; what both cost is set
off within each pair. The pairs of a form are spread over several processes, since `auto` measures the machine when it loads a
model and may come to other choices in the next process. The first answer of a process with each drafter is not counted.

CPU ms a token: processor time of the engine process from the first token to the last. Host ms a round: the median of
`host_ms` of its `Step` frames, the time in which neither a draft was made nor one verified. Ratios are new over old, the
median over all pairs with an interval of at least 95 % from their order (binomial, no assumption on their law). Frames are
read and written here as plain maps, so no code of either checkout runs in this process. Linux only: it reads the clock of
another process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

ROOT = Path(__file__).resolve().parents[1]
TREES = ("core", "plugins", "app", "assets")
# What other checkouts the interpreter knows is taken from its path, so that a module that a side does not have stays missing.
START = """
import os, runpy, sys
own = os.environ["PYTHONPATH"].split(os.pathsep)
sys.path[:] = [*own, *(path for path in sys.path if path not in own and not os.path.isdir(os.path.join(path, "outrider")))]
runpy.run_module("outrider.core.service", run_name="__main__", alter_sys=True)
"""
FORMS: dict[str, dict[str, Any]] = {
    "toy": {"dtype": "fp32", "quantize": "none"},  # its model is written for the run
    "bf16": {"model": "starter", "dtype": "bf16", "quantize": "none"},
    "stored": {"model": "starter"},
    "int8": {"model": "starter", "quantize": "int8"},
}
DRAFTERS = ("none", "prompt_lookup", "auto", "eagle")
TRAINED = ("eagle",)  # of these there is none for the toy
LONGER = {"toy": 8}  # times as many tokens, where they take little time
LIBRARY = ("class Inventory:", "    def total(self):", "        return sum(item.count for item in self.items)")
PROMPTS = (
    "Why are there two high tides a day and not one?",
    "Rename the method `total` to `count_all` in this class and give the whole class back.\n\n" + "\n".join(LIBRARY),
    "Write a Python function that gives the median of a list of numbers, with a docstring.",
    "Quote this sentence three times, word for word: The lighthouse was built in 1871, after three ships had been lost.",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one answer took."""

    cpu_ms: float  # a token
    host_ms: float  # a round, as the next ones
    draft_ms: float
    verify_ms: float
    tokens: list[int]


class Engine:
    """The engine process of one checkout."""

    def __init__(self, root: Path, scratch: Path, builds: Path, models: Path) -> None:
        scratch.mkdir(parents=True)
        self._log = scratch / "engine.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(root / tree) for tree in TREES),
            "OUTRIDER_HOME": str(scratch / "home"),
            "OUTRIDER_MODELS": str(models),
            "OUTRIDER_BUILDS": str(builds),
            "OMP_NUM_THREADS": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self._clock = (~self._process.pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel
        self._number = 0

    def answer(self, model: dict[str, Any], drafter: str, prompt: str, tokens: int) -> Cost:
        """One greedy answer. Ends the run if it fails."""
        self._number += 1
        request = {
            "type": "Generate",
            "id": self._number,
            "model": {"device": "cpu", "threads": 1, "context": 1024, **model},
            "messages": [{"role": "user", "content": prompt}],
            "sampling": {"temperature": 0.0, "seed": 1, "max_tokens": tokens},
            "drafter": {"name": drafter},
        }
        assert self._process.stdin is not None
        body = msgspec.msgpack.encode(request)
        self._process.stdin.write(struct.pack("<I", len(body)) + body)
        self._process.stdin.flush()
        steps, times = [], []
        for frame in self._frames():
            if frame["type"] == "Step":
                times.append(time.clock_gettime(self._clock))
                steps.append(frame)
            elif frame["type"] == "Failed":
                sys.exit(f"{drafter}: {frame['message']} {frame.get('hint', '')}")
            elif frame["type"] == "Done":
                break
        ids = [token["id"] for step in steps for token in step["tokens"]]
        rounds = steps[1:]
        if not rounds:
            sys.exit(f"An answer to {prompt!r} ended with its first token.")
        given = len(ids) - len(steps[0]["tokens"])
        host, draft, verify = (
            statistics.median(step[name] for step in rounds) for name in ("host_ms", "draft_ms", "verify_ms")
        )
        return Cost(1e3 * (times[-1] - times[0]) / given, host, draft, verify, ids)

    def _frames(self) -> Iterator[dict[str, Any]]:
        stream = self._process.stdout
        assert stream is not None
        while len(head := stream.read(4)) == 4:
            yield msgspec.msgpack.decode(stream.read(struct.unpack("<I", head)[0]))
        sys.exit(f"The engine ended:\n{self._log.read_text('utf-8', 'replace')[-3000:]}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@dataclass(slots=True)
class Row:
    """Pairs of one form and drafter."""

    form: str
    drafter: str
    old: list[Cost]
    new: list[Cost]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of values, counted from both ends, that holds the median in at least 95 % of all samples."""
    ordered, n = sorted(values), len(values)
    cut, tail = 0, 0.0
    while cut < n // 2 and tail + math.comb(n, cut) / 2**n <= 0.025:
        tail += math.comb(n, cut) / 2**n
        cut += 1
    return (ordered[cut - 1], ordered[-cut]) if cut else (-math.inf, math.inf)


def ratio(row: Row, name: str) -> str:
    """Median and interval of new over old."""
    pairs = zip(row.old, row.new, strict=True)
    ratios = [getattr(new, name) / max(1e-9, getattr(old, name)) for old, new in pairs]
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def table(rows: Sequence[Row]) -> str:
    """Markdown, a line for each form and drafter."""
    heads = [
        "form",
        "drafter",
        "pairs",
        "CPU ms a token",
        "new",
        "new / old",
        "host ms a round",
        "new",
        "new / old",
        "same text",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        cells = [row.form, row.drafter, str(len(row.old))]
        for name in ("cpu_ms", "host_ms"):
            cells += [f"{statistics.median(getattr(cost, name) for cost in side):.2f}" for side in (row.old, row.new)]
            cells.append(ratio(row, name))
        same = sum(old.tokens == new.tokens for old, new in zip(row.old, row.new, strict=True))
        lines.append([*cells, f"{same} of {len(row.old)}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def measure(options: argparse.Namespace, form: str, scratch: Path) -> list[Row]:
    """All pairs of one form."""
    model = {**FORMS[form]}
    if form == "toy":
        import small_model  # and with it torch, for this alone

        model["model"] = str(small_model.write(scratch / "toy"))
    drafters = [name for name in options.drafters.split(",") if form != "toy" or name not in TRAINED]
    rows = [Row(form, drafter, [], []) for drafter in drafters]
    tokens = options.tokens * LONGER.get(form, 1)
    each = math.ceil(options.pairs / options.processes)
    for process in range(options.processes):
        sides = [
            Engine(root, scratch / f"{form}-{process}-{name}", scratch / f"builds-{name}", options.models)
            for name, root in (("old", options.old), ("new", options.new))
        ]
        for row in rows:
            for pair in range(1 + each):
                prompt = PROMPTS[(process * each + pair) % len(PROMPTS)]
                costs: dict[int, Cost] = {}
                for side in (0, 1) if (process + pair) % 2 else (1, 0):
                    costs[side] = sides[side].answer(model, row.drafter, prompt, tokens)
                if pair:
                    row.old.append(costs[0])
                    row.new.append(costs[1])
            print(f"{form} {row.drafter}: {len(row.old)} pairs, {ratio(row, 'cpu_ms')}", file=sys.stderr, flush=True)
        for side in sides:
            side.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--pairs", type=int, default=12, help="of each form and drafter; at least 10 for an interval")
    parser.add_argument("--processes", type=int, default=3, help="of each side, that the pairs are spread over")
    parser.add_argument("--tokens", type=int, default=64)
    library = Path(platformdirs.user_data_dir("outrider", appauthor=False)) / "models"
    parser.add_argument("--models", type=Path, default=library, help="the library that has the starter")
    parser.add_argument("--json", type=Path, help="write all costs to this file too")
    options = parser.parse_args()
    options.old, options.new = options.old.resolve(), options.new.resolve()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="outrider-old-and-new-") as scratch:
        for form in options.forms.split(","):
            rows += measure(options, form, Path(scratch))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]), "utf-8")


if __name__ == "__main__":
    main()
