"""Greedy text in fp32: the same for every drafter, and the same as transformers on the same dequantised weights.

    PYTHONPATH=tests/support python tests/peers/identity.py --prompts FOLDER --ids FILE [--tokens 128] [--limit N] [--no-oracle]

Prints one line per prompt that differs, with the gap between the two best logits at the first difference recomputed in
one fp32 pass; a gap below 1e-4 is a tie. Exit code 1 if anything but ties differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import starter
import torch

from outrider.core.engine import Engine
from outrider.core.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling

TIE = 1e-4


class Undisturbed:
    """Control of an answer that runs to its end."""

    def cancelled(self) -> bool:
        return False

    def switched(self) -> None:
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        raise AssertionError("nobody switches here")


def ours(engine: Engine, model: ModelChoice, text: str, drafter: DrafterChoice, sampling: Sampling):
    """One answer of our engine."""
    request = Generate(1, model, messages=[Message("user", text)], sampling=sampling, drafter=drafter)
    return engine.generate(request, lambda event: None, Undisturbed())


def theirs(model, ids: list[int], count: int, eos: set[int]) -> list[int]:
    """Greedy continuation by transformers, without the EOS."""
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=sorted(eos))
    new = out[0, len(ids) :].tolist()
    return new[:-1] if new and new[-1] in eos else new


def gap(engine: Engine, ids: list[int]) -> float:
    """Difference of the two best logits behind `ids`, from one pass."""
    assert engine.model is not None
    target = engine.model.talk.target
    target.commit(0)
    engine.forget()
    best = target.forward(ids, last=True).logits[0].float().topk(2).values
    return float(best[0] - best[1])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--layers", type=int, default=4, help="layers of the draft model cut from the starter")
    parser.add_argument("--no-oracle", action="store_true")
    options = parser.parse_args()
    engine = Engine()
    model = ModelChoice(model="starter", dtype="fp32", device="cpu")
    rows = starter.prompts(options.prompts, options.ids.read_text().split()[: options.limit])
    sampling = Sampling(temperature=0, max_tokens=options.tokens)
    bad = ties = 0
    began = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        cut = starter.folder(Path(scratch) / "cut", layers=options.layers)
        oracle = None
        if not options.no_oracle:
            from transformers import AutoModelForCausalLM

            oracle = AutoModelForCausalLM.from_pretrained(starter.folder(Path(scratch) / "whole"), dtype=torch.float32)
        choices = {
            "prompt_lookup": DrafterChoice(name="prompt_lookup", tokens=6),
            "draft_model": DrafterChoice(name="draft_model", weights=str(cut), tokens=3),
        }
        for number, row in enumerate(rows, 1):
            plain = ours(engine, model, row["turns"][0], DrafterChoice(name="none"), sampling)
            assert engine.model is not None
            request = Generate(1, model, messages=[Message("user", row["turns"][0])])
            ids = engine.prompt_ids(engine.model, request)
            others = {name: ours(engine, model, row["turns"][0], c, sampling).token_ids for name, c in choices.items()}
            if oracle is not None:
                others["transformers"] = theirs(oracle, ids, options.tokens, set(engine.model.tokenizer.eos_ids))
            for name, got in others.items():
                if got != plain.token_ids:
                    at = next(
                        (i for i, (a, b) in enumerate(zip(got, plain.token_ids, strict=False)) if a != b),
                        min(len(got), len(plain.token_ids)),
                    )
                    margin = gap(engine, ids + plain.token_ids[:at])
                    kind = "tie" if margin < TIE else "DIFFERENT"
                    ties, bad = ties + (margin < TIE), bad + (margin >= TIE)
                    print(f"{row['id']}: {name} differs at token {at}, gap {margin:.2e}: {kind}", flush=True)
            print(
                f"{number}/{len(rows)} {row['id']} {len(ids)}+{len(plain.token_ids)} {time.time() - began:.0f} s",
                flush=True,
            )
    print(f"{len(rows)} prompts, {options.tokens} tokens: {ties} ties, {bad} real differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
