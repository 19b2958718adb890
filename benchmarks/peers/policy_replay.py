"""Records what the free drafters would have offered along real answers, and plays the policy over recordings.

    policy_replay.py record --model starter --into tests/data/traces/starter.gz
    policy_replay.py play tests/data/traces/*.gz

Recording answers the bundled prompts greedily and asks every free drafter at each token of the answers. Playing prints for each
machine how the policy does against plain decoding, the best fixed (drafter, length), and the best that could have been done.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import riding
from riding import Machine, Offered, Player, Trace

from outrider.core.base.protocol import Committed as Passed
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
from outrider.core.drafting import Committed, Context, Draft, registry
from outrider.core.session.engine import Engine
from outrider.core.session.text_kind import TextKind

FREE = ("prompt_lookup", "suffix")
MOST = 32


class _Quiet:
    def cancelled(self) -> bool:
        return False

    def switched(self) -> DrafterChoice | None:
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        pass


def record(model: str, into: Path, tokens: int) -> None:
    """Answer all bundled prompts, and write the traces."""
    engine, choice = Engine(), ModelChoice(model=model)
    loaded = engine.load(choice, 0, lambda event: None, lambda: False)
    traces = []
    rows = (files("outrider.assets") / "bench_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, rows):
        history: list[Message] = []
        for number, turn in enumerate(row["turns"]):
            history.append(Message("user", turn))
            request = Generate(
                0,
                choice,
                messages=list(history),
                sampling=Sampling(temperature=0.0, seed=0, max_tokens=tokens),
                drafter=DrafterChoice(name=FREE[0], tokens=8),  # the text is the same, and sooner there
            )
            steps: list[Any] = []
            report = engine.generate(request, steps.append, _Quiet())
            history.append(Message("assistant", report.text))
            answer = [token for step in steps if isinstance(step, Passed) for token in step.tokens]
            name = f"{row['category']}/{row['id']}/{number}"
            traces.append(_trace(name, engine.prompt_ids(loaded, request), answer, loaded.cache.target))
            print(name, len(answer), report.finish, flush=True)
            riding.dump(traces, into)


def _trace(name: str, prompt: list[int], answer: Sequence[Any], target: Any) -> Trace:
    drafters = {one: registry.build(one, target, {}) for one in FREE}
    tokens, truth = list(prompt), [token.id for token in answer]
    offers: dict[str, list[Offered]] = {one: [] for one in FREE}
    phases, phase = list[str](), TextKind()
    for drafter in drafters.values():
        drafter.reset()
        drafter.advance(_step(0, tokens))
    for place, token in enumerate(answer):
        if place:
            phases.append(phase.now)
            for one, drafter in drafters.items():
                offers[one].append(_offered(drafter.propose(_context(tokens)), truth[place:]))
        phase.feed(token.text, token.thinking)
        for drafter in drafters.values():
            drafter.advance(_step(len(tokens), [token.id]))
        tokens.append(token.id)
    return Trace(name, phases, offers)


def _step(start: int, tokens: Sequence[int]) -> Committed:
    return Committed(start, torch.tensor(tokens), torch.empty(0, dtype=torch.int64))


def _context(tokens: Sequence[int]) -> Context:
    def nothing(*_: Any) -> Any:
        raise AssertionError("a free drafter looks at tokens alone")

    return Context(tokens=tokens, nodes=MOST, probs=False, sample=nothing, to_probs=nothing, rng=nothing)


def _offered(draft: Draft | None, truth: Sequence[int]) -> Offered:
    """The line of first children."""
    if draft is None:
        return Offered(0, 0)
    line = draft.line()
    tokens = line.ids
    right = 0
    while right < min(len(tokens), len(truth)) and tokens[right] == truth[right]:
        right += 1
    return Offered(len(tokens), right, None if line.confidences is None else tuple(line.confidences))


def play(paths: Sequence[Path]) -> None:
    """Print the figures of every recording on every machine."""
    for path in paths:
        traces = riding.load(path)
        for name, machine in riding.MACHINES.items():
            print(f"\n{path.stem} on {name}")
            _table(traces, machine)


def _table(traces: Sequence[Trace], machine: Machine) -> None:
    player = Player(machine)
    began, rounds = time.process_time(), 0
    plays = [player.play(trace) for trace in traces]
    rounds = sum(len(done.choices) for done in plays)
    spent = (time.process_time() - began) / rounds
    by: dict[str, list[int]] = {}
    for number, trace in enumerate(traces):
        by.setdefault(trace.name.split("/")[0], []).append(number)
    by["all"] = list(range(len(traces)))
    for category, numbers in by.items():
        some = [traces[number] for number in numbers]
        own = riding.rate([plays[number] for number in numbers])
        base = riding.rate([riding.plain(trace, machine) for trace in some])
        best, who, length = riding.best_fixed(some, machine)
        most = riding.rate([riding.oracle(trace, machine) for trace in some])
        print(
            f"  {category:14} {own / base:5.2f}x plain, {own / best:5.2f} of the best fixed ({who} {length}: "
            f"{best / base:.2f}x), at most {most / base:.2f}x"
        )
    print(f"  {1e6 * spent:.0f} us a round, the player's own time included")


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--model", default="starter")
    recording.add_argument("--into", type=Path, required=True)
    recording.add_argument("--tokens", type=int, default=160)
    playing = verbs.add_parser("play")
    playing.add_argument("paths", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.verb == "record":
        record(asked.model, asked.into, asked.tokens)
    else:
        play(asked.paths)


if __name__ == "__main__":
    main()
