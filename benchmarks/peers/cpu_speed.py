"""Decoding on this CPU: our forms of one model, transformers and llama.cpp on the same file, in one run.

    python benchmarks/peers/cpu_speed.py [--model starter | MODEL.gguf] [--transformers PYTHON]
        [--llama PYTHON] [--draft MODEL.gguf] [--forms fp32,bf16,int8,int4,stored] [--threads 1,2] [--tokens 96] [--repeats 5]
        [--out FILE]

`--transformers` and `--llama` are interpreters of environments with transformers and with xllamacpp; without them these rows
are left out. Every measurement is a process of its own (`cpu_parts.py`), all in rotating order, so that all see the same
noise; the table has medians. int8 is made from the expanded weights (four bytes each, on disk for the time of the run), the
other forms from the file. With `--draft` a smaller model drafts in each form, beside plain answers of the same process.

Columns: `products` are the model's matrices back to back, `beside them` what a pass of one row takes more, `round` a plain
round of the engine, `host` what it and the loop around it take beyond the pass; `share of reading`: bytes of the matrices times
tokens/s, of the speed at which a large buffer is read with as many threads.

Writes a Markdown table and ratios to stdout, everything that was measured as JSON to FILE (cpu_speed.json unless told).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PARTS = Path(__file__).resolve().parent / "cpu_parts.py"
FORMS = ("fp32", "bf16", "int8", "int4", "stored")
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "10000",
    "KMP_BLOCKTIME": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}  # as the app's
ROWS = ("1", "2", "4", "8", "16")


class Row(NamedTuple):
    """What is measured, and at how many threads."""

    name: str
    threads: int


Found = dict[Row, list[dict[str, Any]]]


def child(command: Sequence[str]) -> dict[str, Any]:
    """The JSON that a process prints last; ends the run if it fails."""
    path = os.pathsep.join(filter(None, (str(PARTS.parents[1] / "support"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


def commands(options: argparse.Namespace, folder: Path) -> dict[Row, list[str]]:
    """Every measurement at every number of threads."""
    made: dict[Row, list[str]] = {}
    ours = [sys.executable, str(PARTS)]
    for threads in map(int, options.threads.split(",")):
        tail = [str(threads), str(options.tokens)]
        for form in options.forms.split(","):
            draft = [options.draft, str(options.draft_tokens)] if options.draft else []
            model = str(folder) if form == "int8" else options.model  # a file with fewer bits would keep them
            made[Row(form, threads)] = [*ours, "ours", model, *tail, form, *draft]
        if options.transformers:
            made[Row("transformers bf16", threads)] = [options.transformers, str(PARTS), "theirs", str(folder), *tail]
        if options.llama:
            made[Row("llama.cpp", threads)] = [options.llama, str(PARTS), "llama", options.path, *tail]
        made[Row("memory", threads)] = [*ours, "memory", "", *tail]
    return made


def measure(made: dict[Row, list[str]], repeats: int) -> Found:
    """All of them, so many times; each time another one comes first."""
    found: Found = {row: [] for row in made}
    names = list(made)
    for repeat in range(repeats):
        for row in names[repeat % len(names) :] + names[: repeat % len(names)]:
            found[row].append(child(made[row]))
            print(f"{repeat + 1}/{repeats} {row.name}, {row.threads} threads", file=sys.stderr, flush=True)
    return found


# ---------------------------------------------------------------------------------------------------- telling


def middle(runs: Sequence[dict[str, Any]], *keys: str) -> float | None:
    """Median over all runs of a figure; None where there is none."""
    values = []
    for run in runs:
        value: Any = run
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values.append(value)
    return statistics.median(values) if values else None


def best(found: Found, name: str, *keys: str) -> float | None:
    """The largest median over numbers of threads."""
    values = [middle(runs, *keys) for row, runs in found.items() if row.name == name]
    return max((value for value in values if value is not None), default=None)


def shown(value: float | None, digits: int = 1) -> str:
    """A cell."""
    return "" if value is None else f"{value:.{digits}f}"


def table(found: Found) -> list[str]:
    """One line for each form and number of threads."""
    heads = ("what", "threads", "tokens/s", "range", "MB read", *(f"{rows} rows ms" for rows in ROWS))
    heads += ("products ms", "beside them ms", "round ms", "host ms", "GB/s", "share of reading", "x drafted")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row, runs in found.items():
        if row.name == "memory":
            continue
        speeds = [run["tokens_per_second"] for run in runs]
        speed, read = statistics.median(speeds), middle(runs, "read_mb")
        reading = middle(found[Row("memory", row.threads)], "read_gb_per_s")
        rate = None if read is None else read * speed / 1e3
        cells = [row.name, str(row.threads), shown(speed), f"{min(speeds):.1f} to {max(speeds):.1f}", shown(read, 0)]
        cells += [shown(middle(runs, "pass_ms", rows), 2) for rows in ROWS]
        cells += [shown(middle(runs, key), 2) for key in ("products_ms", "beside_ms", "round_ms", "host_ms")]
        cells += [shown(rate), "" if rate is None or not reading else f"{100 * rate / reading:.0f} %"]
        cells.append(shown(middle(runs, "drafted", "speedup"), 2))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def told(found: Found) -> list[str]:
    """Memory, and the ratios that goals are stated in."""
    lines = []
    for row, runs in found.items():
        if row.name == "memory":
            copy, read = middle(runs, "copy_gb_per_s"), middle(runs, "read_gb_per_s")
            lines.append(
                f"- memory, {row.threads} threads: read {shown(read)} GB/s, copy {shown(copy)} GB/s (both ways)"
            )
    for ours, other in (("bf16", "transformers bf16"), ("int4", "llama.cpp"), ("stored", "llama.cpp")):
        one, two = best(found, ours, "tokens_per_second"), best(found, other, "tokens_per_second")
        if one and two:
            lines.append(f"- {ours} to {other}, each at its best number of threads: {one / two:.2f}")
    for row, runs in found.items():
        one, many = middle(runs, "pass_ms", "1"), middle(runs, "pass_ms", "16")
        if one and many:
            lines.append(f"- {row.name}, {row.threads} threads: 16 rows cost {many / one:.2f} of one")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="starter", help="`starter`, or the path of a GGUF file")
    parser.add_argument("--draft", help="path of a smaller model that drafts")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--transformers", help="python of an environment with transformers and this project")
    parser.add_argument("--llama", help="python of an environment with xllamacpp")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--threads", default=",".join(str(n + 1) for n in range(os.cpu_count() or 1)))
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("cpu_speed.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        options.path = child([sys.executable, str(PARTS), "path", options.model])["path"]
        folder = Path(scratch) / "model"
        if options.transformers or "int8" in options.forms.split(","):
            child([sys.executable, str(PARTS), "folder", options.model, str(folder)])
        found = measure(commands(options, folder), options.repeats)
    asked = {key: str(value) for key, value in vars(options).items()}
    rows = [{"what": row.name, "threads": row.threads, "runs": runs} for row, runs in found.items()]
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }
    options.out.write_text(json.dumps({"options": asked, "machine": machine, "measured": rows}, indent=1))
    print("\n".join([*table(found), "", *told(found)]))


if __name__ == "__main__":
    main()
