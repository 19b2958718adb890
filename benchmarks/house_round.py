"""What one decode round on a CPU does, counted in the process that house.py starts: calls, depth, value types.

    PYTHONPATH=ROOT/core:ROOT/plugins:ROOT/app:ROOT/assets python benchmarks/house_round.py ROOT

A small model answers greedily under `auto`, where prompt lookup and suffix draft, at most 4 tokens. A round is what happens
between two `Step` frames. Only Python functions in files below ROOT/core and ROOT/plugins count: a call is an entry into one,
also of a generator that goes on. Depth: how many of them are on the stack at once, the one that loops over the rounds included.

The clock that the engine reads moves by as much at each reading. So a count depends on the code alone: on a busy machine the
policy would decide otherwise, and what is told a few times a second would be told in every round.

Value types: classes of Outrider of which a drafted round makes an object: it is seen among the variables of a function or in
their fields, and was not there in an earlier round. Frames of the protocol do not count, nor do `OTHERS`, which say nothing of
a draft.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import small_model

TICK = 2e-5  # seconds from one reading of the clock to the next
ROUNDS = 100  # that are looked at
SKIPPED = 20  # first ones, in which there is little to look up
# Values that a round may make and that say nothing of a draft.
OTHERS = {
    *("Context", "Pass", "Where", "PassLayout"),  # what a drafter is asked with; what a pass is run with and gives
    *("MeteredRound", "Stalls", "Speedup", "PlainPass", "_Block", "Drafting"),  # times
    *("Token", "Splitter", "Piece"),  # text
}


class Calls:
    """Own calls and depth between two events, by the hook of the profiler."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._own = tuple(f"{root}/{tree}/" for tree in ("core", "plugins"))
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.functions: Counter[CodeType] = Counter()
        self._stack: list[CodeType] = []
        self._depth = self._least = self._most = 0

    @property
    def count(self) -> int:
        """Calls of own functions."""
        return self.functions.total()

    @property
    def depth(self) -> int:
        """Frames at once, the loop's own included."""
        return self._most - self._least + 1

    def hook(self, frame: FrameType, event: str, arg: Any) -> None:
        """As `sys.setprofile` calls it."""
        if event in ("call", "return") and frame.f_code.co_filename.startswith(self._own):
            if event == "call":
                self.functions[frame.f_code] += 1
            self._depth += 1 if event == "call" else -1
            self._least = min(self._least, self._depth)
            if self._depth > self._most:
                self._most, self._stack = self._depth, self._frames(frame)

    def _frames(self, frame: FrameType | None) -> list[CodeType]:
        """Own functions on the stack, the innermost first."""
        found = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._own):
                found.append(frame.f_code)
            frame = frame.f_back
        return found

    @property
    def stack(self) -> list[str]:
        """The deepest stack, from the loop over the rounds on."""
        return [self.name(code) for code in self._stack[: self.depth]][::-1]

    def name(self, code: CodeType) -> str:
        """File and function."""
        return f"{Path(code.co_filename).relative_to(self._root)}:{code.co_qualname}"


@dataclass(frozen=True, slots=True)
class Found:
    """What one round called."""

    calls: int
    depth: int
    functions: Mapping[str, int]  # calls by function
    stack: list[str]  # the deepest one


class Values:
    """Types of values that a round makes."""

    def __init__(self, root: str) -> None:
        self._own = tuple(f"{root}/{tree}/" for tree in ("core", "plugins"))
        self._known: dict[int, Any] = {}  # objects of all rounds, held so that no number is given twice
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.made: set[str] = set()

    def hook(self, frame: FrameType, event: str, arg: Any) -> None:
        """As `sys.setprofile` calls it."""
        if event == "return" and frame.f_code.co_filename.startswith(self._own):
            for value in [arg, *frame.f_locals.values()]:
                self._look(value, 3)

    def _look(self, value: Any, deep: int) -> None:
        if isinstance(value, list | tuple | dict) and not hasattr(value, "_fields"):
            inner = list(value.values() if isinstance(value, dict) else value)[:8]
        elif _ours(value):
            if id(value) in self._known:
                return
            self._known[id(value)] = value
            self.made.add(f"{type(value).__module__.removeprefix('outrider.core.')}:{type(value).__name__}")
            inner = [getattr(value, name, None) for name in _fields(value)]
        else:
            return
        for one in inner if deep else ():
            self._look(one, deep - 1)


def _ours(value: Any) -> bool:
    return type(value).__module__.startswith(("outrider.core", "outrider.drafters"))


