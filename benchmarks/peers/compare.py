"""The same prompts and weights through Outrider, transformers and llama.cpp, in turn: one table for each category.

    PYTHONPATH=tests/support python benchmarks/peers/compare.py [--model starter | MODEL.gguf] [--draft SMALLER.gguf]
        [--transformers PYTHON] [--llama PYTHON] [--drafters auto,prompt_lookup,suffix,lookahead] [--llama-modes A,B]
        [--prompts FILE.jsonl] [--categories A,B] [--limit N] [--tokens 128] [--threads N] [--repeats 1]
        [--work FOLDER] [--out FILE]

Every engine is a process that stays alive (of llama.cpp one for each mode, which is fixed when it starts), fed through a pipe;
of every turn of every prompt each gives its answer before the next turn comes, another one first each time, so that all see
the same noise. All are greedy, get the same token ids and threads, and stop at the same limit; the history of a later turn is
Outrider's plain answer. With more than one repeat all processes start anew, as some of llama.cpp's modes remember answers.
`--draft` adds draft_model and composite, transformers' assistant and llama.cpp's draft mode. `--transformers` and `--llama` are
interpreters of environments with transformers and with xllamacpp; without them these engines are left out. FOLDER takes the
model as config and safetensors in fp32, four bytes a weight, for transformers, which computes in bf16.

Speeds are of decoding, the first token left out, as totals (sum of tokens over sum of seconds) and as the median over prompts;
`of plain`: ratio to the same engine's plain decoding with a 95 % interval over prompts; `auto to it`: Outrider's `auto` over
this row. `whole` has the prompt's own time. `differ`: texts unlike the engine's own plain one, and unlike Outrider's plain one.
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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cpu_speed import ENVIRONMENT, PARTS, child

from outrider.app.commands import _prompts
from outrider.core.base.protocol import BenchPrompt
from outrider.core.measure.figures import interval, ratio

ENGINES = PARTS.with_name("compare_engines.py")
LLAMA_MODES = ("lookup", "ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache")
CONTEXT = 4096
WARM_UPS = 3  # answers that do not count
WARM_UP = [["user", "Write this line four times: one two three four, one two three four."]]
GOALS = (("outrider", "plain"), ("outrider", "auto"))


class Who(NamedTuple):
    """One row of a table."""

    engine: str
    mode: str


class Engine:
    """A process that answers."""

    def __init__(self, python: str, kind: str, settings: dict[str, Any]) -> None:
        self.name = f"{kind} {settings.get('mode', '')}".strip()
        path = os.pathsep.join(filter(None, (str(PARTS.parents[1] / "support"), os.environ.get("PYTHONPATH"))))
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [python, str(ENGINES), kind, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        )

    def heard(self) -> dict[str, Any]:
        """The next line; ends the run if the process did."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            sys.exit(f"{self.name} ended with {self._process.wait()}:\n{self._log.read()[-3000:]}")
        return json.loads(line)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.heard()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


# ---------------------------------------------------------------------------------------------------- measuring


def started(options: argparse.Namespace) -> dict[Who, Engine]:
    """All engines by row, loaded one after the other."""
    base = {"threads": options.threads, "context": CONTEXT, "model": options.model, "draft": options.draft}
    base |= {"path": options.path, "folder": options.folder, "draft_folder": options.draft_folder}
    made: dict[Who, Engine] = {}
    ours = Engine(sys.executable, "outrider", base)
    ours.heard()
    drafters = options.drafters.split(",") + (["draft_model", "composite"] if options.draft else [])
    made |= {Who("outrider", mode): ours for mode in ("plain", *drafters)}
    if options.transformers:
        theirs = Engine(options.transformers, "transformers", base)
        theirs.heard()
        modes = ("plain", "prompt_lookup", *(("assistant",) if options.draft else ()))
        made |= {Who("transformers", mode): theirs for mode in modes}
    if options.llama:
        for mode in ("plain", *options.llama_modes.split(","), *(("draft",) if options.draft else ())):
            made[Who("llama.cpp", mode)] = Engine(options.llama, "llama", base | {"mode": mode})
            made[Who("llama.cpp", mode)].heard()
    return made


