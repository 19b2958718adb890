"""The drafters of a loaded model: each is loaded once and shared by `auto`, composites and its own name, with what it knows.

A drafter that is not in use keeps what it knows of the conversation, and gets the rest when it is next asked for a draft. One
that failed, while loading or drafting, is not loaded again until the user asks for it. Where memory is short, the drafter that
was used longest ago is closed, and loaded again when it is next wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from outrider.core.base.errors import DrafterError, ModelError
from outrider.core.base.trouble import out_of_memory, release
from outrider.core.drafting import registry
from outrider.core.drafting.active import GuardedDrafter
from outrider.core.drafting.contract import Committed, Context, DeviceContext, Drafter, Target
from outrider.core.policy.unverified import Scored, UnverifiedDraft
from outrider.core.sampling.draft_tree import DraftTree

OPEN = 8  # offers of one drafter that wait to be judged
WATCHED = 8  # tokens of each that are judged: soon, rather than deep
LATE, HELD = 64, 1024  # tokens that wait for a free drafter at most, and for another one
HELD_BYTES = 16 << 20  # of hidden states that wait for one drafter

Key = tuple[str, str, str]  # method, weights, options


@dataclass(frozen=True, slots=True)
class Wanted:
    """A drafter by what it is loaded from. `weights`: a path, None for a method that needs none."""

    name: str
    weights: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The same for the same drafter, however its path and options are written."""
        options = sorted((name, str(value)) for name, value in self.options.items() if value is not None)
        return self.name, os.path.realpath(self.weights) if self.weights else "", repr(options)


class PooledDrafter(GuardedDrafter):
    """A loaded drafter. Tokens may reach it later, all at once; offers that were not verified wait for the text to come."""

    def __init__(self, name: str, drafter: Drafter, trusted: bool, report: Callable[[str], None]) -> None:
        super().__init__(name, drafter, trusted, report)
        self.make_room: Callable[[], bool] = lambda: False  # closes another drafter where memory is short, if it can
        self._forget()

    def _forget(self) -> None:
        self._offers: list[tuple[UnverifiedDraft, list[float] | None]] = []  # and how sure it was of each token
        self._waiting: list[Committed] = []
        self.behind = self._held = 0  # tokens that wait, of those it is said to know, and bytes of their states

    def reset(self) -> None:
        """Forget the conversation."""
        self._forget()
        super().reset()

    def observe(self, step: Committed) -> None:
        """Tokens that another one drafted, or nobody: passed on when this one is next asked, or when too many would wait."""
        if not self.failed:
            self._waiting.append(step)
            self.behind += step.tokens.shape[0]
            self._held += 0 if step.hidden is None else step.hidden.nbytes
        self.known = step.start + step.tokens.shape[0]
        if step.hidden is not None:
            self._states.add(step)
        if self.behind >= (LATE if self.free else HELD) or self._held >= HELD_BYTES:
            self.catch_up()

    def catch_up(self) -> None:
        """Tell it what waits."""
        if self._waiting:
            self._call("advance", _joined(self._waiting))
        self._waiting, self.behind, self._held = [], 0, 0

    def advance(self, step: Committed) -> None:
        """Tell it what became true, and first what waits."""
        if self._waiting:
            self.catch_up()
        super().advance(step)

    def rewind(self, length: int) -> None:
        """Cut it, and what waits, to `length` tokens."""
        self._offers.clear()
        passed_on = self.known - self.behind
        if length < passed_on:
            self._forget()
            super().rewind(length)
        elif length < self.known:
            self._waiting = [_first(step, length - step.start) for step in self._waiting if step.start < length]
            self._held = sum(step.hidden.nbytes for step in self._waiting if step.hidden is not None)
            self.behind, self.known = length - passed_on, length
            self._states.cut(length)

    def propose(self, context: Context, vocab: int, *, trees: bool = True) -> DraftTree | None:
        """A checked draft, or None; made with all tokens that it was to get."""
        if self._waiting:
            self.catch_up()
        return super().propose(context, vocab, trees=trees)

    def propose_device(self, context: DeviceContext) -> DraftTree | None:
        """As `DeviceDrafter`; made with all tokens that it was to get."""
        self.catch_up()
        return super().propose_device(context)

    def watch(self, position: int, tokens: Sequence[int], sure: list[float] | None) -> None:
        """An offer of it waits for the text that comes; there are so many at most."""
        if len(self._offers) < OPEN:
            shadow = UnverifiedDraft(self.name)
            shadow.offer(position, tokens[:WATCHED])
            self._offers.append((shadow, sure))

    def judged(self, start: int, tokens: Sequence[int]) -> list[tuple[Scored, list[float] | None]]:
        """Offers that the tokens from `start` on settle, with how sure it was of them."""
        offers, self._offers = self._offers, []
        scores = list[tuple[Scored, list[float] | None]]()
        for shadow, sure in offers:
            for scored in shadow.score(start, tokens):
                scores.append((scored, sure))
            if not shadow.wants:
                self._offers.append((shadow, sure))
        return scores

    def _has_room(self, phase: str) -> bool:
        if phase not in ("advance", "propose") or not self.make_room():
            return False
        if phase == "advance":  # it may have got a part of it
            self._call("rewind", self.known - self.behind)
        return True


