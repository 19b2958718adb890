"""The job behind `outrider drafters test`: figures by depth, readings of a file, and drafters that break."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import toys

from outrider.core.base.errors import Cancelled, DrafterError, UsageError
from outrider.core.base.protocol import BenchPrompt, DrafterChoice, DrafterTest, ModelChoice
from outrider.core.drafting import Context, Draft, Drafter, Fit, Match, ModelInfo, Shape, Stateless, registry
from outrider.core.measure import drafter_test as trials
from outrider.core.measure.drafter_test import run
from outrider.core.model.model import TargetModel
from outrider.core.session.engine import Engine

PROMPTS = [BenchPrompt("one", "a", ["abc"]), BenchPrompt("two", "a", ["hello"])]


class Copy(Stateless):
    """Asks a copy of the target, `shift` tokens late; with `wide` every level has a second, wrong child before the right one.

    From token `right` of a draft on all is wrong.
    """

    def __init__(self, target: TargetModel, shift: int = 0, wide: bool = False, right: int = 99) -> None:
        self.model = TargetModel(target.decoder, target.info, target.context)
        self.shape = Shape(nodes=16 if wide else 8, depth=8)
        self.shift, self.wide, self.right = shift, wide, right

    def propose(self, context: Context) -> Draft | None:
        ids = list(context.tokens)
        tokens: list[int] = []
        while len(tokens) < (context.nodes // 2 if self.wide else context.nodes):
            self.model.rewind(0)
            rows = self.model.forward([*ids, *tokens]).logits
            tokens.append(int(rows[-1 - self.shift].argmax()))
        tokens[self.right :] = [(token + 1) % 250 for token in tokens[self.right :]]
        if not self.wide:
            return Draft(torch.tensor(tokens))
        both = [one for token in tokens for one in ((token + 1) % 250, token)]
        parents = [-1 if level == 0 else 2 * level - 1 for level in range(len(tokens)) for _ in range(2)]
        return Draft(torch.tensor(both, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64))


class Plain:
    """Whatever `options` ask for."""

    api = 1

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.ANY, "fits")

    def load(self, target, match, options) -> Drafter:
        return Copy(target, options.get("shift", 0), options.get("wide", False), options.get("right", 99))


class Twofold(Plain):
    """Its files can be read in two ways."""

    def readings(self, model: ModelInfo, match: Match) -> Sequence[Mapping[str, object]]:
        return [{"shift": 1}, {"shift": 0}]


class Half(Plain):
    """Right for two tokens, as a chain and as a tree."""

    def readings(self, model: ModelInfo, match: Match) -> Sequence[Mapping[str, object]]:
        return [{"right": 2}, {"right": 2, "wide": True}]


class Tree(Twofold):
    """One reading, a tree."""

    def readings(self, model: ModelInfo, match: Match) -> Sequence[Mapping[str, object]]:
        return [{"wide": True}]


class Breaks(Plain):
    """Fails when it is asked the third time."""

    def load(self, target, match, options) -> Drafter:
        return toys.Broken("propose", 3)


class CannotSay(Plain):
    """Fails when it is asked for its readings."""

    def readings(self, model: ModelInfo, match: Match) -> Sequence[Mapping[str, object]]:
        raise ValueError("no idea")


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint(method.__name__.lower(), f"{__name__}:{method.__name__}", registry.GROUP)
        for method in (Plain, Twofold, Half, Tree, Breaks, CannotSay)
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


def answer(engine: Engine, folder: Path, name: str, **more: Any) -> dict[str, Any]:
    choice = DrafterChoice(name=name, tokens=more.pop("tokens", None), options=more.pop("options", {}))
    model = ModelChoice(model=str(folder), dtype="fp32", device="cpu")
    request = DrafterTest(1, model, more.pop("prompts", PROMPTS), choice, limit=17)
    return run(engine, request, lambda event: None, more.pop("cancelled", lambda: False))


def test_a_perfect_drafter(engine: Engine, folder: Path) -> None:
    (trial,) = answer(engine, folder, "plain", tokens=4)["trials"]
    assert (trial["same_text"], trial["prompts"], trial["tokens"]) == (2, 2, 34)
    assert trial["depths"] == [1.0] * 4  # 16 tokens behind the first: 5 + 5 + 5, and the last one needs no draft
    assert trial["reached"] == [6, 6, 6, 6]
    assert (trial["rounds"], trial["passes"], trial["mean_accepted"]) == (6, 8, 4.0)
    assert trial["tokens_per_pass"] == 4.0
    assert min(trial["draft_ms"], trial["verify_ms"], trial["plain_ms"]) > 0


def test_the_better_reading_is_named(engine: Engine, folder: Path) -> None:
    data = answer(engine, folder, "twofold")
    assert [trial["reading"] for trial in data["trials"]] == [{"shift": 1}, {"shift": 0}]
    assert data["best"] == 1
    assert data["trials"][1]["accepted"] > data["trials"][0]["accepted"]
    assert all(trial["same_text"] == 2 for trial in data["trials"])
    assert all(drafter.name != "twofold" for drafter in engine.model.cache.drafters)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        ([(1.5, 0.1), (1.7, 0.1)], 0),  # by chance
        ([(1.5, 0.1), (1.7, 0.1), (1.9, 0.1)], 2),
        ([(1.5, 0.0), (1.5, 0.0)], 0),
        ([(1.5, 0.1, "it broke"), (0.1, 0.1)], 1),
        ([(1.5, 0.1), (9.0, 0.1, "it broke")], 0),
    ],
)
def test_another_than_the_usual_reading_is_named_only_if_it_is_surely_better(figures: list[Any], best: int) -> None:
    def trial(mean: float, error: float, problem: str = "") -> trials.Trial:
        return msgspec.structs.replace(trials._Tally().trial({}, problem), mean_accepted=mean, error=error)

    assert trials._best([trial(*row) for row in figures]) == best


def test_what_the_user_settles_is_not_tried_in_another_way(engine: Engine, folder: Path) -> None:
    (trial,) = answer(engine, folder, "twofold", options={"shift": 0}, tokens=4)["trials"]
    assert (trial["reading"], trial["mean_accepted"]) == ({}, 4.0)
    trials = answer(engine, folder, "half", options={"right": 1}, tokens=4)["trials"]
    assert [trial["reading"] for trial in trials] == [{}, {"wide": True}]
    assert trials[0]["depths"] == [1.0, 0.0]


def test_every_turn_is_answered_behind_the_plain_answers(engine: Engine, folder: Path) -> None:
    prompts = [BenchPrompt("two", "a", ["abc", "once more"])]
    (trial,) = answer(engine, folder, "plain", tokens=4, prompts=prompts)["trials"]
    assert (trial["prompts"], trial["answers"], trial["same_text"], trial["tokens"]) == (1, 2, 2, 34)
    assert trial["tokens_per_pass"] == 4.0


def test_a_tree_is_counted_by_its_levels(engine: Engine, folder: Path) -> None:
    (trial,) = answer(engine, folder, "tree")["trials"]
    assert trial["depths"] == [1.0] * len(trial["depths"])
    assert len(trial["depths"]) == 7  # 15 nodes are left room for
    assert trial["proposed"] == 2 * trial["accepted"]


def test_drafts_that_are_right_in_part_are_counted_by_depth(engine: Engine, folder: Path) -> None:
    chain, tree = answer(engine, folder, "half", tokens=8)["trials"]
    assert chain["depths"] == [1.0, 1.0, 0.0]
    assert chain["reached"] == [10, 10, 10]  # 16 tokens of each answer: five rounds of 3, and one without a draft
    assert tree["depths"][:3] == [1.0, 1.0, 0.0]
    assert (chain["mean_accepted"], tree["mean_accepted"]) == (2.0, 1.8)  # less room at the end for two of each level


def test_a_drafter_that_breaks_is_told_and_the_rest_is_left_out(engine: Engine, folder: Path) -> None:
    (trial,) = answer(engine, folder, "breaks", tokens=2)["trials"]
    assert "failed in propose: RuntimeError: it broke" in trial["problem"]
    assert (trial["answers"], trial["same_text"]) == (1, 1)


def test_a_difference_is_told_with_its_place(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.core.decode import rounds

    honest = rounds.accept

    def careless(*words: Any, **more: Any) -> Any:
        taken = honest(*words, **more)
        if not len(words[1]):
            return taken
        return replace(taken, tokens=torch.tensor([*taken.tokens[:-1], (taken.tokens[-1] + 1) % 250]))

    monkeypatch.setattr(rounds, "accept", careless)
    (trial,) = answer(engine, folder, "plain", tokens=4)["trials"]
    assert trial["same_text"] == 0
    assert [(one["prompt"], one["turn"], one["token"]) for one in trial["differences"]] == [
        ("one", 0, 5),
        ("two", 0, 5),
    ]
    assert all(0 < one["gap"] < 1 for one in trial["differences"])


def test_what_cannot_be_tested(engine: Engine, folder: Path) -> None:
    with pytest.raises(UsageError, match="no prompts"):
        answer(engine, folder, "plain", prompts=[])
    with pytest.raises(UsageError, match="no drafter to test"):
        answer(engine, folder, "none")
    with pytest.raises(DrafterError, match="Asking the drafter cannotsay for readings failed: ValueError: no idea"):
        answer(engine, folder, "cannotsay")
    with pytest.raises(Cancelled):
        answer(engine, folder, "plain", cancelled=lambda: True)