def measure(
    engines: dict[Who, Engine], prompts: Sequence[BenchPrompt], tokens: int, repeat: int
) -> list[dict[str, Any]]:
    """Every turn by everybody, warmed up; rows with who, prompt, category, turn and the answer."""
    names, ours = list(engines), engines[Who("outrider", "plain")]
    known = ours.ask({"messages": WARM_UP})
    for who, engine in [*engines.items()] * WARM_UPS:
        engine.ask({"mode": who.mode, "messages": WARM_UP, "tokens": 16, **known})
    rows, began, asked = [], time.perf_counter(), 0
    for number, prompt in enumerate(prompts):
        history: list[list[str]] = []
        for turn, text in enumerate(prompt.turns):
            history = [*history, ["user", text]]
            question = {"messages": history, "tokens": tokens, **ours.ask({"messages": history})}
            shift = (asked + repeat) % len(names)
            made = {who: engines[who].ask({"mode": who.mode, **question}) for who in names[shift:] + names[:shift]}
            place = {"prompt": prompt.id, "category": prompt.category, "turn": turn, "repeat": repeat}
            rows += [{"engine": who.engine, "mode": who.mode, **place, **made[who]} for who in names]
            history = [*history, ["assistant", made[Who("outrider", "plain")]["text"]]]
            asked += 1
        spent = time.perf_counter() - began
        left = spent / (number + 1) * (len(prompts) - number - 1)
        print(f"{number + 1}/{len(prompts)} {prompt.id}, {left / 60:.1f} min left", file=sys.stderr, flush=True)
    return rows


# ---------------------------------------------------------------------------------------------------- telling


def of(rows: Sequence[dict[str, Any]], who: Who) -> list[dict[str, Any]]:
    """The answers of one row of the table."""
    return [row for row in rows if (row["engine"], row["mode"]) == who]