def _fields(value: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass, named tuple, struct or class with slots; none of others."""
    for names in ("__dataclass_fields__", "_fields", "__struct_fields__", "__slots__"):
        if found := getattr(type(value), names, ()):
            return tuple(found)
    return ()


class Undisturbed:
    """Control of an answer."""

    def cancelled(self) -> bool:
        return False

    def switched(self) -> None:
        return None

    def switch_done(self, name: str, error: Exception | None) -> None:
        pass


def find(*names: str) -> Any:
    """The first of these modules of core that there is: where it is, and where it was before the rooms."""
    for name in (f"outrider.core.{name}" for name in names):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise SystemExit(f"None of these is there: {', '.join(names)}")


def watch(look: Calls | Values, engine: Any, protocol: Any, folder: Path) -> list[tuple[int, int, Any]]:
    """Every round after the first ones: tokens proposed, tokens given, and what was found (`Found` or types)."""
    found: list[tuple[int, int, Any]] = []
    left = SKIPPED

    def say(event: Any) -> None:
        nonlocal left
        sys.setprofile(None)
        if not isinstance(event, protocol.Step):
            return
        if left < 0:
            what: Any = look.made if isinstance(look, Values) else None
            if isinstance(look, Calls):
                what = Found(
                    look.count, look.depth, {look.name(code): n for code, n in look.functions.items()}, look.stack
                )
            found.append((event.proposed, len(event.tokens), what))
        left -= 1
        look.begin()
        sys.setprofile(look.hook)

    for number in range(1, 100):
        request = protocol.Generate(
            id=number,
            model=protocol.ModelChoice(model=str(folder), device="cpu", dtype="fp32", threads=1),
            prompt=f"{number} The sea is red and the sea is blue and the sun is red.",
            sampling=protocol.Sampling(temperature=0.0, max_tokens=300, seed=1),
            drafter=protocol.DrafterChoice(name="auto", tokens=4),
        )
        left = SKIPPED
        engine.generate(request, say, Undisturbed())
        sys.setprofile(None)
        if len(found) >= ROUNDS:
            break
    return found


def main(root: str) -> None:
    protocol = find("base.protocol", "protocol")
    home = find("session.engine", "engine")
    assert home.__file__ is not None and home.__file__.startswith(f"{root}/"), home.__file__
    ticks = itertools.count()
    time.perf_counter = lambda: TICK * next(ticks)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["OUTRIDER_HOME"] = f"{scratch}/home"
        folder = small_model.write(Path(scratch) / "small")
        engine = home.Engine()
        rounds = watch(Calls(root), engine, protocol, folder)
        values = watch(Values(root), engine, protocol, folder)
    drafted = [found for proposed, _, found in rounds if proposed]
    short = [found for proposed, tokens, found in rounds if proposed and tokens == 1]
    plain = [found for proposed, _, found in rounds if not proposed]
    made = [found for proposed, _, found in values if proposed]
    kinds = {kind for kind in set().union(*made) if sum(kind in found for found in made) > 1}
    figures = {
        "own calls of a CPU round that drafts": statistics.median(one.calls for one in drafted),
        "… and gives one token": statistics.median(one.calls for one in short),
        "own calls of a plain CPU round under auto": statistics.median(one.calls for one in plain),
        "depth of a CPU round that drafts": statistics.median(one.depth for one in drafted),
        "value types that a drafted CPU round makes": len(wraps := _without(kinds, OTHERS)),
    }
    names = {"types of a round": wraps, "rounds": [len(drafted), len(short), len(plain)]}
    names |= {f"calls of a {name} round": _mean(rounds) for name, rounds in (("drafted", drafted), ("plain", plain))}
    names["deepest stack"] = max(drafted, key=lambda one: one.depth).stack
    print(json.dumps({"figures": {name: int(value) for name, value in figures.items()}, "names": names}))


def _mean(rounds: Sequence[Found]) -> dict[str, float]:
    """Calls by function, the mean over rounds, most first."""
    total: Counter[str] = Counter()
    for one in rounds:
        total.update(one.functions)
    return {name: round(calls / len(rounds), 1) for name, calls in total.most_common()}


def _without(kinds: set[str], others: set[str]) -> list[str]:
    """Those that are neither of `others` nor of the protocol."""
    own = (kind for kind in kinds if kind.rpartition(":")[2] not in others)
    return sorted(kind for kind in own if kind.partition(":")[0].rpartition(".")[2] not in ("protocol", "values"))


if __name__ == "__main__":
    main(sys.argv[1])
