"""Every method behind every other one: drafters are switched between passes as the service does it, no word changes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import cycle, permutations
from pathlib import Path

import kinds
import msgspec
import pytest
import toys

from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    Event,
    Failed,
    Generate,
    ModelChoice,
    Notice,
    Report,
    Result,
    Sampling,
    SetDrafter,
    Step,
)
from outrider.core.service import Service
from outrider.core.session.pool import Wanted

pytestmark = pytest.mark.thorough

PROMPT = "one two three one two three "
CONTEXT, ANSWER, DRAFT = 256, 100, 4  # tokens
# Ids that stand for letters. Where they alone make the text, drafters that have learnt nothing are right by chance.
FEW = range(32, 48)
BIAS = dict.fromkeys(FEW, 60.0)
GREEDY = Sampling(temperature=0.0, max_tokens=ANSWER)
# Sampling, and passes between two switches. Who has heard tokens without states drafts at its second pass.
TEXTS = {
    "greedy": (GREEDY, 1),
    "few": (msgspec.structs.replace(GREEDY, logit_bias=BIAS), 2),
    "sampled": (Sampling(temperature=0.8, top_p=1.0, seed=5, max_tokens=ANSWER, logit_bias=BIAS), 2),
}


class Desk(Service):
    """The service without a pipe: after `dwell` passes with one drafter the user switches to the next of `walk`."""

    def __init__(self, model: ModelChoice, choices: dict[str, DrafterChoice]) -> None:
        super().__init__(-1, -1)
        self.model, self.choices = model, choices
        self.walk, self.dwell = deque[str](), 1
        self.active, self.waiting, self.ridden = "none", "", 0
        self.number, self.events = 0, list[Event]()
        self.pairs, self.proposed, self.accepted = Counter[tuple[str, str]](), Counter[str](), Counter[str]()

    def start(self) -> None:
        """Begin the walk through all choices, and count anew."""
        first, *rest = walk(list(self.choices))
        self.walk.extend(rest)
        self.active, self.waiting, self.ridden = first, "", self.dwell
        self.pairs, self.proposed, self.accepted = Counter(), Counter(), Counter()

    def send(self, event: Event) -> None:
        """Keep a frame; a pass may be followed by a switch."""
        self.events.append(event)
        if isinstance(event, Step):
            if event.seq:
                self._count(event)
            if self.walk and self.ridden >= self.dwell:
                self.waiting, self.ridden = self.walk.popleft(), 0
                self._sort(SetDrafter(self._next(), self.choices[self.waiting]))

    def ask(self, prompt: str, sampling: Sampling) -> Report:
        """One whole answer, begun with the drafter that rode last. A switch that came too late for it is put off."""
        self.events = []
        asked = Generate(self._next(), self.model, prompt=prompt, sampling=sampling, drafter=self.choices[self.active])
        self._sort(asked)
        request = self._inbox.get_nowait()
        assert request is not None
        self._serve(request)
        assert [event for event in self.events if isinstance(event, Failed | Notice)] == []
        answered = [event.request for event in self.events if isinstance(event, Result)]
        assert answered == list(range(asked.id + 1, self.number + 1))
        if self.waiting:
            self.walk.appendleft(self.waiting)
            self.waiting, self.ridden = "", self.dwell
        return next(event.report for event in self.events if isinstance(event, Done))

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _count(self, step: Step) -> None:
        if self.waiting:
            self.pairs[self.active, self.waiting] += 1
            self.active, self.waiting = self.waiting, ""
        self.ridden += 1
        self.proposed[self.active] += step.proposed
        self.accepted[self.active] += step.accepted


def walk(names: Sequence[str]) -> Iterator[str]:
    """A closed walk from the first name in which each one follows each other one once."""
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            yield from (one, other)
    yield names[0]


def turns(desk: Desk, sampling: Sampling) -> list[tuple[str, list[int]]]:
    """Prompts with their plain answers: each is the one before, its answer cut off in the middle, and an edit."""
    made, prompt = [], PROMPT
    for cut in (30, 45, 20):
        report = desk.ask(prompt, sampling)
        made.append((prompt, report.token_ids))
        prompt = f"{prompt}{report.text[:cut]} no: four "
    return made


def switch_all(desk: Desk, text: str) -> None:
    """The whole walk over as many turns as it takes, each against its plain answer."""
    sampling, desk.dwell = TEXTS[text]
    desk.active = "none"
    plain = cycle(turns(desk, sampling))
    desk.start()
    while desk.walk:
        prompt, ids = next(plain)
        assert desk.ask(prompt, sampling).token_ids == ids
    assert set(desk.pairs) == set(permutations(desk.choices, 2))
    assert desk.accepted["draft_model"] == desk.proposed["draft_model"] > 0


@pytest.mark.parametrize("kind", list(kinds.KINDS))
def test_each_drafter_takes_over_from_each_other_one(kind: str, tmp_path: Path) -> None:
    """Greedy and sampled, on one engine, with a turn that was edited in the middle of its answer behind each other."""
    folder = kinds.dressed(kind, tmp_path / "target")
    choices = {"none": DrafterChoice(name="none")}
    for name in kinds.METHODS:
        if (name, kind) not in kinds.REFUSED:
            # as a draft model the target itself is always right, unless it has missed a token
            found = str(folder) if name == "draft_model" else kinds.weights(name, kind, tmp_path / name)
            choices[name] = DrafterChoice(name=name, weights=found, tokens=DRAFT)
    choices["composite"] = DrafterChoice(name="composite", weights=choices["eagle"].weights, tokens=DRAFT)
    desk = Desk(ModelChoice(model=str(folder), dtype="fp32", device="cpu", context=CONTEXT), choices)
    notes: list[str] = []
    loaded = desk.engine.load(desk.model, 0, desk.events.append, lambda: False)
    listener = toys.guard(toys.Listener(), notes=notes)  # fails where it misses a token
    loaded.cache.drafters.put(Wanted("listener"), listener)
    choices["listener"] = DrafterChoice(name="listener", tokens=DRAFT)
    try:
        for text in TEXTS:
            switch_all(desk, text)
            if TEXTS[text][1] > 1:
                assert {name for name in choices if not desk.proposed[name]} == {"none"}
        assert notes == []
    finally:
        desk.engine.unload()
