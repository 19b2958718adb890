"""Runs the lanes of a race one after the other on the chat's engine, and asks once more where two texts part."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from outrider.app.chat.compare import parting
from outrider.app.chat.compare.parting import Parting, Said
from outrider.app.chat.compare.race import Arm, Lane, Race
from outrider.app.chat.status import progress_words
from outrider.app.client import EngineClient, EngineDied, EngineError
from outrider.core.base.protocol import (
    Cancel,
    Done,
    Generate,
    Loaded,
    Message,
    ModelChoice,
    Notice,
    Progress,
    Report,
    Sampling,
    Step,
)

_WARM_UP, _WARM_TOKENS = "The first snow fell on the harbour before anyone was awake, and", 8
LIMIT = 256  # tokens of an answer, where the chat has no limit of its own


class Stopped(Exception):
    """The user stopped it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of every arm alike. `seed` None: a fresh one."""

    name: str  # of the prompt
    messages: list[Message]
    model: ModelChoice
    sampling: Sampling
    rule: str = "match"
    think: bool | None = None
    seed: int | None = None


@dataclass(slots=True)
class Now:
    """How far it is, for whoever shows it."""

    words: str = ""
    done: int = 0  # tokens of the running answer
    of: int = 0  # at most
    reading: str = ""  # how far the prompt is, before the first token
    notes: list[str] = field(default_factory=list)


class Asker:
    """Sends one `Generate` after the other and can be stopped between two passes."""

    def __init__(self, client: EngineClient) -> None:
        self.now = Now()
        self._client = client
        self._request = 0
        self._stopped = False

    def stop(self) -> None:
        """End what runs at its next pass; whoever waits for it gets `Stopped`."""
        self._stopped = True
        if self._request:
            with contextlib.suppress(EngineError):
                self._client.send(Cancel(id=self._client.number(), request=self._request))

    def phase(self, words: str) -> None:
        """What comes next is called so."""
        self.now = Now(words)

    async def ask(self, request: Generate) -> tuple[list[Step], Report]:
        """One answer with its passes. Raises EngineError, and Stopped."""
        if self._stopped:
            raise Stopped
        steps: list[Step] = []
        report: Report | None = None
        self._request, self.now.of = request.id, request.sampling.max_tokens or 0
        try:
            async with aclosing(self._client.stream(request)) as events:
                async for event in events:
                    if isinstance(event, Step):
                        steps.append(event)
                        self.now.done += len(event.tokens)
                    elif isinstance(event, Progress):
                        self.now.reading = progress_words(event)
                    elif isinstance(event, Notice):
                        self.now.notes.append(event.text)
                    elif isinstance(event, Done):
                        report = event.report
        finally:
            self._request = 0
        if self._stopped or report is None:
            raise Stopped
        return steps, report

    def number(self) -> int:
        """A fresh request id."""
        return self._client.number()


class Runner:
    """One race. `shuffle` puts the arms into the order in which they run."""

    def __init__(
        self, asker: Asker, order: Order, loaded: Loaded, shuffle: Callable[[list[int]], None] = random.shuffle
    ) -> None:
        self._asker, self._order, self._loaded, self._shuffle = asker, order, loaded, shuffle
        self._seed = random.getrandbits(63) if order.seed is None else order.seed

    async def run(self, arms: Sequence[Arm]) -> Race:
        """All arms in random order. An arm that is refused has a problem, and the others go on.

        Raises EngineError if the engine died or no arm could run, Stopped if the user stopped it before all had run.
        """
        lanes: dict[int, Lane] = {}
        turns = list(range(len(arms)))
        self._shuffle(turns)
        for turn, place in enumerate(turns):
            told = f"{arms[place].label}, {turn + 1} of {len(arms)}"
            lanes[place] = await self._lane(arms[place], turn, told)
        made = [lanes[place] for place in range(len(arms))]
        order = self._order
        race = Race(
            created=time.time(),
            prompt=order.name,
            asked=order.messages[-1].content,
            model=order.model.model,
            title=self._loaded.title,
            device=self._loaded.device,
            dtype=self._loaded.dtype,
            bits=self._loaded.bits,
            threads=self._loaded.threads,
            exact=order.model.exact is not None,
            rule=order.rule,
            sampling=self._sampling(order.sampling.max_tokens),
            seed=self._seed,
            lanes=made,
        )
        if not race.run:
            raise EngineError("No lane could run.", " ".join(lane.problem for lane in made))
        with contextlib.suppress(Stopped):  # the race itself is done
            await self._partings(race)
        return race

    async def _lane(self, arm: Arm, turn: int, told: str) -> Lane:
        """One arm, warmed up first."""
        lane = Lane(arm=arm, turn=turn)
        try:
            self._asker.phase(f"{told}: warming up")
            await self._warm(arm)
            self._asker.phase(told)
            sampling = self._sampling(self._order.sampling.max_tokens)
            lane.steps, lane.report = await self._asker.ask(self._generate(arm, sampling))
            lane.notes = self._asker.now.notes
        except EngineDied:
            raise
        except EngineError as error:
            lane.problem = " ".join(filter(None, (error.message, error.hint)))
        return lane

    async def _warm(self, arm: Arm) -> None:
        """A short answer to something else: it loads the drafter's weights and clears what was read before."""
        warm = Sampling(max_tokens=_WARM_TOKENS, temperature=0.0)
        await self._asker.ask(self._generate(arm, warm, prompt=_WARM_UP))

    def _sampling(self, limit: int | None) -> Sampling:
        return msgspec.structs.replace(self._order.sampling, seed=self._seed, max_tokens=limit or LIMIT)

    def _generate(self, arm: Arm, sampling: Sampling, *, prompt: str | None = None, detail: bool = False) -> Generate:
        order = self._order
        return Generate(
            id=self._asker.number(),
            model=order.model,
            messages=order.messages if prompt is None else None,
            prompt=prompt,
            sampling=sampling,
            drafter=arm.drafter,
            rule=order.rule,
            think=order.think if prompt is None else None,
            detail=detail,
        )

    async def _partings(self, race: Race) -> None:
        """Where texts leave that of the reference, with both passes' chances as far as they can be had again."""
        reference = race.reference
        assert reference is not None
        for lane in race.run:
            if lane is reference:
                continue
            found = part(reference, lane)
            if found is None:
                continue
            race.partings.append(found)
            ours, theirs = [await self._look(one, found.token) for one in (reference, lane)]
            parting.judge(found, ours, theirs, dtype=race.dtype, exact=race.exact)

    async def _look(self, lane: Lane, place: int) -> parting.Seen | None:
        """The token at a place once more with its chances; None if it goes another way now."""
        self._asker.phase(f"{lane.label}: looking at token {place + 1}, where the texts part")
        assert lane.report is not None
        try:
            await self._warm(lane.arm)
            steps, _ = await self._asker.ask(self._generate(lane.arm, self._sampling(place + 1), detail=True))
        except EngineDied:
            raise
        except EngineError:
            return None
        return parting.seen(steps, place, lane.report.token_ids)


def part(one: Lane, other: Lane) -> Parting | None:
    """Where the text of `other` leaves that of `one`, not judged yet; None if it does not."""
    assert one.report is not None and other.report is not None
    place = parting.first_difference(one.report.token_ids, other.report.token_ids)
    if place is None:
        return None
    return Parting(
        one=one.label,
        other=other.label,
        token=place,
        before=parting.text_before(one.steps, place),
        ours=Said(parting.text_at(one.steps, place)),
        theirs=Said(parting.text_at(other.steps, place)),
    )
