"""Plain decoding of the starter in bf16 on this CPU: ours and transformers', each at its best thread count, in one run.

    PYTHONPATH=tests/support python tests/peers/decode_speed.py [--tokens 64] [--repeats 5]

Prints medians in tokens per second (first token excluded) and the ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import starter
import torch
from identity import ours

from outrider.core.engine import Engine
from outrider.core.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling

PROMPT = "Explain in a few sentences how a bicycle stays upright when it moves."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    engine = Engine()
    choice = ModelChoice(model="starter", dtype="bf16", device="cpu")
    sampling = Sampling(temperature=0, max_tokens=options.tokens)
    with tempfile.TemporaryDirectory() as scratch:
        oracle = AutoModelForCausalLM.from_pretrained(starter.folder(Path(scratch)), dtype=torch.bfloat16)
    model = engine.load(choice, 1, lambda event: None, lambda: False)
    ids = torch.tensor([engine.prompt_ids(model, Generate(1, choice, messages=[Message("user", PROMPT)]))])

    def our_speed() -> float:
        return ours(engine, choice, PROMPT, DrafterChoice(name="none"), sampling).tokens_per_second

    def their_speed() -> float:
        times = []
        for count in (1, options.tokens):
            began = time.perf_counter()
            with torch.inference_mode():
                oracle.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
            times.append(time.perf_counter() - began)
        return (options.tokens - 1) / (times[1] - times[0])

    best: dict[str, tuple[float, int]] = {}
    for threads in range(1, (os.cpu_count() or 1) + 1):
        torch.set_num_threads(threads)
        our_speed(), their_speed()
        speeds: dict[str, list[float]] = {"outrider": [], "transformers": []}
        for _ in range(options.repeats):
            speeds["outrider"].append(our_speed())
            speeds["transformers"].append(their_speed())
        for name, values in speeds.items():
            middle = statistics.median(values)
            print(
                f"{name}, {threads} threads: {middle:.1f} tokens/s ({min(values):.1f} to {max(values):.1f})", flush=True
            )
            best[name] = max(best.get(name, (0.0, 0)), (middle, threads))
    ratio = best["outrider"][0] / best["transformers"][0]
    print(f"best: outrider {best['outrider'][0]:.1f}, transformers {best['transformers'][0]:.1f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