def load_drafter(wanted: Wanted, target: Target, report: Callable[[str], None]) -> PooledDrafter:
    """Raises DrafterError if it is unknown, does not fit, or fails to load, ModelError for weights that are of no use."""
    options = {**wanted.options, "weights": wanted.weights}
    return cast(PooledDrafter, registry.load(wanted.name, target, options, report, PooledDrafter))


class DrafterPool:
    """Of one loaded model. It owns its drafters: who takes one from it does not close it."""

    def __init__(self) -> None:
        self._drafters: dict[Key, PooledDrafter] = {}  # the one that was used longest ago first
        self._errors: dict[Key, DrafterError | ModelError] = {}  # of those that could not be loaded
        self._taken: set[Key] = set()  # who drafts now
        self.weights: dict[str, str | None] = {}  # paths that were found for methods, where the user named none

    def __iter__(self) -> Iterator[PooledDrafter]:
        """Those that are loaded."""
        return iter(list(self._drafters.values()))

    def take(self, wanted: Iterable[Wanted], load: Callable[[Wanted], PooledDrafter]) -> list[PooledDrafter]:
        """The drafters of one choice; those that are not here are loaded by `load`.

        Raises what loading the first one raised that cannot be loaded; that has failed then, and the others stay loaded.
        """
        chosen, before = list(wanted), self._taken
        self._taken = {one.key for one in chosen}
        try:
            return [self._take(one, load) for one in chosen]
        except BaseException:
            self._taken = before
            raise

    def failed(self, wanted: Wanted) -> bool:
        """Whether that drafter failed."""
        drafter = self._drafters.get(wanted.key)
        return wanted.key in self._errors or (drafter is not None and drafter.failed)

    def complain(self, wanted: Wanted) -> None:
        """Raises what loading it raised; one that failed later said so then."""
        error = self._errors.get(wanted.key)
        if error is not None:
            raise type(error)(error.message, error.hint)

    def forgive(self, name: str) -> None:
        """Drafters of that method that failed may be loaded again; `auto` and `composite`: all."""
        named = {key for key in (*self._errors, *self._drafters) if name in (key[0], "auto", "composite")}
        for key in named:
            failed = self._errors.pop(key, None) is not None
            if key in self._drafters and self._drafters[key].failed:
                del self._drafters[key]
                failed = True
            if failed:
                self.weights.pop(key[0], None)

    def put(self, wanted: Wanted, drafter: PooledDrafter) -> None:
        """Have a drafter that was loaded elsewhere; it is the pool's to close from now on, as another in its place is."""
        if self._drafters.get(wanted.key) is not drafter:
            self.drop(wanted)
        self._drafters[wanted.key] = drafter

    def drop(self, wanted: Wanted) -> None:
        """Close a drafter, if it is here, and forget whether it failed."""
        self._errors.pop(wanted.key, None)
        drafter = self._drafters.pop(wanted.key, None)
        if drafter is not None:
            drafter.close()

    def rewind(self, length: int) -> None:
        """Cut what all know to `length` tokens."""
        for drafter in self._drafters.values():
            drafter.rewind(length)

    def make_room(self) -> bool:
        """Close the drafter that was used longest ago and does not draft now; False where there is none. Free ones stay."""
        for key, drafter in self._drafters.items():
            if key not in self._taken and not drafter.free and not drafter.failed:
                del self._drafters[key]
                drafter.close()
                release()
                return True
        return False

    def close(self) -> None:
        """Close all."""
        for drafter in self:
            drafter.close()
        self._drafters.clear()

    def _take(self, wanted: Wanted, load: Callable[[Wanted], PooledDrafter]) -> PooledDrafter:
        key = wanted.key
        drafter = self._drafters.pop(key, None)
        if drafter is None:
            drafter = self._load(wanted, load)
            drafter.make_room = self.make_room
            drafter.reset()
        self._drafters[key] = drafter
        return drafter

    def _load(self, wanted: Wanted, load: Callable[[Wanted], PooledDrafter]) -> PooledDrafter:
        while True:
            try:
                return load(wanted)
            except (DrafterError, ModelError) as error:
                short = out_of_memory(error.__cause__) if error.__cause__ is not None else False
                if not (short and self.make_room()):
                    # what is kept has no trace, which would keep all that had been read
                    self._errors[wanted.key] = type(error)(error.message, error.hint)
                    raise
            release()  # what it had read is free only now that its exception is gone


def _joined(steps: Sequence[Committed]) -> Committed:
    """Steps that follow each other as one; of their states those that reach to the end without a gap."""
    if len(steps) == 1:
        return steps[0]
    states: list[Tensor] = []
    for step in reversed(steps):
        if step.hidden is None:
            break
        states.insert(0, step.hidden)
        if step.hidden.shape[0] < step.tokens.shape[0]:
            break
    tokens = torch.cat([step.tokens for step in steps])
    return Committed(steps[0].start, tokens, torch.empty(0, dtype=torch.int64), torch.cat(states) if states else None)


def _first(step: Committed, count: int) -> Committed:
    """The first `count` tokens of a step, with their states."""
    if count >= step.tokens.shape[0]:
        return step
    missing = step.tokens.shape[0] - (step.hidden.shape[0] if step.hidden is not None else 0)
    hidden = None if step.hidden is None or count <= missing else step.hidden[: count - missing]
    return replace(step, tokens=step.tokens[:count], hidden=hidden)
