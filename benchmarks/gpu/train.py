"""Drafters for the starter, trained on a GPU in minutes: answers once, then every method learns from the same ones.

    python train.py OUT_FOLDER [--methods eagle,dflash,medusa] [--seconds S] [--model PATH] [--step-tokens N] [--answers N]

Needs msgspec, platformdirs, tokenizers and jinja2 besides torch: as wheels in .whl/, see run.sh. The starter is taken from
.parts/ (packaging/split.sh) or from --model. OUT_FOLDER gets train.json and of each drafter METHOD.tar.part-00 and so on, each
small enough to be carried back: cat METHOD.tar.part-* | tar x. Without a GPU a toy is trained, so that the script is tested.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import others
from rig import DEVICE, GPU

from outrider.core.base.protocol import Message, ModelChoice, Notice, Progress, Train, TrainOrder, TrainPrompt
from outrider.core.session.engine import Engine
from outrider.core.train import run
from outrider.core.train.answers import Answers, Hooks, Manner, answer

PART = 15 << 20  # bytes of a file that comes back
DATA = 0.4  # share of the time in which prompts are answered
CHUNK = 512  # prompts between two looks at the clock
ROOT = Path(__file__).parents[2]


def prompts(count: int | None) -> list[TrainPrompt]:
    """The bundled ones."""
    lines = gzip.decompress((ROOT / "assets/outrider/assets/train_prompts.jsonl.gz").read_bytes()).splitlines()
    turns = (json.loads(line)["turns"] for line in lines[:count])
    return [TrainPrompt(messages=[Message("user", turn) for turn in some]) for some in turns]


def say(event: Any) -> None:
    """A line for a stage, a measurement or a notice."""
    if isinstance(event, Notice):
        print(event.text)
    elif isinstance(event, Progress) and ("tokens_per_pass" in event.figures or not event.done):
        print(f"  {event.phase} {event.done:.0f} of {event.total:.0f} {event.unit} {event.note} {event.figures or ''}")


def answered(
    engine: Engine, choice: ModelChoice, given: list[TrainPrompt], told: argparse.Namespace, into: Path
) -> tuple[int, dict[str, float]]:
    """Answer prompts until the time for that is over; how many, and figures."""
    began, answers = time.monotonic(), Answers(into)
    manner = Manner(seed=1, most=told.answer_tokens)
    number = 0
    while number < len(given) and time.monotonic() - began < DATA * told.seconds:
        some = dict(list(enumerate(given))[number : number + told.chunk])
        answer(engine, choice, some, manner, answers, Hooks(lambda *_: None, print, lambda: False))
        number += len(some)
    spent = time.monotonic() - began
    return number, {
        "texts": len(answers.kept),
        "tokens": answers.tokens,
        "tokens_per_s": round(answers.tokens / spent, 1),
    }


def trained(
    engine: Engine, choice: ModelChoice, given: list[TrainPrompt], order: TrainOrder, out: Path
) -> dict[str, Any]:
    """One method on answers that lie in its folder already."""
    request = Train(id=1, order=order, model=choice, prompts=given)
    found = run.run(engine, request, say, lambda: False)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(found["drafter"], order.method)
    whole = data.getvalue()
    for part in range(0, len(whole), PART):
        (out / f"{order.method}.tar.part-{part // PART:02d}").write_bytes(whole[part : part + PART])
    return {key: value for key, value in found.items() if key not in ("folder", "drafter", "place", "rival")}


def main() -> int:
    """All methods, one after the other; a failure of one spoils no other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", default="eagle,dflash,medusa")
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--answers", type=int)
    parser.add_argument("--answer-tokens", type=int, default=256 if GPU else 12)
    parser.add_argument("--step-tokens", type=int, default=2048 if GPU else 60)
    parser.add_argument("--chunk", type=int, default=CHUNK if GPU else 22)
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    began, engine = time.monotonic(), Engine()
    with tempfile.TemporaryDirectory() as scratch:
        model = told.model or others.joined(others.PARTS, Path(scratch)) or _toy(Path(scratch))
        if model is None:
            print("The starter is not there: packaging/split.sh FILE, or --model PATH", file=sys.stderr)
            return 2
        choice = ModelChoice(model=str(model), device=str(DEVICE))
        engine.load(choice, 0, lambda _: None, lambda: False)
        given = prompts(told.answers)
        data = Path(scratch) / "answers.jsonl"
        count, figures = answered(engine, choice, given, told, data)
        found: dict[str, Any] = {"device": str(DEVICE), "answers": figures, "methods": {}}
        print(figures)
        methods = told.methods.split(",")
        for number, method in enumerate(methods):
            left = (told.seconds - (time.monotonic() - began)) / (len(methods) - number)
            folder = Path(scratch) / method
            folder.mkdir()
            (folder / data.name).write_bytes(data.read_bytes())
            order = TrainOrder(
                method=method,
                folder=str(folder),
                budget_s=max(10.0, left),
                answer_tokens=told.answer_tokens,
                step_tokens=told.step_tokens,
                seed=1,
            )
            try:
                found["methods"][method] = trained(engine, choice, given[:count], order, told.out)
            except Exception as error:  # noqa: BLE001 - the other methods are trained all the same
                traceback.print_exc()
                found["methods"][method] = {"error": f"{type(error).__name__}: {error}"}
            (told.out / "train.json").write_text(json.dumps(found, indent=1))
            print(method, json.dumps(found["methods"][method]))
    return 1 if any("error" in one for one in found["methods"].values()) else 0


def _toy(scratch: Path) -> Path | None:
    if GPU:
        return None
    import toys

    return toys.checkpoint(scratch / "toy", layers=4, context=4096)


if __name__ == "__main__":
    sys.exit(main())