def sums(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Tokens and seconds of decoding by prompt."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        tokens, seconds = found.get(row["prompt"], (0.0, 0.0))
        found[row["prompt"]] = tokens + max(0, row["tokens"] - row["first"]), seconds + row["decode_s"]
    return found


def speed(rows: Sequence[dict[str, Any]]) -> float:
    """Tokens per second of decoding, as a total."""
    tokens, seconds = (sum(column) for column in zip(*sums(rows).values(), strict=True))
    return tokens / seconds if seconds else 0.0


def over(one: float, other: float) -> str:
    """A ratio as it is shown; nothing where there is none."""
    return f"{one / other:.2f}" if other else ""


def versus(rows: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> str:
    """The ratio of totals with its interval."""
    one, other = sums(rows), sums(plain)
    pairs = [(*one[prompt], *other[prompt]) for prompt in one]
    between = interval(pairs)
    return f"{ratio(pairs):.2f}" + (f" ({between[0]:.2f} to {between[1]:.2f})" if between else "")


def differ(rows: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> str:
    """How many texts are not those of the plain rows."""
    want = {(row["prompt"], row["turn"], row["repeat"]): row["text"].strip() for row in plain}
    unlike = sum(row["text"].strip() != want[row["prompt"], row["turn"], row["repeat"]] for row in rows)
    return f"{unlike} of {len(rows)}"


def table(title: str, rows: Sequence[dict[str, Any]], names: Sequence[Who]) -> list[str]:
    """One line for each engine and mode."""
    heads = ("engine", "mode", "tokens/s", "median", "of plain", "auto to it", "whole", "tokens", "differ", "from ours")
    lines = [f"### {title}", "", f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    auto, ours = of(rows, Who("outrider", "auto")), of(rows, Who("outrider", "plain"))
    for who in names:
        own, plain = of(rows, who), of(rows, Who(who.engine, "plain"))
        middle = statistics.median(tokens / seconds if seconds else 0.0 for tokens, seconds in sums(own).values())
        whole = sum(row["tokens"] for row in own) / sum(row["prefill_s"] + row["decode_s"] for row in own)
        cells = (*who, f"{speed(own):.1f}", f"{middle:.1f}", "" if who.mode == "plain" else versus(own, plain))
        cells += (over(speed(auto), speed(own)) if auto else "", f"{whole:.1f}")
        cells += (str(sum(row["tokens"] for row in own)), differ(own, plain), differ(own, ours))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def goals(rows: Sequence[dict[str, Any]], names: Sequence[Who], categories: Sequence[str]) -> list[str]:
    """Outrider's plain and `auto` over the plain and over the best row of each other engine, by category."""
    lines = []
    for category in categories:
        some = [row for row in rows if row["category"] == category]
        parts = []
        for engine in dict.fromkeys(who.engine for who in names if who.engine != "outrider"):
            speeds = {who.mode: speed(of(some, who)) for who in names if who.engine == engine}
            best = max(speeds, key=speeds.__getitem__)
            plain, auto = (speed(of(some, Who(*goal))) for goal in GOALS)
            parts.append(f"plain to {engine} plain {over(plain, speeds['plain'])}")
            parts.append(f"auto to its best ({best}) {over(auto, speeds[best])}")
        lines.append(f"- {category}: {', '.join(parts)}")
    return lines


def prepared(options: argparse.Namespace) -> None:
    """Where files lie, and the models as transformers reads them."""
    options.path = child([sys.executable, str(PARTS), "path", options.model])["path"]
    options.folder = options.draft_folder = None
    if options.transformers:
        for name, model in (("folder", options.path), ("draft_folder", options.draft)):
            if model:
                into = options.work / Path(model).stem
                if not (into / "config.json").exists():
                    child([sys.executable, str(PARTS), "folder", model, str(into)])
                setattr(options, name, str(into))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter", help="`starter`, or the path of a GGUF file")
    parser.add_argument("--draft", help="path of a smaller model with the same tokenizer")
    parser.add_argument("--transformers", help="python of an environment with transformers and this project")
    parser.add_argument("--llama", help="python of an environment with xllamacpp")
    parser.add_argument("--drafters", default="auto,prompt_lookup,suffix,lookahead")
    parser.add_argument("--llama-modes", default=",".join(LLAMA_MODES))
    parser.add_argument("--prompts", help="JSON lines as `outrider bench --prompts` reads them")
    parser.add_argument("--categories", default="")
    parser.add_argument("--limit", type=int, help="prompts of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "outrider-peers")
    parser.add_argument("--out", type=Path, default=Path("compare.json"))
    options = parser.parse_args()
    wanted = [word for word in options.categories.split(",") if word]
    prompts = _prompts.choose(_prompts.read(options.prompts), wanted, options.limit)
    prepared(options)
    rows: list[dict[str, Any]] = []
    names: list[Who] = []
    loads = [os.getloadavg()[0]]
    for repeat in range(options.repeats):
        engines = started(options)
        names = list(engines)
        rows += measure(engines, prompts, options.tokens, repeat)
        for engine in dict.fromkeys(engines.values()):
            engine.close()
    loads.append(os.getloadavg()[0])
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": loads}
    asked = {key: str(value) for key, value in vars(options).items()}
    options.out.write_text(json.dumps({"options": asked, "machine": machine, "rows": rows}, indent=1))
    categories = list(dict.fromkeys(prompt.category for prompt in prompts))
    print(f"load average {loads[0]:.1f} before, {loads[1]:.1f} after; {options.threads} threads\n")
    for category in categories:
        print("\n".join(table(category, [row for row in rows if row["category"] == category], names)))
    print("\n".join([*table("all", rows, names), *goals(rows, names, categories)]))


if __name__ == "__main__":
    main()
