"""A chat that goes through all drafters and back, with a policy that changes its mind: each is loaded once, and its files are."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys
import untrained

from outrider.core.base import paths
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Notice, Report, Sampling
from outrider.core.drafting import registry
from outrider.core.library import drafter_card
from outrider.core.session.engine import Engine
from outrider.drafters.dflash.draft import DFlashDrafter
from outrider.drafters.eagle.draft import EagleDrafter
from outrider.drafters.medusa.draft import MedusaDrafter

MADE = {"eagle": untrained.eagle, "dflash": untrained.dflash, "medusa": untrained.medusa}
FREE = {"prompt_lookup", "suffix"}

OPENED: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    """Notes which files are opened; a hook cannot be taken out again, so it is switched off."""
    listening = True

    def hear(event: str, what: tuple[object, ...]) -> None:
        if listening and event == "open" and str(what[0]).endswith(".safetensors"):
            OPENED.append(str(what[0]))

    sys.addaudithook(hear)
    yield
    listening = False


class Chat:
    """One chat, of which the model sees the newest turns. `pays`: the drafters that `auto` finds worth loading now."""

    def __init__(self, model: Path) -> None:
        self.engine, self.notices = Engine(), list[str]()
        self.model, self.messages = (
            ModelChoice(model=str(model), dtype="fp32", device="cpu"),
            list[Message](),
        )
        self.pays = {*MADE}
        self.passes: Counter[str] = Counter()

    def ask(self, first: str, *switches: str) -> Report:
        """The next answer, with a switch after every third pass."""
        self.messages.append(Message("user", f"abcabc{len(self.messages)}"))
        request = Generate(
            1,
            self.model,
            messages=self.messages[-3:],
            sampling=Sampling(temperature=0, max_tokens=16),
            drafter=DrafterChoice(name=first, tokens=None if first == "auto" else 2),
        )
        loaded = self.engine.load(self.model, 1, self._hear, lambda: False)
        loaded.policy.pays = lambda name, most=8: name in self.pays  # type: ignore[method-assign]
        turns = {3 * number: DrafterChoice(name=name, tokens=2) for number, name in enumerate(switches, 1)}
        control = toys.Still(turns)
        report = self.engine.generate(request, self._hear, control)
        assert [error for _, error in control.answers if error] == [] and len(control.answers) == len(switches)
        self.messages.append(Message("assistant", report.text))
        self.passes.update(report.drafters)
        return report

    def loaded(self) -> dict[str, int]:
        """Every drafter by name with its identity; each name once."""
        assert self.engine.model is not None
        found = list(self.engine.model.cache.drafters)
        assert len({one.name for one in found}) == len(found)
        return {one.name: id(one) for one in found}

    def _hear(self, event: object) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


SCRIPT = [
    ("auto",),
    ("eagle", "dflash", "medusa"),
    ("auto",),
    ("medusa", "suffix", "eagle"),
    ("composite", "dflash"),
    ("auto", "eagle", "auto"),
    ("prompt_lookup", "eagle"),
    ("auto",),
    ("dflash", "medusa", "dflash"),
    ("auto",),
    ("none", "eagle", "composite"),
    ("auto",),
]
MIND = {2: {"eagle"}, 5: {"dflash"}, 7: set(MADE), 9: set[str](), 11: set(MADE)}  # by answer


def test_twelve_answers_load_each_drafter_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: None) -> None:
    model = toys.checkpoint(tmp_path / "toy")
    monkeypatch.setattr(paths, "drafters_dir", lambda: tmp_path / "trained")
    for name, make in MADE.items():
        folder = make(tmp_path / "trained" / f"toy-{name}", untrained.TOY)
        drafter_card.write(folder, _card(name, model))
    plain = Chat(model)
    want = [plain.ask("none").text for _ in SCRIPT]
    builds: Counter[str] = Counter()
    build = registry.build
    monkeypatch.setattr(registry, "build", lambda name, *rest: builds.update([name]) or build(name, *rest))
    chat, seen = Chat(model), dict[str, int]()
    for number, names in enumerate(SCRIPT):
        chat.pays = MIND.get(number, chat.pays)
        opened_before = len(OPENED)
        assert chat.ask(*names).text == want[number]
        now = chat.loaded()
        assert seen.items() <= now.items()  # the same objects, none of them gone
        if set(now) == set(seen):
            assert not [name for name in OPENED[opened_before:] if "/trained/" in name]
        seen = now
    assert set(seen) == {*MADE, *FREE} and builds == Counter(list(seen))
    assert chat.notices == [] and {*MADE} <= set(chat.passes)
    gc.collect()
    for kind in (EagleDrafter, DFlashDrafter, MedusaDrafter):
        assert len([one for one in gc.get_objects() if type(one) is kind]) == 1
    chat.engine.unload()


def _card(method: str, model: Path) -> drafter_card.Card:
    target = drafter_card.fingerprint(model)
    rest = {"data": "", "texts": 1, "tokens": 1, "steps": 1, "parameters": 1, "seed": 0, "hours": 0.0}
    return drafter_card.Card(method=method, model="toy", target=target, command="", outrider="", day="", **rest)  # type: ignore[arg-type]
