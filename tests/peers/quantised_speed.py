"""Plain decoding of one GGUF on this CPU: kept as stored, rounded to int8 and int4, expanded to bf16, and in llama.cpp.

    python tests/peers/quantised_speed.py MODEL.gguf [--llama PYTHON] [--threads 2] [--tokens 96] [--repeats 5]

PYTHON is the interpreter of an environment with xllamacpp. Every measurement is a process of its own, in turn, so that all
see the same noise. Prints medians in tokens per second (first token excluded), the memory of the weights, the time to load,
the peak of memory while loading, and ratios to bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FORMS = {"as stored": "auto", "int8": "int8", "int4": "int4", "bf16": "none"}


def ours(path: str, form: str, threads: int, tokens: int) -> dict[str, Any]:
    """One measurement, in this process."""
    import torch
    from identity import Undisturbed
    from llama_speed import PROMPT

    from outrider.core.engine import Engine
    from outrider.core.protocol import DrafterChoice, Generate, ModelChoice, Sampling

    torch.set_num_threads(threads)
    engine = Engine()
    choice = ModelChoice(model=path, device="cpu", dtype="bf16", quantize=form, context=2048, threads=threads)
    model = engine.load(choice, 1, lambda event: None, lambda: False)
    sampling = Sampling(temperature=0, max_tokens=tokens)
    request = Generate(1, choice, prompt=PROMPT, sampling=sampling, drafter=DrafterChoice(name="none"))
    report = engine.generate(request, lambda event: None, Undisturbed())
    return {
        "tokens_per_second": report.tokens_per_second,
        "megabytes": model.talk.target.decoder.weights.nbytes / 1e6,
        "load_s": model.loaded.load_s,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def child(command: list[str]) -> dict[str, Any]:
    """The JSON that a process prints last."""
    environment = {**os.environ, "GOMP_SPINCOUNT": "10000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--llama", help="python of an environment with xllamacpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.form:
        print(json.dumps(ours(options.model, options.form, options.threads, options.tokens)))
        return
    tail = ["--threads", str(options.threads), "--tokens", str(options.tokens)]
    commands = {name: [sys.executable, __file__, options.model, *tail, "--form", form] for name, form in FORMS.items()}
    if options.llama:
        numbers = [str(options.threads), str(options.tokens)]
        commands["llama.cpp"] = [options.llama, str(HERE / "llama_speed.py"), options.model, *numbers]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _ in range(options.repeats):
        for name, command in commands.items():
            found[name].append(child(command))
    base = statistics.median(row["tokens_per_second"] for row in found["bf16"])
    for name, rows in found.items():
        speeds = [row["tokens_per_second"] for row in rows]
        line = f"{name:10} {statistics.median(speeds):6.1f} tokens/s ({min(speeds):.1f} to {max(speeds):.1f})"
        line += f"  x{statistics.median(speeds) / base:.2f}"
        if "megabytes" in rows[0]:
            peak = max(row["peak"] for row in rows)
            line += f"  weights {rows[0]['megabytes']:.0f} MB, peak {peak:.0f} MB"
            line += f", load {statistics.median(row['load_s'] for row in rows):.1f} s"
        print(line)


if __name__ == "__main__":
    main()
