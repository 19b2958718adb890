"""Lanes, races and an engine without a process, for the tests of compare mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from outrider.app.chat.compare.race import Arm, Lane, Race
from outrider.app.client import EngineError
from outrider.app.scripted import report_of
from outrider.core.base.protocol import (
    Cancel,
    Done,
    DrafterChoice,
    Event,
    Generate,
    Loaded,
    ModelChoice,
    Notice,
    Progress,
    Request,
    Sampling,
    Step,
    Token,
)

LOADED = Loaded(
    model="starter",
    title="Tiny Test 1M",
    family="llama",
    parameters=1,
    nbytes=1,
    dtype="fp32",
    device="cpu",
    threads=1,
    context=256,
    chat=True,
    load_s=0.0,
    sampling=Sampling(),
    drafters=[],
)
Word = tuple[str, str]  # text and kind


def steps(passes: Sequence[Sequence[Word]], pause: float, drafter: str) -> list[Step]:
    """Passes `pause` seconds apart; equal words have equal ids."""
    made = []
    for seq, words in enumerate(passes):
        accepted = sum(kind == "A" for _, kind in words)
        proposed = accepted + sum(kind == "C" for _, kind in words)
        tokens = [Token(sum(map(ord, text)), text, kind) for text, kind in words]  # type: ignore[arg-type]
        told: dict[str, Any] = {"draft_ms": 0.1, "verify_ms": 1.0, "host_ms": 0.1, "depth": proposed}
        made.append(Step(0, seq, (seq + 1) * pause, drafter, proposed, accepted, tokens, **told))
    return made


def plain(text: str) -> list[list[Word]]:
    """One word a pass."""
    return [[(word, "P")] for word in text.split()]


def drafted(text: str, each: int = 3) -> list[list[Word]]:
    """The first word by itself, then so many a pass, the last of them a bonus."""
    words = text.split()
    rest = [words[at : at + each] for at in range(1, len(words), each)]
    return [[(words[0], "P")], *([*((word, "A") for word in some[:-1]), (some[-1], "B")] for some in rest)]


def arm(name: str, tokens: int | None = None) -> Arm:
    """An arm by the name of its drafter."""
    return Arm(DrafterChoice(name=name, tokens=tokens))


def lane(name: str, passes: Sequence[Sequence[Word]], pause: float = 0.1, turn: int = 0) -> Lane:
    """A lane that came to its end."""
    told = steps(passes, pause, name)
    request = Generate(1, ModelChoice(), drafter=DrafterChoice(name=name), sampling=Sampling(seed=7))
    return Lane(arm=arm(name), turn=turn, steps=told, report=report_of(told, request, "stop"))


def race(*lanes: Lane, **told: Any) -> Race:
    """A race of these."""
    fixed: dict[str, Any] = {
        "created": 1.7e9,
        "prompt": "code",
        "asked": "Write it.",
        "model": "starter",
        "title": "Tiny Test 1M",
        "device": "cpu",
        "dtype": "fp32",
        "threads": 2,
        "sampling": Sampling(max_tokens=16),
        "seed": 7,
        "lanes": list(lanes),
    }
    return Race(**fixed | told)


class Engine:
    """Stands in for `EngineClient`: `answer` gives the passes for a request, or raises EngineError."""

    def __init__(self, answer: Callable[[Generate], list[Step]]) -> None:
        self.asked: list[Generate] = []
        self.cancelled: list[int] = []
        self._answer = answer
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def send(self, request: Request) -> None:
        assert isinstance(request, Cancel)
        self.cancelled.append(request.request)

    async def stream(self, request: Generate) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        told = self._answer(request)
        yield Progress(request.id, "prompt", 3, 4, "tokens")
        if request.drafter.tokens == 4:
            yield Notice("It was slow.", request.id)
        for step in told:
            yield step
        finish = "cancelled" if request.id in self.cancelled else "stop"
        yield Done(request.id, finish, report_of(told, request, finish))


def refused(words: str) -> EngineError:
    """What a drafter that cannot ride is answered with."""
    return EngineError(words, "Take another.", usage=True)
