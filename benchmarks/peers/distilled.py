"""A distilled student against the same student trained on hard labels alone: acceptance side by side, same budget.

    PYTHONPATH=tests/support python benchmarks/peers/distilled.py --toy greedy
    PYTHONPATH=tests/support python benchmarks/peers/distilled.py --toy drawn
    PYTHONPATH=tests/support python benchmarks/peers/distilled.py --model MODEL --answers RUN/answers.jsonl --budget 600

Both begin with the same weights and see the same texts in the same order. `--budget`: seconds of CPU that each may train for,
by its own speed; without it both make `--steps` steps. Every seed is a pair; what is told is the mean of all and, behind ±,
the standard error of the pairs' difference. Acceptance is that of greedy drafts along texts that neither has seen.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pupils
import torch
import toys

from outrider.core.drafting import registry
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.library.library import resolve
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import choose_device, choose_dtype, load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.train.answers import Answers, Kept
from outrider.core.train.loop import Loop, Schedule
from outrider.core.train.offline_acceptance import Acceptance, measure_acceptance
from outrider.core.train.sampled import sample
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher
from outrider.drafters.draft_model.training import DraftRecipe, Settings

HELD, DRAFT, TRIED = 10, 4, 4  # one text in so many is held out; tokens of a draft; steps that are timed
KINDS = {"hard": 0.0, "soft": 1.0, "both": 0.9}  # alpha


def opened(path: Path, longest: int) -> Teacher:
    """A model as a teacher."""
    device = choose_device("auto")
    checkpoint = open_checkpoint(path)
    try:
        decoder = load_decoder(checkpoint, WeightFormat(choose_dtype("auto", device), device), longest + MAX_DRAFT_ROWS)
        return Teacher(TargetModel(decoder, info(checkpoint), longest), longest)
    finally:
        checkpoint.close()


class Comparison:
    """One teacher, one set of texts."""

    def __init__(self, teacher: Teacher, texts: list[Kept], options: argparse.Namespace) -> None:
        self.teacher, self.options = teacher, options
        self.held = texts[::HELD]
        self.taught = [text for number, text in enumerate(texts) if number % HELD]
        ids = torch.tensor([token for text in self.taught for token in text.ids])
        self.counts = torch.bincount(ids, minlength=teacher.info.vocab)

    def student(self, alpha: float, seed: int):
        """As it begins."""
        settings = Settings(layers=self.options.layers, alpha=alpha, temperature=self.options.temperature)
        luck = torch.Generator().manual_seed(seed)
        return DraftRecipe().trainee(self.teacher, settings, self.counts, luck)

    def accepted(self, trainee: Any, folder: Path) -> Acceptance:
        """Read back by the plugin."""
        trainee.save(folder, whole=False)
        rider = registry.load("draft_model", self.teacher.target, {"weights": str(folder)}, _raise)
        return measure_acceptance(rider, self.teacher, self.held, DRAFT)

    def trained(self, alpha: float, seed: int, folder: Path) -> tuple[Acceptance, int, float]:
        """Acceptance, steps, CPU seconds of training."""
        steps = self.options.steps
        if self.options.budget:
            (folder / "trial").mkdir(parents=True)
            trial = self._loop(self.student(alpha, seed), TRIED, seed, folder / "trial")
            at = time.process_time()
            trial.timed()
            steps = max(1, int(self.options.budget / ((time.process_time() - at) / TRIED)))
        folder.mkdir(exist_ok=True, parents=True)
        trainee = self.student(alpha, seed)
        at = time.process_time()
        self._loop(trainee, steps, seed, folder).run(lambda step, figures: None, lambda: False)
        spent = time.process_time() - at
        return self.accepted(trainee, folder / "drafter"), steps, spent

    def _loop(self, trainee: Any, steps: int, seed: int, folder: Path) -> Loop:
        states = States(self.teacher, self.taught, trainee.states, None, trainee)
        warm = min(20, max(1, steps // 20))
        schedule = Schedule(steps=steps, tokens=self.options.tokens, rate=self.options.rate, warm=warm, seed=seed)
        return Loop(trainee, states, schedule, folder)


def drawn(teacher: Teacher, texts: list[Kept]) -> list[Kept]:
    """Answers to the same prompts by the target's own law."""
    prompts = [text.ids[: text.first] for text in texts]
    most = len(texts[0].ids) - texts[0].first
    answers = sample(teacher.target.decoder, prompts, most, (), torch.Generator().manual_seed(11))
    return [
        Kept(text.number, text.first, [*prompt, *made])
        for text, prompt, made in zip(texts, prompts, answers, strict=True)
    ]


def _raise(text: str) -> None:
    raise SystemExit(text)


def told(name: str, made: list[tuple[Acceptance, int, float]], base: list[float]) -> str:
    """A line of the table."""
    passes = [one.per_pass for one, _, _ in made]
    apart = [ours - theirs for ours, theirs in zip(passes, base, strict=True)]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
    depths = " ".join(f"{share:.0%}" for share in made[0][0].by_depth)
    means = [statistics.mean(values) for values in (passes, [steps for _, steps, _ in made], [s for _, _, s in made])]
    return f"{name:6} {means[0]:6.3f} {statistics.mean(apart):+7.3f} ± {error:5.3f} {means[1]:7.0f} {means[2]:8.1f}  {depths}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--toy", choices=("greedy", "drawn"), help="a toy target; its answers are its best tokens, or drawn"
    )
    parser.add_argument("--model", default="starter")
    parser.add_argument("--answers", type=Path, help="answers.jsonl of a run of `outrider train`")
    parser.add_argument("--texts", type=int, default=None, help="so many of them")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--budget", type=float, default=None, help="CPU seconds of training, instead of --steps")
    parser.add_argument("--tokens", type=int, default=256, help="of answers in a step")
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.toy:
            teacher = pupils.from_disk(toys.checkpoint(Path(scratch) / "target", layers=6))
            texts = pupils.answers(teacher, options.texts or 160, 40)
            texts = texts if options.toy == "greedy" else drawn(teacher, texts)
        elif options.answers is None:
            parser.error("--answers FILE or --toy is needed")
        else:
            teacher = opened(resolve(options.model), options.longest)
            kept = [text for text in Answers(options.answers).texts() if 1 < len(text.ids) <= options.longest]
            texts = kept[: options.texts]
        options.rate = options.rate or (4e-3 if options.toy else 3e-4)
        every = Comparison(teacher, texts, options)
        folder = Path(scratch)
        before = every.accepted(every.student(1.0, 0), folder / "before")
        print(f"{len(every.taught)} texts, {len(every.held)} held out; untrained: {before.per_pass:.3f} tokens a pass")
        print("labels tokens a pass, against hard   steps    CPU s  right at depth 1, 2, … (first seed)")
        base: list[float] = []
        for name, alpha in KINDS.items():
            made = [every.trained(alpha, seed, folder / f"{name}-{seed}") for seed in range(options.seeds)]
            base = base or [one.per_pass for one, _, _ in made]
            print(told(name, made, base), flush=True)


if __name__ == "__main__":
    main()
