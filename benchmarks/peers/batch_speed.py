"""Answers made together against the same answers one after the other: total tokens/s and memory, plain and drafted.

    PYTHONPATH=tests/support python benchmarks/peers/batch_speed.py [--model starter] [--dtype auto] [--quantize auto]
        [--at-once 1,4,16,64] [--drafters none,suffix] [--answers 64] [--tokens 128] [--repeats 1] [--prompts FILE] [--out FILE]

Set GOMP_SPINCOUNT=10000 and KMP_BLOCKTIME=1 as the app does: on a busy machine threads that spin hold up those that work.

Greedy. All rows are the same answers: to the bundled prompts, as often as it takes for `--answers`, each up to its own end or
`--tokens`. `alone` makes one after the other by `generate`. Per row: tokens of all answers over the whole time; the same without
the time in which prompts are read, which is no shorter together; tokens of a pass; the states that are kept at once at most, and
how much the process grew at its largest. In fp32 the texts are the same as alone, in other dtypes a near-tie may fall the other
way.

Prints a Markdown table; everything that was measured goes to FILE as JSON (batch_speed.json unless told).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import toys

from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    Event,
    Generate,
    Message,
    ModelChoice,
    Report,
    Sampling,
    Step,
)
from outrider.core.model.batched import state_bytes
from outrider.core.session.batch import room
from outrider.core.session.engine import Engine


class Peak:
    """How much this process grew, where the system tells."""

    def __init__(self) -> None:
        self._before = self._mark("VmRSS:")
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._before = 0

    @staticmethod
    def _mark(name: str) -> int:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)

    def grown(self) -> int:
        """Bytes beyond the beginning, at most."""
        return self._mark("VmHWM:") - self._before if self._before else 0


def requests(options: argparse.Namespace, count: int, drafter: str) -> list[Generate]:
    """So many of the prompts, again from the first where these are too few."""
    model = ModelChoice(model=options.model, dtype=options.dtype, quantize=options.quantize, device="cpu")
    data = options.prompts or files("outrider.assets") / "bench_prompts.jsonl"
    turns = [json.loads(line)["turns"][0] for line in data.read_text("utf-8").splitlines() if line.strip()]
    sampling = Sampling(temperature=0.0, max_tokens=options.tokens, seed=0)
    return [
        Generate(
            number, model, messages=[Message("user", text)], sampling=sampling, drafter=DrafterChoice(name=drafter)
        )
        for number, text in enumerate(islice(cycle(turns), count))
    ]


def alone(engine: Engine, asked: list[Generate]) -> tuple[list[Report], dict[str, Any]]:
    """One after the other."""
    began, peak, reports = time.perf_counter(), Peak(), []
    for request in asked:
        engine.forget()
        reports.append(engine.generate(request, lambda event: None, toys.Still()))
    whole = time.perf_counter() - began
    return reports, figures(reports, whole, sum(report.passes for report in reports)) | {"grown": peak.grown()}


def together(engine: Engine, asked: list[Generate], at_once: int) -> tuple[list[Report], dict[str, Any]]:
    """So many at once."""
    passes = 0
    seen: set[int] = set()  # answers of the pass at hand

    def hear(event: Event) -> None:
        nonlocal passes
        if isinstance(event, Step) and event.seq:
            if event.request in seen or not seen:
                passes += 1
                seen.clear()
            seen.add(event.request)
        elif isinstance(event, Done):  # told between passes
            seen.clear()

    began, peak = time.perf_counter(), Peak()
    reports = engine.generate_many(asked, hear, toys.Still(), at_once)
    made = figures(reports, time.perf_counter() - began, passes) | {"grown": peak.grown()}
    assert engine.model is not None
    target = engine.model.cache.target
    sizes = [state_bytes(target.decoder, room(engine.order(engine.model, one, 0.0), target)) for one in asked]
    return reports, made | {"states": sum(sorted(sizes, reverse=True)[:at_once])}


def figures(reports: list[Report], whole: float, passes: int) -> dict[str, Any]:
    tokens = sum(len(report.token_ids) for report in reports)
    proposed = sum(report.proposed for report in reports)
    prompts = sum(report.timing.prefill_s for report in reports)
    return {
        "tokens": tokens,
        "seconds": whole,
        "prompts_s": prompts,
        "tokens_per_second": tokens / whole,
        "decoded_per_second": (tokens - len(reports)) / (whole - prompts),
        "passes": passes,
        "tokens_per_pass": (tokens - len(reports)) / max(1, passes),
        "acceptance": sum(report.accepted for report in reports) / proposed if proposed else None,
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every drafter and number at once, as often as asked, each time with another drafter first."""
    engine, found = Engine(), []
    counts, drafters = [int(part) for part in options.at_once.split(",")], options.drafters.split(",")
    engine.generate_many(requests(options, 2, "none"), lambda event: None, toys.Still())  # kernels, allocator
    engine.generate(requests(options, 1, "none")[0], lambda event: None, toys.Still())
    for repeat in range(options.repeats):
        for drafter in drafters[repeat % len(drafters) :] + drafters[: repeat % len(drafters)]:
            asked = requests(options, options.answers, drafter)
            want, made = alone(engine, asked)
            found.append({"drafter": drafter, "at_once": 0, "repeat": repeat, **made})
            print(f"{drafter}, alone: {made['tokens_per_second']:.1f} tokens/s", flush=True)
            for count in counts:
                got, made = together(engine, asked, count)
                same = sum(one.token_ids == other.token_ids for one, other in zip(got, want, strict=True))
                found.append({"drafter": drafter, "at_once": count, "repeat": repeat, "same": same, **made})
                print(f"{drafter}, {count} at once: {made['tokens_per_second']:.1f} tokens/s", flush=True)
    return found


def table(found: list[dict[str, Any]]) -> list[str]:
    """One line for each drafter and number at once, its best repeat; ratios are to `alone` of the same drafter."""
    heads = ("drafter", "at once", "tokens/s", "x alone", "tokens/s without prompts", "x alone", "tokens a pass")
    heads += ("accepted", "states MB", "grown MB", "same text")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in found:
        key = row["drafter"], row["at_once"]
        if key not in best or row["tokens_per_second"] > best[key]["tokens_per_second"]:
            best[key] = row
    for (drafter, count), row in best.items():
        base = best[drafter, 0]
        cells = [drafter, str(count) if count else "alone"]
        for name in ("tokens_per_second", "decoded_per_second"):
            cells += [f"{row[name]:.1f}", f"{row[name] / base[name]:.2f}"]
        cells += [f"{row['tokens_per_pass']:.2f}", "" if row["acceptance"] is None else f"{row['acceptance']:.0%}"]
        cells += [f"{row['states'] / 1e6:.0f}" if "states" in row else "", f"{row['grown'] / 1e6:.0f}"]
        cells.append(str(row.get("same", "")))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="starter")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--at-once", default="1,4,16,64")
    parser.add_argument("--drafters", default="none,suffix")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--out", type=Path, default=Path("batch_speed.json"))
    options = parser.parse_args()
    found = measure(options)
    asked = {key: str(value) for key, value in vars(options).items()}
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()}
    options.out.write_text(json.dumps({"options": asked, "machine": machine, "measured": found}, indent=1))
    print("\n".join(["", *table(found)]))


if __name__ == "__main__":
    main()
