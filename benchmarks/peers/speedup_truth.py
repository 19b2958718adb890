"""Is the speed-up of an answer true? Each has a plain run right before and right after it, while other work comes and goes.

    python benchmarks/peers/speedup_truth.py [--answers 50] [--tokens 160] [--drafter auto] [--load 1] [--json FILE]

`--load N`: processes that compute for `--on` seconds and rest for `--off` seconds on average; 0 leaves the machine as it is. The
truth of an answer is the mean of its two plain runs over its own time; where these differ, the truth is only known to be between
them. Prints a line for each answer, then how often the 95 % interval of the claim holds the mean, and how often it meets what is
between the two plain runs; how many answers of 150 tokens or more with a true ratio from 1.3 have a figure; what plain passes for
the meter cost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from outrider.app.commands._prompts import read
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling, Speedup, Step
from outrider.core.session.engine import Engine

SURE = 1.96
LONG, CLEAR = 150, 1.3  # tokens and ratio from which an answer is to have a figure


class Undisturbed:
    """Control of an answer that runs to its end."""

    def cancelled(self) -> bool:
        return False

    def switched(self) -> None:
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        raise AssertionError("nobody switches here")


@dataclass(frozen=True)
class Answer:
    """One answer between two plain ones. `plain`: seconds a token of these."""

    prompt: str
    tokens: int
    seconds: float  # a token
    plain: tuple[float, float]
    speedup: tuple[float, float, int] | None  # what is claimed
    estimate: tuple[float, float, int] | None  # what that is made from, claimed or not
    meter: int  # plain passes for the meter
    meter_share: float  # of the answer's time, beyond what their tokens would have taken otherwise
    loops: bool

    @property
    def true(self) -> float:
        return sum(self.plain) / 2 / self.seconds

    @property
    def bounds(self) -> tuple[float, float]:
        return min(self.plain) / self.seconds, max(self.plain) / self.seconds

    def covers(self, made: tuple[float, float, int]) -> bool:
        return abs(made[0] - self.true) <= SURE * made[1]

    def meets(self, made: tuple[float, float, int]) -> bool:
        low, high = self.bounds
        return made[0] - SURE * made[1] <= high and made[0] + SURE * made[1] >= low


def burn(wanted: Event) -> None:
    """Compute while it is wanted."""
    while True:
        wanted.wait()
        sum(number * number for number in range(20_000))


def switch(wanted: Event, on: float, off: float) -> None:
    """Let others compute and rest, for times that nobody can foresee."""
    luck = random.Random(0)
    while True:
        time.sleep(luck.expovariate(1 / off))
        wanted.set()
        time.sleep(luck.expovariate(1 / on))
        wanted.clear()


class Runs:
    """Answers of one engine."""

    def __init__(self, model: ModelChoice, tokens: int) -> None:
        self._engine, self._model, self._tokens = Engine(), model, tokens
        self.steps: list[Step] = []

    def report(self, text: str, drafter: DrafterChoice) -> Report:
        """One answer behind nothing."""
        self.steps = []
        sampling = Sampling(temperature=0.0, seed=0, max_tokens=self._tokens)
        request = Generate(1, self._model, messages=[Message("user", text)], sampling=sampling, drafter=drafter)
        self._engine.forget()
        return self._engine.generate(request, self._hear, Undisturbed())

    def _hear(self, event: object) -> None:
        if isinstance(event, Step):
            self.steps.append(event)

    def answer(self, name: str, text: str, drafter: DrafterChoice) -> Answer:
        """One answer between two plain ones."""
        before = each(self.report(text, DrafterChoice(name="none")))
        report = self.report(text, drafter)
        steps = self.steps
        after = each(self.report(text, DrafterChoice(name="none")))
        metered, why = [], ""
        for step in steps[1:]:
            why = step.why or why
            if why == "measuring plain speed" and not step.proposed:
                metered.append((step.draft_ms + step.verify_ms + step.host_ms) / 1e3)
        lost = sum(metered) - len(metered) * each(report)
        return Answer(
            name,
            len(report.token_ids),
            each(report),
            (before, after),
            triple(report.speedup),
            report.plain and (report.plain.seconds / report.timing.decode_s,
                              report.plain.error / report.timing.decode_s, report.plain.n),
            len(metered),
            max(0.0, lost) / report.timing.decode_s,
            report.loops,
        )  # fmt: skip


def each(report: Report) -> float:
    """Seconds of decoding for each token behind the first, the end sign counted."""
    return report.timing.decode_s / max(1, len(report.token_ids) - 1 + (report.finish == "stop"))


def triple(made: Speedup | None) -> tuple[float, float, int] | None:
    return None if made is None else (made.value, made.error, made.n)


def line(one: Answer) -> str:
    """What is printed of an answer."""
    low, high = one.bounds
    told = f"{one.speedup[0]:.2f} ± {one.speedup[1]:.2f} (n {one.speedup[2]})" if one.speedup else "–"
    right = (
        ""
        if one.speedup is None
        else "holds"
        if one.covers(one.speedup)
        else "meets"
        if one.meets(one.speedup)
        else "MISSES"
    )
    true = f"true {one.true:.2f} ({low:.2f} to {high:.2f})"
    return f"{one.prompt:28} {one.tokens:4} tokens  {true:28} claimed {told:22} meter {one.meter_share:.1%}  {right}"


def summary(answers: list[Answer]) -> str:
    """Coverage, figures and costs."""
    claimed = [(one, one.speedup) for one in answers if one.speedup]
    made = [(one, one.estimate) for one in answers if one.estimate]
    clear = [one for one in answers if one.tokens >= LONG and one.true >= CLEAR]

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")

    return "\n".join([
        f"claims that hold the mean of both plain runs: {share(sum(one.covers(it) for one, it in claimed), len(claimed))}",
        f"claims that meet what is between them: {share(sum(one.meets(it) for one, it in claimed), len(claimed))}",
        f"estimates, claimed or not: {share(sum(one.covers(it) for one, it in made), len(made))} hold, "
        f"{share(sum(one.meets(it) for one, it in made), len(made))} meet",
        f"answers of {LONG} tokens and a true ratio from {CLEAR} with a figure: "
        f"{share(sum(one.speedup is not None for one in clear), len(clear))}",
        f"plain passes for the meter: at most {max(one.meter_share for one in answers):.1%} of an answer's time",
    ])  # fmt: skip


def main() -> int:
    """Exit code 1 where less than 90 % of the claims meet the truth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--answers", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--load", type=int, default=1)
    parser.add_argument("--on", type=float, default=4.0)
    parser.add_argument("--off", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.load:
        wanted = multiprocessing.Event()
        for _ in range(asked.load):
            multiprocessing.Process(target=burn, args=(wanted,), daemon=True).start()
        multiprocessing.Process(target=switch, args=(wanted, asked.on, asked.off), daemon=True).start()
    prompts = read(None)
    runs = Runs(ModelChoice(model=asked.model), asked.tokens)
    drafter = DrafterChoice(name=asked.drafter)
    runs.report("Say one, two, three.", drafter)
    answers = []
    for number in range(asked.answers):
        prompt = prompts[number % len(prompts)]
        answers.append(runs.answer(prompt.id, prompt.turns[0], drafter))
        print(line(answers[-1]), flush=True)
    print(summary(answers))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in answers]))
    claimed = [one for one in answers if one.speedup]
    return int(sum(one.meets(one.speedup) for one in claimed if one.speedup) < 0.9 * len(claimed))


if __name__ == "__main__":
    sys.exit(main())
