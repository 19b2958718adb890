"""The job behind `outrider bench`, in this process: what is measured, in which order, and what a stop leaves."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
import toys

from outrider.core.base.errors import Cancelled, ModelError, UsageError
from outrider.core.base.protocol import Bench, BenchPrompt, DrafterChoice, ModelChoice, Notice, Progress, Sampling
from outrider.core.drafting import Context, Draft, Drafter, Fit, Match, ModelInfo, Shape, Stateless, registry
from outrider.core.measure import bench
from outrider.core.model.model import TargetModel
from outrider.core.session.engine import Engine

PROMPTS = [BenchPrompt("one", "a", ["abc"]), BenchPrompt("two", "b", ["hello", "once more"])]
LIMIT = 13


class Copy(Stateless):
    """Asks a copy of the target; with `wide` every level has a second, wrong child before the right one."""

    def __init__(self, target: TargetModel, wide: bool) -> None:
        self.model = TargetModel(target.decoder, target.info, target.context)
        self.shape = Shape(nodes=8, depth=4) if wide else Shape(nodes=4, depth=4)
        self.wide = wide

    def propose(self, context: Context) -> Draft | None:
        tokens: list[int] = []
        for _ in range(context.nodes // 2 if self.wide else context.nodes):
            self.model.rewind(0)
            tokens.append(int(self.model.forward([*context.tokens, *tokens]).logits[-1].argmax()))
        if not self.wide:
            return Draft(torch.tensor(tokens))
        both = [one for token in tokens for one in ((token + 1) % 250, token)]
        parents = [-1 if level == 0 else 2 * level - 1 for level in range(len(tokens)) for _ in range(2)]
        return Draft(torch.tensor(both), torch.tensor(parents)) if both else None


class Right:
    """Drafts what the target will say."""

    api = 1
    wide = False

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.ANY, "fits")

    def load(self, target: Any, match: Match, options: Any) -> Drafter:
        return Copy(target, self.wide)


class Tree(Right):
    """The same as a tree."""

    wide = True


class Breaks(Right):
    """Fails when it is asked the third time."""

    def load(self, target: Any, match: Match, options: Any) -> Drafter:
        return toys.Broken("propose", 3)


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint(method.__name__.lower(), f"{__name__}:{method.__name__}", registry.GROUP)
        for method in (Right, Tree, Breaks)
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setattr(bench, "WARM_UPS", 1)
    monkeypatch.setattr(bench, "ROUNDS", 2)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelChoice:
    folder = toys.checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    return ModelChoice(model=str(folder), dtype="fp32", device="cpu")


class Watch:
    """Listens to a run, and stops it when so many answers have begun."""

    def __init__(self, stop: int = 1000) -> None:
        self.events: list[Any] = []
        self.stop = stop

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def begun(self) -> list[str]:
        """What was measured, in order."""
        told = [event for event in self.events if isinstance(event, Progress) and event.phase == "bench"]
        return [event.note for event in told if event.note]

    def cancelled(self) -> bool:
        return len(self.begun()) >= self.stop


def measure(engine: Engine, model: ModelChoice, *names: str, watch: Watch | None = None, **more: Any) -> dict[str, Any]:
    tokens = more.pop("tokens", 4)
    drafters = [DrafterChoice(name="none"), *(DrafterChoice(name=name, tokens=tokens) for name in names)]
    request = Bench(1, model, more.pop("prompts", PROMPTS), drafters, Sampling(max_tokens=LIMIT), **more)
    watch = watch or Watch()
    return bench.run(engine, request, watch, watch.cancelled)


def test_everybody_answers_everything_in_turn(engine: Engine, model: ModelChoice) -> None:
    watch = Watch()
    data = measure(engine, model, "right", "tree", watch=watch, repeats=2)
    assert watch.begun()[:6] == ["one, plain", "one, right", "one, tree", "two, right", "two, tree", "two, plain"]
    totals = {event.total for event in watch.events if isinstance(event, Progress) and event.phase == "bench"}
    assert totals == {18}
    assert len(data["runs"]) == 2 * 3 * 3
    for run in data["runs"]:  # a drafted answer is between two plain ones
        assert len(run["beside"]) == (0 if run["drafter"] == "none" else 2) and all(one > 0 for one in run["beside"])
    assert data["noise"]["control"] is not None and isinstance(data["noise"]["unexplained"], list)
    assert data["stopped"] is False
    assert [data["total"][name]["prompts"] for name in data["drafters"]] == [2, 2, 2]
    assert data["total"]["right"]["tokens"] == 3 * LIMIT  # repeats count once
    assert data["total"]["none"]["ratio"] == 1.0 and data["total"]["none"]["interval"] is None
    low, high = data["total"]["right"]["interval"]
    assert low <= data["total"]["right"]["ratio"] <= high
    assert set(data["categories"]) == {"a", "b"}
    assert data["worst"]["right"]["prompt"] in ("one", "two")
    assert data["memory"]["weights"] > 0 and data["memory"]["peak"] > data["memory"]["weights"]
    assert set(data["verify"]["alone"]) == {"1", "2", "4", "8", "16"}
    assert all(curve["ms"] > 0 for curve in data["verify"]["measured"].values())


def test_drafts_are_counted_by_depth(engine: Engine, model: ModelChoice) -> None:
    data = measure(engine, model, "right", "tree")
    told = data["drafting"]["right"]
    assert told["depths"] == [1.0] * 4 and told["rate"] == 1.0
    assert told["drafters"]["right"] == told["rounds"]
    tree = data["drafting"]["tree"]
    assert tree["depths"] == [1.0] * 2  # a level and one beside it for each of two: no third was offered
    assert 0 < tree["length"] <= 2.0


def test_passes_are_kept_only_if_asked_for(engine: Engine, model: ModelChoice) -> None:
    data = measure(engine, model, "right")
    assert all("steps" not in run for run in data["runs"]) and "step_columns" not in data
    data = measure(engine, model, "right", steps=True)
    names = data["step_columns"]
    for run in data["runs"]:
        steps = [dict(zip(names, step, strict=True)) for step in run["steps"]]
        assert len(steps) == run["passes"]
        assert sum(step["tokens"] for step in steps) == run["tokens"] - 1
        assert sum(step["proposed"] for step in steps) == run["proposed"]
        positions = [step["position"] for step in steps]
        assert positions[0] == run["prompt_tokens"] + 1
        assert positions[-1] + steps[-1]["tokens"] == run["prompt_tokens"] + run["tokens"]


def test_several_answers_at_once(engine: Engine, model: ModelChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    data = measure(engine, model, "right", batch=[1, 3], prompts=PROMPTS[:1])
    rows = data["together"]
    assert [(row["count"], row["drafter"]) for row in rows] == [(n, name) for n in (1, 3) for name in ("none", "right")]
    assert [row["tokens"] for row in rows] == [LIMIT, LIMIT, 3 * LIMIT, 3 * LIMIT]
    assert rows[2]["states"] == 3 * rows[0]["states"] > 0
    assert rows[2]["tokens_per_second"] == pytest.approx(3 * LIMIT / rows[2]["seconds"])

    def full(*_: Any) -> Any:
        raise ModelError("There is no room.", "Ask for fewer.")

    monkeypatch.setattr(engine, "generate_many", full)
    data = measure(engine, model, "right", batch=[2], prompts=PROMPTS[:1])
    assert [row["problem"] for row in data["together"]] == ["There is no room."] * 2
    assert len(data["runs"]) == 2


def test_a_stop_keeps_whole_turns(engine: Engine, model: ModelChoice) -> None:
    data = measure(engine, model, "right", watch=Watch(stop=4))
    assert data["stopped"] is True
    assert [(run["prompt"], run["drafter"]) for run in data["runs"]] == [("one", "none"), ("one", "right")]
    assert set(data["categories"]) == {"a"}
    assert data["total"]["right"]["ratio"] > 0
    with pytest.raises(Cancelled):
        measure(engine, model, "right", watch=Watch(stop=1))


def test_a_drafter_that_breaks_is_told(engine: Engine, model: ModelChoice) -> None:
    watch = Watch()
    data = measure(engine, model, "breaks", watch=watch)
    assert any("breaks" in event.text for event in watch.events if isinstance(event, Notice))
    assert all(run["same_text"] for run in data["runs"])


def test_what_cannot_be_measured(engine: Engine, model: ModelChoice) -> None:
    with pytest.raises(UsageError, match="no prompts"):
        measure(engine, model, "right", prompts=[])
    with pytest.raises(Exception, match="no drafter 'nonsense'"):
        measure(engine, model, "nonsense")


def test_other_texts_are_told_with_their_first_difference(engine: Engine, model: ModelChoice, monkeypatch) -> None:
    plain = bench.PLAIN.name

    def run_of(prompt, turn, repeat, drafter, reports):
        want, got = reports
        if drafter != plain:
            got.token_ids, got.text = [*want.token_ids[:-1], 1], "x" * 40 + "other"
            want.text = "x" * 40 + "another"
        return original(prompt, turn, repeat, drafter, (want, got))

    original = bench.run_of
    monkeypatch.setattr(bench, "run_of", run_of)
    data = measure(engine, model, "right", prompts=PROMPTS[:1])
    first, second = data["runs"]
    assert (first["same_text"], first["difference"]) == (True, None)
    assert second["difference"] == {"character": 40, "plain": "x" * 24 + "another", "drafted": "x" * 24 + "other"}
    assert data["total"]["right"]["same_text"] == 0
