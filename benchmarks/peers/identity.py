"""Losslessness: text of every drafter, in every kind of answer, against plain decoding that reads the whole prompt anew.

    python benchmarks/peers/identity.py [--prompts FOLDER] [--forms stored,fp32] [--flows basic,chat] [--limit 2] [--tokens 24]

`FOLDER` has the prompt sets as JSON lines; without it the bundled prompts are taken. A line of the table is a form of the
weights and a kind of answer. Where an answer leaves the plain one, the gap is that of the two best scores there, of a pass that
reuses nothing. Ends with 1 where anything but an edited chat differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling, Step
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler
from outrider.core.session.engine import Engine

ROOT = Path(__file__).parents[2]
NONE = DrafterChoice(name="none")
DRAFTERS = ("auto", "prompt_lookup", "suffix", "lookahead", "layerskip", "eagle", "dflash", "medusa")
GREEDY, WARM = Sampling(temperature=0.0, seed=7), Sampling(temperature=0.8, seed=7, top_p=1.0, top_k=0, min_p=0.0)
FORMS = {
    "stored": ModelChoice(model="starter", device="cpu", context=2048),
    "fp32": ModelChoice(model="starter", device="cpu", context=2048, dtype="fp32", quantize="none"),
    "bf16": ModelChoice(model="starter", device="cpu", context=2048, dtype="bf16", quantize="none"),
    "int8": ModelChoice(model="starter", device="cpu", context=2048, quantize="int8"),
    "exact": ModelChoice(model="starter", device="cpu", context=2048, exact=8),
}
OPTIONS = {
    "penalties": {"repeat_penalty": 1.2, "presence_penalty": -0.4, "frequency_penalty": 0.5},
    "filters": {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "bias": {"logit_bias": {index * 37 + 50: 1.5 for index in range(20)}},
    "stop": {"stop": [" the", ", and"]},
    "max_tokens": {"max_tokens": 5},
}


class Undisturbed:
    """Control of an answer: stopped after `passes` steps, with another drafter every few of them."""

    def __init__(self, passes: int | None = None, switches: Sequence[str] = ()) -> None:
        self.left, self.names, self.seen = passes, list(switches), 0

    def cancelled(self) -> bool:
        return self.left is not None and self.seen >= self.left

    def switched(self) -> DrafterChoice | None:
        return DrafterChoice(name=self.names.pop(0)) if self.names and self.seen % 3 == 2 else None

    def switch_done(self, name: str, error: Exception | None) -> None:
        if error is not None:
            raise error


@dataclass
class Tally:
    """One line of the table."""

    answers: int = 0
    tokens: int = 0
    differences: int = 0
    gap: float = 0.0  # the largest

    def line(self, form: str, flow: str) -> str:
        gap = f"{self.gap:.3f}" if self.differences else "-"
        return f"{form:8} {flow:22} {self.answers:7} {self.tokens:7} {self.differences:11} {gap:>11}"


@dataclass
class Trial:
    """One form of the weights."""

    engine: Engine
    name: str
    tokens: int
    luck: random.Random
    drafters: Sequence[str]
    tallies: dict[str, Tally] = field(default_factory=dict)
    known: dict[bytes, Report] = field(default_factory=dict)

    def request(
        self, messages: list[Message], sampling: Sampling, drafter: DrafterChoice = NONE, **more: Any
    ) -> Generate:
        sampling = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens or self.tokens)
        return Generate(1, FORMS[self.name], messages=messages, sampling=sampling, drafter=drafter, **more)

    def ask(self, request: Generate, control: Undisturbed | None = None) -> Report:
        control = control or Undisturbed()

        def count(event: object) -> None:
            control.seen += isinstance(event, Step)

        return self.engine.generate(request, count, control)

    def fresh(self, messages: list[Message], sampling: Sampling) -> Report:
        """The plain answer that reuses nothing; made once."""
        request = self.request(messages, sampling)
        key = msgspec.msgpack.encode((messages, request.sampling))
        if key not in self.known:
            self.engine.forget()
            self.known[key] = self.ask(request)
            self.engine.forget()
        return self.known[key]

    def check(self, flow: str, messages: list[Message], sampling: Sampling, got: Sequence[int]) -> None:
        """Count an answer; `got` are its tokens."""
        want, tally = self.fresh(messages, sampling).token_ids, self.tallies.setdefault(flow, Tally())
        tally.answers += 1
        tally.tokens += len(got)
        if list(got) == want:
            return
        at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
        gap = self.gap(self.request(messages, sampling), want[:at])
        tally.differences, tally.gap = tally.differences + 1, max(tally.gap, gap)
        print(f"  {self.name} {flow}: differs at token {at}, gap {gap:.3f}: {messages[-1].content[:50]!r}", flush=True)

    def gap(self, request: Generate, prefix: list[int]) -> float:
        """Between the two best scores behind a part of an answer."""
        model = self.engine.model
        assert model is not None
        order, target = self.engine.order(model, request, time.perf_counter()), model.cache.target
        self.engine.forget()
        logits = target.forward([*order.ids, *prefix], last=True).logits[0]
        sampler = Sampler(order.settings, Noise(order.seed), order.ids)
        sampler.commit(prefix)
        best = sampler.compared(logits, len(order.ids) + len(prefix))[1].topk(2).values
        return float(best[0] - best[1])

    def any(self) -> DrafterChoice:
        return DrafterChoice(name=self.luck.choice([*self.drafters, "none"]))


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def basic(trial: Trial, turns: list[str]) -> None:
    """Every drafter, each answer freshly read, at temperature 0 and 0.8; then each sampling option under one of them."""
    for name in trial.drafters:
        for flow, sampling in (("greedy", GREEDY), ("sampled", WARM)):
            trial.fresh(user(turns[0]), sampling)
            trial.engine.forget()
            report = trial.ask(trial.request(user(turns[0]), sampling, DrafterChoice(name=name)))
            trial.check(flow, user(turns[0]), sampling, report.token_ids)


def options(trial: Trial, turns: list[str]) -> None:
    """Each sampling option under a drafter drawn for it."""
    for name, settings in OPTIONS.items():
        sampling = msgspec.structs.replace(GREEDY, **settings)
        trial.fresh(user(turns[0]), sampling)
        report = trial.ask(
            trial.request(user(turns[0]), sampling, DrafterChoice(name=trial.luck.choice(trial.drafters)))
        )
        trial.check(name, user(turns[0]), sampling, report.token_ids)


def continued(trial: Trial, turns: list[str]) -> None:
    """Stopped after a few passes and continued under another drafter, in the same engine and in one that was restarted."""
    messages = user(turns[0])
    for flow, restart in (("continue", False), ("continue after restart", True)):
        for sampling in (GREEDY, WARM):
            whole = trial.fresh(messages, sampling).token_ids
            part = trial.ask(trial.request(messages, sampling, trial.any()), Undisturbed(passes=4))
            if restart:
                trial.engine.forget()
            left = len(whole) - len(part.token_ids)
            if part.finish != "cancelled" or left < 1:
                continue
            said = [*messages, Message("assistant", part.text, part.thinking)]
            more = msgspec.structs.replace(sampling, max_tokens=left)
            rest = trial.ask(trial.request(said, more, trial.any(), continues=list(part.token_ids)))
            trial.check(flow, messages, sampling, [*part.token_ids, *rest.token_ids])
    control = Undisturbed(switches=trial.luck.sample(list(trial.drafters), min(6, len(trial.drafters))))
    trial.check("switches", messages, GREEDY, trial.ask(trial.request(messages, GREEDY), control).token_ids)


def chat(trial: Trial, turns: list[str]) -> None:
    """Four turns behind what earlier ones left, one made again with the same seed, a branch, and an edited question."""
    texts = (turns * 4)[:4]
    histories, history = list[list[Message]](), list[Message]()
    for text in texts:
        history = [*history, Message("user", text)]
        histories.append(history)
        said = trial.fresh(history, GREEDY)
        history = [*history, Message("assistant", said.text, said.thinking)]
    branch = [*histories[1][:-1], Message("user", "Say that again in one short sentence.")]
    edit = [Message("user", texts[0] + " Be brief."), *histories[1][1:]]
    flows = [
        *(("turn", one, GREEDY) for one in histories),
        ("regenerate", histories[-1], GREEDY),
        ("replay", histories[-1], WARM),
        ("replay", histories[-1], WARM),
        ("branch", branch, GREEDY),
        ("turn", histories[1], WARM),
        ("edit", edit, GREEDY),
    ]
    for _, messages, sampling in flows:  # before the chat, as they empty the cache
        trial.fresh(messages, sampling)
    for flow, messages, sampling in flows:
        trial.check(flow, messages, sampling, trial.ask(trial.request(messages, sampling, trial.any())).token_ids)


def batch(trial: Trial, turns: list[str]) -> None:
    """Answers that are made together."""
    asked = [user(f"{text} ({number})") for number, text in enumerate((turns * 4)[:4])]
    requests = [trial.request(messages, (GREEDY, WARM)[n % 2], trial.any()) for n, messages in enumerate(asked)]
    reports = trial.engine.generate_many(requests, lambda event: None, Undisturbed())
    for number, (messages, report) in enumerate(zip(asked, reports, strict=True)):
        trial.check("batch", messages, (GREEDY, WARM)[number % 2], report.token_ids)


FLOWS: dict[str, Callable[[Trial, list[str]], None]] = {
    "basic": basic,
    "options": options,
    "continue": continued,
    "chat": chat,
    "batch": batch,
}


def prompts(folder: Path | None, luck: random.Random, limit: int) -> Iterator[list[str]]:
    """Turns of some prompts, drawn from all sets; of medium length, so that they fit."""
    bundled = ROOT / "assets/outrider/assets/bench_prompts.jsonl"
    files = sorted(folder.glob("*.jsonl")) if folder is not None and folder.is_dir() else [bundled]
    rows = [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines() if line.strip()]
    fitting = [row["turns"] for row in rows if row.get("turns") and sum(map(len, row["turns"][:4])) < 2400]
    yield from luck.sample(fitting, min(limit, len(fitting)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=ROOT.parent / "shared/data/prompts")
    parser.add_argument("--forms", default="stored,fp32,exact", help=f"of {','.join(FORMS)}")
    parser.add_argument("--flows", default=",".join(FLOWS), help=f"of {','.join(FLOWS)}")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--limit", type=int, default=2, help="prompts of each form")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    engine, began, trials = Engine(), time.time(), list[Trial]()
    for form in chosen.forms.split(","):
        FORMS[form] = msgspec.structs.replace(FORMS[form], threads=chosen.threads)
        luck = random.Random(chosen.seed)
        trials.append(Trial(engine, form, chosen.tokens, luck, chosen.drafters.split(",")))
        engine.load(FORMS[form], 1, lambda event: None, lambda: False)
        for turns in prompts(chosen.prompts, luck, chosen.limit):
            for flow in chosen.flows.split(","):
                if flow != "batch" or not FORMS[form].exact:  # exact mode makes one answer at a time
                    FLOWS[flow](trials[-1], turns)
        print(f"{form}: {time.time() - began:.0f} s", flush=True)
    print(f"{'FORM':8} {'FLOW':22} {'ANSWERS':>7} {'TOKENS':>7} {'DIFFERENCES':>11} {'LARGEST GAP':>11}")
    for trial in trials:
        for flow, tally in trial.tallies.items():
            print(tally.line(trial.name, flow))
    return any(tally.differences for trial in trials for flow, tally in trial.tallies.items() if flow != "edit")


if __name__ == "__main__":
    sys.exit(main())
