"""Whole runs of every kind of drafter on a toy, and runs that go on from a drafter that is there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import toys

from outrider.core.base.errors import UsageError
from outrider.core.base.protocol import Message, ModelChoice, Train, TrainOrder, TrainPrompt
from outrider.core.formats.checkpoint import describe
from outrider.core.library import discovery
from outrider.core.session.engine import Engine
from outrider.core.train import run

WORDS = ("red", "sea", "fig", "oak", "sun", "ice", "hen", "jar")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("models") / "toy", layers=4)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))


def train(engine: Engine, toy: Path, method: str, folder: Path, resume: bool = False, **more: Any) -> run.Trained:
    prompts: list[TrainPrompt] | None = more.pop("prompts", None)
    options = {name: str(value) for name, value in more.pop("options", {}).items()}
    told = {"answer_tokens": 12, "epochs": 1.0, "step_tokens": 60, "threads": 1} | more
    order = TrainOrder(method=method, folder=str(folder), options=options, **told)
    words = [f"{WORDS[n % 8]}{WORDS[n // 8]}" for n in range(22)]
    given = (
        prompts
        if prompts is not None
        else []
        if resume
        else [TrainPrompt(messages=[Message("user", word)]) for word in words]
    )
    request = Train(id=1, order=order, model=ModelChoice(model=str(toy)), prompts=given, resume=resume)
    made = run.run(engine, request, lambda event: None, lambda: False)
    return msgspec.convert(made, run.Trained)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("eagle", {"version": 1}),
        pytest.param("dflash", {"kind": "dspark", "layers": 1, "states": 2, "block": 4}, marks=pytest.mark.thorough),
        ("mtp", {"depths": 2}),
        pytest.param("mtp", {"depths": 2, "kind": "parallel"}, marks=pytest.mark.thorough),
    ],
)
def test_a_run_gives_a_drafter(engine: Engine, toy: Path, tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    done = train(engine, toy, method, tmp_path / "run", options=options)
    assert done.measured is not None and done.measured.tokens_per_pass >= 1.0
    assert [near.context for near in done.measured.by_context] == [256]
    assert done.place and done.before is None and not done.model
    rows = {row.name: row for row in discovery.near(describe(toy))}
    assert (rows[method].usable, rows[method].where, rows[method].weights) == (True, "trained", done.place)
    assert not rows["draft_model"].usable  # it is no model of its own


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("medusa", {"heads": 2, "joint": True}),
        pytest.param("mtp", {"depths": 2, "joint": True}, marks=pytest.mark.thorough),
        pytest.param("mtp", {"depths": 2, "joint": True, "kind": "parallel"}, marks=pytest.mark.thorough),
        ("layerskip", {"exit": 2}),
    ],
)
def test_a_run_that_trains_the_target_gives_another_model(
    engine: Engine, toy: Path, tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    done = train(engine, toy, method, tmp_path / "run", options=options)
    assert done.measured is not None and done.measured.tokens_per_pass >= 1.0
    assert done.model and done.place == ""  # it is no drafter of the old one
    ours, theirs = describe(toy), describe(Path(done.drafter))
    assert (theirs.layers, theirs.tokenizer) == (ours.layers, ours.tokenizer)
    assert ours.tensors <= theirs.tensors


def test_a_run_goes_on_from_a_drafter_that_is_there(engine: Engine, toy: Path, tmp_path: Path) -> None:
    first = train(engine, toy, "medusa", tmp_path / "first", options={"heads": 2}, epochs=2.0, seed=1)
    source = tmp_path / "given"
    shutil.copytree(first.drafter, source)
    more = train(
        engine, toy, "medusa", tmp_path / "second", options={"heads": 2}, continue_from=str(source), longest=48, seed=1
    )
    assert more.before is not None and more.measured is not None
    assert more.before == first.measured
    assert more.before.by_context[0].rounds > 0
    assert "--continue-from given" in (Path(more.drafter) / "README.md").read_text()
    shutil.rmtree(source)  # nothing hangs on it
    (tmp_path / "second" / "result.json").unlink(missing_ok=True)
    assert train(engine, toy, "medusa", tmp_path / "second", resume=True).before == more.before


def test_a_run_learns_from_the_answers_of_another(engine: Engine, toy: Path, tmp_path: Path) -> None:
    first = train(engine, toy, "medusa", tmp_path / "first", options={"heads": 2}, answers=20, seed=3)
    source = str(tmp_path / "first")
    more = train(engine, toy, "eagle", tmp_path / "second", resume=False, prompts=[], answers_of=source, seed=4)
    theirs, ours = ((tmp_path / run / "answers.jsonl").read_bytes() for run in ("first", "second"))
    assert theirs == ours and (more.texts, more.tokens) == (first.texts, first.tokens)
    card = (Path(more.drafter) / "README.md").read_text()
    assert "--answers 20 " in card and "--answers-of first" in card
    fewer = train(engine, toy, "eagle", tmp_path / "third", prompts=[], answers_of=source, answers=10)
    assert fewer.texts == 10
    shutil.rmtree(source)  # nothing hangs on it
    (tmp_path / "third" / "result.json").unlink()
    assert train(engine, toy, "eagle", tmp_path / "third", resume=True).texts == 10


def test_answers_are_taken_of_a_run_of_the_same_model(engine: Engine, toy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no run in"):
        train(engine, toy, "medusa", tmp_path / "run", answers_of=str(tmp_path / "nothing"))
    text = tmp_path / "text.txt"
    text.write_text("red sea fig oak " * 40)
    train(engine, toy, "medusa", tmp_path / "book", options={"heads": 2}, text=str(text), longest=48)
    with pytest.raises(UsageError, match="learns from a text"):
        train(engine, toy, "eagle", tmp_path / "run", prompts=[], answers_of=str(tmp_path / "book"))
    train(engine, toy, "medusa", tmp_path / "first", options={"heads": 2})
    other = toys.checkpoint(tmp_path / "other", layers=2)
    with pytest.raises(UsageError, match="another model's"):
        train(engine, other, "medusa", tmp_path / "run", prompts=[], answers_of=str(tmp_path / "first"))


def test_there_must_be_a_drafter_to_go_on_from(engine: Engine, toy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        train(engine, toy, "medusa", tmp_path / "run", continue_from=str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="cannot go on"):
        train(engine, toy, "layerskip", tmp_path / "other", continue_from=str(toy))
