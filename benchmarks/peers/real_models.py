"""Real GGUF models in fp32: greedy text from the GGUF and from its safetensors form, against transformers on the same weights.

    PYTHONPATH=tests/support python benchmarks/peers/real_models.py MODEL.gguf [MODEL.gguf ...] --work FOLDER [--tokens 48]

FOLDER takes the converted models (four bytes a weight). Prints every answer's beginning and where texts part, with the gap
between the two best logits there in one fp32 pass; a gap below 1e-4 is a tie. Exit code 1 if anything but ties differs.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

import starter
import torch
from identity import TIE, Undisturbed, gap, theirs

from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
from outrider.core.session.engine import Engine

QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "Write a Python function that reverses a string.",
    "Name three rivers in Europe.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    'def fibonacci(n):\n    """The n-th number."""\n',
    "The history of the bicycle begins in the early nineteenth century, when",
)


def request(choice: ModelChoice, question: str, chat: bool, sampling: Sampling) -> Generate:
    """A chat where the model has a template, else raw text."""
    plain = DrafterChoice(name="none")
    if chat:
        return Generate(1, choice, messages=[Message("user", question)], sampling=sampling, drafter=plain)
    return Generate(1, choice, prompt=question, sampling=sampling, drafter=plain)


def oracle(folder: Path, prompts: list[list[int]], tokens: int, eos: set[int]) -> list[list[int]]:
    """What transformers says."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [theirs(model, ids, tokens, eos) for ids in prompts]


def compare(model: Path, work: Path, tokens: int) -> int:
    """Number of differences that are no ties."""
    folder = work / model.stem
    if not (folder / "config.json").exists():
        starter.folder(folder, model=str(model))
    sampling = Sampling(temperature=0, max_tokens=tokens)
    made: dict[str, list[list[int]]] = {}
    prompts: list[list[int]] = []
    eos: set[int] = set()
    bad = 0
    for form, path in (("gguf", model), ("safetensors", folder)):
        engine = Engine()
        choice = ModelChoice(model=str(path), dtype="fp32", device="cpu", context=1024)
        loaded = engine.load(choice, 1, lambda event: None, lambda: False)
        asked = [request(choice, question, loaded.loaded.chat, sampling) for question in QUESTIONS]
        ids = [engine.prompt_ids(loaded, one) for one in asked]
        assert prompts in ([], ids), "the two forms make different prompts"
        prompts, eos = ids, set(loaded.tokenizer.eos_ids)
        reports = [engine.generate(one, lambda event: None, Undisturbed()) for one in asked]
        made[form] = [report.token_ids for report in reports]
        print(f"{model.stem}, {form}: {loaded.loaded.family}, {loaded.loaded.parameters / 1e6:.0f} M parameters")
        if form == "gguf":
            for question, report in zip(QUESTIONS, reports, strict=True):
                print(f"  {question[:40]!r}: {report.text[:90]!r}")
            continue
        del loaded
        want = oracle(folder, prompts, tokens, eos)
        for number, (ids, right) in enumerate(zip(prompts, want, strict=True)):
            for name, found in made.items():
                if found[number] == right:
                    continue
                at = next((i for i, (a, b) in enumerate(zip(found[number], right, strict=False)) if a != b), -1)
                close = gap(engine, ids + right[:at]) if at >= 0 else float("inf")
                bad += close >= TIE
                print(f"  prompt {number}, {name}: differs at token {at}, gap {close:.2e}")
        print(f"  {len(QUESTIONS)} prompts x {tokens} tokens compared with transformers, {bad} differences", flush=True)
        del engine
        gc.collect()
    return bad


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    sys.exit(any([compare(model, options.work, options.tokens) for model in options.models]))


if __name__ == "__main__":
    main()
