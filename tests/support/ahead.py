"""Answers whose drafts are made on the device, compared with those of the host and with plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import toys
from replay import HOST, Replay
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.core.decode.round_result import RoundResult
from outrider.core.decode.rounds import Rounds
from outrider.core.drafting import Drafter
from outrider.core.drafting.active import ActiveDrafter
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache

PROMPT = [5, 9, 13, 9, 5, 9, 13]
SETTINGS = {"greedy": toys.GREEDY, "sampled": Settings(temperature=3, top_p=0.95)}
Make = Callable[[TargetModel], Drafter]


class Ride(NamedTuple):
    """An answer, and the rounds that gave it."""

    text: list[int]
    rounds: list[RoundResult]

    @property
    def drafts(self) -> list[tuple[list[int], list[int]]]:
        """Tokens and parents of each draft."""
        return [(done.draft.ids, list(done.draft.above)) for done in self.rounds]

    @property
    def ahead(self) -> float:
        """The share of rounds that were launched before the last one was read."""
        return sum(done.ahead for done in self.rounds[1:]) / max(1, len(self.rounds) - 1)


class Reads(TorchDispatchMode):
    """Counts how often a tensor is asked for a value, but for the one report of each round."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += any(word in func._schema.name for word in HOST)
        return func(*args, **(kwargs or {}))


class Rides:
    """Makes answers and keeps their rounds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("outrider.core.model.graph_runner.LEAST_END", 32)
        self._rounds: list[RoundResult] = []
        self.reads, self.counting = Reads(), False
        run = Rounds.run

        def watched(rounds: Rounds, drafter: ActiveDrafter | None, budget: int) -> RoundResult:
            with self.reads if self.counting else nullcontext():
                self._rounds.append(run(rounds, drafter, budget))
            return self._rounds[-1]

        patch.setattr(Rounds, "run", watched)

    def __call__(
        self, cache: ChatCache, drafter: Drafter | None, settings: Settings, tokens: int = 4, limit: int | None = 24
    ) -> Ride:
        """One answer with a drafter, or without."""
        notes: list[str] = []
        guarded = None if drafter is None else toys.guard(drafter, notes=notes)
        made = self.answer(cache, PROMPT, guarded, settings=settings, tokens=tokens, limit=limit)
        assert not notes
        return made

    def answer(self, cache: ChatCache, prompt: Sequence[int], drafters: Any, **how: Any) -> Ride:
        """As `toys.answer`."""
        self._rounds.clear()
        told = toys.answer(cache, prompt, drafters, **how)
        return Ride(told.token_ids, list(self._rounds))


def captured(target: TargetModel) -> TargetModel:
    """The same target with captured rounds."""
    return TargetModel(target.decoder, target.info, target.context, Replay())


def same(rides: Rides, target: TargetModel, make: Make, tokens: int = 4) -> None:
    """Text and drafts of rounds on the device and on the host, twice in one conversation; nine in ten rounds are launched ahead.

    Greedy and sampled: at a high temperature the noise, which they share, decides for the target and for random weights alike.
    """
    accepted = False
    for settings in SETTINGS.values():
        plain = rides(ChatCache(target), None, settings)
        host = rides(ChatCache(target), make(target), settings, tokens)
        whole = sum(done.asked == tokens for done in host.rounds)  # at the end the host asks for no more than is wanted
        there = captured(target)
        cache, drafter = ChatCache(there), make(there)
        for rides.counting in (False, True):
            got = rides(cache, drafter, settings, tokens)
            assert got.text == host.text == plain.text
            assert got.drafts[:whole] == host.drafts[:whole]
            assert all(done.on_device for done in got.rounds[:-1])
            assert got.ahead > 0.9
        assert rides.reads.count <= 1  # the last round of an answer may be drafted by the host
        rides.counting, rides.reads.count = False, 0
        assert there.graphs is not None and there.graphs.trouble is None
        accepted |= any(0 < done.accepted < done.proposed for done in host.rounds)
    assert accepted


@pytest.fixture
def rides(monkeypatch: pytest.MonkeyPatch) -> Rides:
    """See `Rides`."""
    return Rides(monkeypatch)
