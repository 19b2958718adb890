"""A drafter that failed stays failed until it is asked for, and leaves nothing in memory; options are checked first."""

from __future__ import annotations

import gc
import importlib.metadata
import re
import sys
import weakref
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import toys

from outrider.core.base.errors import DrafterError, UsageError
from outrider.core.base.protocol import DrafterChoice, DrafterRow
from outrider.core.drafting import Context, Draft, Fit, Match, ModelInfo, Stateless, Target, active, registry
from outrider.core.policy.policy import Policy
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine

LOADED: list[str] = []  # names of what was read
ALIVE: list[weakref.ref[Any]] = []
CLOSED: list[str] = []


class Made(Stateless):
    """Notes when it is made and closed."""

    def __init__(self, name: str, broken: bool = False) -> None:
        self.name, self.broken = name, broken
        LOADED.append(name)
        ALIVE.append(weakref.ref(self))

    def propose(self, context: Context) -> Draft | None:
        if self.broken:
            raise RuntimeError("it broke")
        return None

    def close(self) -> None:
        CLOSED.append(self.name)


class Good:
    api = 1
    name = "good"
    options: Mapping[str, str] = {"size": "how large", "fast": "whether it hurries"}

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.EXACT, "fits")

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Stateless:
        return Made(self.name)


class Breaks(Good):
    """Fails in its first draft."""

    name = "breaks"

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Stateless:
        return Made(self.name, broken=True)


class Unreadable(Good):
    """Fails when its files have been read."""

    name = "unreadable"

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Stateless:
        read = Made(self.name)
        raise OSError(f"{read.name} cannot be read")


class Optionless(Good):
    name = "optionless"
    options: Mapping[str, str] = {}


class Open(Good):
    """Says nothing of options."""

    name = "open"
    options: Any = None


METHODS = (Good, Breaks, Unreadable, Optionless, Open)


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("failing_plugins")
    module.__dict__.update({method.__name__: method for method in METHODS})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [
        importlib.metadata.EntryPoint(method.name, f"{module.__name__}:{method.__name__}", registry.GROUP)
        for method in METHODS
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    for noted in (LOADED, ALIVE, CLOSED):
        noted.clear()


def model(*names: str) -> Any:
    """One with drafters made for it, the best last."""
    rows = [
        DrafterRow(name=name, usable=True, fit="exact", where="shipped", gain=1.0 + number)
        for number, name in enumerate(names)
    ]
    return SimpleNamespace(rows=rows, policy=Policy(), cache=ChatCache(toys.target()), refused=[], choice=None)


def ask(
    engine: Engine, here: Any, name: str, notes: list[str] | None = None, **options: Any
) -> active.ActiveDrafter | None:
    return engine.drafter(here, DrafterChoice(name=name, options=options), (notes if notes is not None else []).append)


def propose(rider: active.ActiveDrafter | None) -> None:
    """Ask for a draft, which some fail at."""
    assert rider is not None
    rider.propose(Context([1, 2], 4, False, None, None, None), 48)  # type: ignore[arg-type]


def test_one_that_failed_is_closed_and_not_read_for_the_next_answer() -> None:
    engine, here, notes = Engine(), model(), list[str]()
    engine.model = here
    propose(ask(engine, here, "breaks", notes))
    assert CLOSED == ["breaks"] and len(notes) == 1
    gc.collect()
    assert not any(one() for one in ALIVE)
    for _ in range(3):
        assert ask(engine, here, "breaks", notes) is None
    assert LOADED == ["breaks"] and len(notes) == 1
    assert ask(engine, here, "breaks", size=2) is not None  # another drafter
    engine.ask_again(DrafterChoice(name="good"))
    assert ask(engine, here, "breaks") is None
    engine.ask_again(DrafterChoice(name="breaks"))
    assert ask(engine, here, "breaks") is not None
    assert LOADED == ["breaks"] * 3


def test_so_is_one_that_could_not_be_loaded() -> None:
    engine, here = Engine(), model()
    engine.model = here
    for _ in range(3):
        with pytest.raises(DrafterError, match="unreadable cannot be read") as caught:
            ask(engine, here, "unreadable")
        del caught
    assert LOADED == ["unreadable"]
    gc.collect()
    assert not any(one() for one in ALIVE)
    engine.ask_again(DrafterChoice(name="auto"))
    with pytest.raises(DrafterError):
        ask(engine, here, "unreadable")
    assert len(LOADED) == 2


def test_of_several_those_loaded_before_the_failing_one_are_kept_and_closed_with_the_rest() -> None:
    engine, here = Engine(), model("breaks", "good", "unreadable")
    assert engine._drafters(here, DrafterChoice(name="composite"), None, None)[0][-1] == "unreadable"
    engine.model = here
    with pytest.raises(DrafterError):
        ask(engine, here, "composite")
    assert LOADED[-1] == "unreadable" and len(LOADED) > 1 and not CLOSED
    assert ask(engine, here, "good") is not None and LOADED.count("good") == 1
    engine.unload()
    assert sorted(CLOSED) == sorted(set(LOADED) - {"unreadable"})


def test_auto_goes_on_without_it_and_says_so_once() -> None:
    engine, here, notes = Engine(), model("good", "unreadable"), list[str]()
    rider = ask(engine, here, "auto", notes)
    assert rider is not None and rider.parts == ("good",)
    assert ask(engine, here, "auto", notes) is rider
    assert sorted(LOADED) == ["good", "unreadable"] and len(notes) == 1 and not CLOSED


def test_what_is_there_is_closed_after_an_interrupt_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, here = Engine(), model("good", "breaks")
    engine.model = here
    monkeypatch.setattr(Breaks, "load", lambda *some: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ask(engine, here, "auto")
    engine.unload()
    assert LOADED == CLOSED == ["good"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("good", "has no option zz. It has: size, fast. .*drafters show good"), ("optionless", "has no options")],
)
def test_an_unknown_option_is_refused_before_anything_is_loaded(name: str, words: str) -> None:
    for ask_for in (
        lambda: ask(Engine(), model(), name, zz=1),
        lambda: registry.load(name, toys.target(), {"weights": None, "zz": 1}, print),
    ):
        with pytest.raises(UsageError) as caught:
            ask_for()
        assert re.search(words, f"{caught.value.message} {caught.value.hint}")
    assert not LOADED


def test_known_options_and_those_of_a_method_that_declares_none_are_handed_on() -> None:
    assert ask(Engine(), model(), "good", size=3) is not None
    assert ask(Engine(), model(), "open", zz=1) is not None
    assert registry.options_of(registry.named("open")) is None


def test_each_of_ours_declares_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ours = [entry for entry in registry.entries() if entry.trusted]
    assert len(ours) == 9
    for entry in ours:
        told = registry.options_of(entry)
        assert told is not None and all(meaning.strip() for meaning in told.values())
        assert "weights" not in told
