"""A whole run on a toy: from prompts to a drafter that its model finds, stopped and gone on with anywhere."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import toys
from safetensors.torch import load_file

from outrider.core.base import paths
from outrider.core.base.errors import Cancelled, ModelError, OutriderError, UsageError
from outrider.core.base.protocol import (
    Message,
    ModelChoice,
    Notice,
    Progress,
    Train,
    TrainExport,
    TrainOrder,
    TrainPrompt,
)
from outrider.core.formats.checkpoint import describe
from outrider.core.library import discovery, drafter_card
from outrider.core.session.engine import Engine
from outrider.core.train import outcome, resources, run
from outrider.core.train import plan as plans
from outrider.core.train.answers import TURNS, Answers, Kept, Manner, turns
from outrider.core.train.run_settings import parted
from outrider.drafters.medusa.training import MedusaTrainee

WORDS = ("red", "sea", "fig", "oak", "sun", "ice", "hen", "jar")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))


def prompts(count: int = 22, turns: int = 1) -> list[TrainPrompt]:
    return [
        TrainPrompt(messages=[Message("user", f"{WORDS[n % 8]}{WORDS[(n // 8 + turn) % 8]}") for turn in range(turns)])
        for n in range(count)
    ]


def order(folder: Path, **more: Any) -> TrainOrder:
    told: dict[str, Any] = {"answer_tokens": 12, "epochs": 2.0, "step_tokens": 60, "options": {"heads": "2"}}
    return TrainOrder(method="medusa", folder=str(folder), threads=1, **(told | more))


class Ear:
    """Hears a run; `stop` says at which event it is stopped, `kill` at which it dies."""

    def __init__(
        self, stop: Callable[[Progress], bool] | None = None, kill: Callable[[Progress], bool] | None = None
    ) -> None:
        self.events: list[Progress] = []
        self.notices: list[str] = []
        self.threads: set[int] = set()  # of the steps
        self._stop, self._kill, self.stopped = stop, kill, False

    def say(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)
        if not isinstance(event, Progress):
            return
        self.events.append(event)
        if event.phase == "training":
            self.threads.add(torch.get_num_threads())
        self.stopped = self.stopped or (self._stop is not None and self._stop(event))
        if self._kill is not None and self._kill(event):
            raise KeyboardInterrupt

    def cancelled(self) -> bool:
        return self.stopped

    def phases(self) -> list[str]:
        return list(dict.fromkeys(event.phase for event in self.events))


def train(
    engine: Engine,
    toy: Path,
    asked: TrainOrder,
    given: list[TrainPrompt] | None = None,
    ear: Ear | None = None,
    **more: Any,
) -> run.Trained:
    request = Train(
        id=1, order=asked, model=ModelChoice(model=str(toy)), prompts=prompts() if given is None else given, **more
    )
    ear = ear or Ear()
    return msgspec.convert(run.run(engine, request, ear.say, ear.cancelled), run.Trained)


def resume(engine: Engine, folder: Path, ear: Ear | None = None) -> run.Trained:
    ear = ear or Ear()
    request = Train(id=1, order=TrainOrder(method="", folder=str(folder)), resume=True)
    return msgspec.convert(run.run(engine, request, ear.say, ear.cancelled), run.Trained)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter" / "medusa_lm_head.safetensors")


def data(folder: Path) -> dict[int, list[int]]:
    return {number: kept.ids for number, kept in Answers(folder / "answers.jsonl").kept.items()}


def test_from_prompts_to_a_drafter_that_the_model_finds(engine: Engine, toy: Path, tmp_path: Path) -> None:
    ear = Ear()
    done = train(engine, toy, order(tmp_path / "run"), ear=ear)
    assert ear.phases()[-4:] == ["answers", "states", "training", "measuring"]
    assert ear.notices == ["It takes 0.000 GB of memory beside the model, and at most 0.000 GB of disk while it runs."]
    assert (done.texts, done.steps) == (22, math.ceil(2 * math.ceil(20 * 12 / 60)))
    assert done.measured is not None and done.measured.texts == 3
    assert not (tmp_path / "run" / "states.bin").exists()
    place = paths.drafters_dir() / "toy-medusa"
    assert Path(done.place) == place
    row = next(row for row in discovery.near(describe(toy)) if row.name == "medusa")
    assert (row.where, row.weights, row.usable) == ("trained", str(place), True)
    assert row.gain == max(1.0, done.measured.tokens_per_pass)
    assert f"{row.gain:.2f} tokens a pass on 3 texts new to it" in row.reason
    assert engine.model is not None and "medusa" in discovery.automatic(engine.model.rows)
    card = (place / "README.md").read_text()
    assert (
        "`outrider train medusa --model toy --answers 22 --answer-tokens 12 --answer-temperature 0.7 --epochs 2" in card
    )
    assert str(tmp_path) not in card
    again = train(engine, toy, order(tmp_path / "run"), [], resume=True)
    assert again == done


STAGES: dict[str, Callable[[Progress], bool]] = {
    "answers": lambda event: event.phase == "answers" and event.done >= 5,
    "later answers": lambda event: event.phase == "answers" and event.done >= 17,
    "states": lambda event: event.phase == "states" and event.done >= 200,
    "first step": lambda event: event.phase == "training" and event.done == 1,
    "a later step": lambda event: event.phase == "training" and event.done == 6,
    "measuring": lambda event: event.phase == "measuring",
}


@pytest.fixture(scope="module")
def whole(engine: Engine, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(engine, toy, order(folder))
    return folder


@pytest.mark.parametrize(
    ("way", "stage"), [*(("kill", stage) for stage in STAGES), ("stop", "later answers"), ("stop", "a later step")]
)
def test_a_run_that_ends_anywhere_comes_to_the_same_weights(
    engine: Engine, toy: Path, tmp_path: Path, whole: Path, stage: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.core.train.answers.TOGETHER", 4)
    folder = tmp_path / "cut"
    ear = Ear(**{way: STAGES[stage]})
    with pytest.raises((KeyboardInterrupt, Cancelled)):
        train(engine, toy, order(folder), ear=ear)
    if way == "kill":  # what may be there besides
        with (folder / "answers.jsonl").open("ab") as file:
            file.write(b"[999,3,[1,2")
    ear = Ear()
    torch.set_num_threads(2)  # those of the plan are taken, and given back
    done = resume(engine, folder, ear)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert ear.threads in ({1}, set())  # it may have been over
    assert data(folder) == data(whole)
    wanted = json.loads((whole / "result.json").read_bytes())
    assert (done.steps, done.loss) == (wanted["steps"], wanted["loss"])
    ours, theirs = weights(folder), weights(whole)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


ALONE = """
import sys
import msgspec
from outrider.core.session.engine import Engine
from outrider.core.base.protocol import Progress, Train
from outrider.core.train import run as training

def say(event):
    if isinstance(event, Progress):
        print(event.phase, int(event.done), flush=True)

training.run(Engine(), msgspec.json.decode(sys.stdin.buffer.read(), type=Train), say, lambda: False)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["answers 9", "states 3", "training 5"])
def test_a_process_that_is_killed_comes_to_the_same_weights(
    engine: Engine, toy: Path, tmp_path: Path, whole: Path, moment: str
) -> None:
    folder = tmp_path / "cut"
    request = Train(id=1, order=order(folder), model=ModelChoice(model=str(toy)), prompts=prompts())
    process = subprocess.Popen([sys.executable, "-c", ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
        for line in process.stdout:
            if line.decode().startswith(moment):
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    resume(engine, folder)
    assert data(folder) == data(whole)
    assert all(torch.equal(part, weights(whole)[name]) for name, part in weights(folder).items())


def test_a_budget_settles_the_plan_once(engine: Engine, toy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = order(folder, budget_s=30.0, epochs=None)
    with pytest.raises(KeyboardInterrupt):  # while it measures: nothing is settled yet
        train(engine, toy, asked, ear=Ear(kill=lambda event: event.phase == "answers" and event.done >= 3))
    plan = plans.read(folder)
    assert plan is not None and not plan.settled
    with pytest.raises(Cancelled):
        resume(engine, folder, Ear(stop=lambda event: event.phase == "training" and event.done == 2))
    settled = (folder / "plan.json").read_bytes()
    plan = plans.read(folder)
    assert plan is not None and plan.settled and plan.schedule is not None
    assert plan.prompts == 22 and 0.1 <= plan.epochs <= plans.MOST_EPOCHS and plan.threads == 1
    lately = Ear(stop=lambda event: event.phase == "training")
    with pytest.raises(Cancelled):
        resume(engine, folder, lately)
    assert "measuring" not in lately.phases()
    assert (folder / "plan.json").read_bytes() == settled
    assert not (folder / "trial").exists()


@pytest.mark.parametrize("seconds", [50.0, 500.0, 5000.0, 500000.0])
@pytest.mark.parametrize("answered", [40, 64, 2000])
def test_a_budget_is_filled_and_not_exceeded(seconds: float, answered: int) -> None:
    speeds, each, items = plans.Speeds(200.0, 800.0, 300.0), 150, 2000
    made = plans.Plan(
        order=TrainOrder(method="eagle", folder=""),
        model=ModelChoice(),
        target="",
        source="",
        prompts=items,
        epochs=3.0,
        manner=Manner(),
    )
    plans.divide(made, speeds, seconds, plans.Data(items, answered, each * answered))
    tokens = made.prompts * each
    takes = max(0, tokens - each * answered) / 200 + tokens / 800 + made.epochs * tokens / 300
    if seconds == 50.0:  # too little for anything sensible
        assert made.prompts == plans.LEAST and made.epochs >= plans.SHORTEST
    elif seconds == 500000.0:
        assert (made.prompts, made.epochs) == (items, plans.MOST_EPOCHS)
    else:
        assert takes == pytest.approx(0.9 * seconds, rel=0.01)
        assert made.prompts == items or made.epochs == pytest.approx(plans.EPOCHS, rel=0.1)


def test_what_was_begun_with_something_else_is_refused(engine: Engine, toy: Path, tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Cancelled):
        train(engine, toy, order(folder), ear=Ear(stop=STAGES["first step"]))
    with pytest.raises(UsageError, match="There is a run in"):
        train(engine, toy, order(folder))
    with pytest.raises(UsageError, match="begun with other prompts"):
        train(engine, toy, order(folder), prompts(21), resume=True)
    with pytest.raises(UsageError, match="trains medusa, not eagle"):
        train(engine, toy, msgspec.structs.replace(order(folder), method="eagle"), [], resume=True)
    other = toys.checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match=r"begun with another model than .*other is now"):
        train(engine, other, order(folder), [], resume=True)
    with pytest.raises(UsageError, match="learns from answers, not from a text"):
        train(engine, toy, order(folder, text="book.txt"), [], resume=True)
    with pytest.raises(UsageError, match="There is no run in"):
        resume(engine, tmp_path / "nothing")
    with pytest.raises(UsageError, match="no option tails"):
        train(engine, toy, order(tmp_path / "new", options={"tails": "2"}))
    with pytest.raises(UsageError, match="prompt_lookup has nothing to train"):
        train(engine, toy, msgspec.structs.replace(order(tmp_path / "new"), method="prompt_lookup"))
    with pytest.raises(UsageError, match="no prompts to answer"):
        train(engine, toy, order(tmp_path / "new"), [])
    assert not (tmp_path / "new").exists()
    with (tmp_path / "other" / "notes.txt").open("w") as file:
        file.write("x")
    moved = toys.checkpoint(tmp_path / "moved")
    train(engine, moved, order(tmp_path / "third"))
    toys.checkpoint(moved, seed=3)
    with pytest.raises(UsageError, match="begun with another model"):
        resume(engine, tmp_path / "third")


def test_each_turn_is_answered_behind_the_answers_before(engine: Engine, toy: Path, tmp_path: Path) -> None:
    given = prompts(21, turns=3)
    shown = Message("assistant", "given")
    given[0] = TrainPrompt(messages=[Message("system", "be"), Message("user", "hi"), shown, Message("user", "now")])
    assert [turns(one) for one in given[:2]] == [1, 3]
    folder = tmp_path / "run"
    done = train(engine, toy, order(folder), given)
    kept = Answers(folder / "answers.jsonl").kept
    assert done.texts == 1 + 20 * 3
    assert engine.model is not None
    words = engine.model.tokenizer
    first, second = kept[5 * TURNS], kept[5 * TURNS + 1]
    assert first.said and not kept[5 * TURNS + 2].said
    prompt = words.decode(second.ids[: second.first], skip_special=False)
    assert f"assistant\n{first.said}<|im_end|>\n<|im_start|>user\n" in prompt
    assert "assistant\ngiven<|im_end|>" in words.decode(kept[0].ids[: kept[0].first], skip_special=False)
    held, taught = (sorted({text.number // TURNS for text in some}) for some in parted(list(kept.values())))
    assert held == [0, 8, 16] and sorted(held + taught) == list(range(21))
    many = [Kept(number * TURNS, 1, [1, 2]) for number in range(400)]
    assert len(parted(many)[0]) == 400 // plans.HELD


def test_prompts_without_room_are_left_out(engine: Engine, toy: Path, tmp_path: Path) -> None:
    given = prompts(22)
    given[3] = TrainPrompt(messages=[Message("user", "long " * 60)])
    ear = Ear()
    done = train(engine, toy, order(tmp_path / "run", longest=90), given, ear)
    assert done.texts == 21
    assert any("no room for an answer within 90 tokens: 1 of" in text for text in ear.notices)
    assert max(len(ids) for ids in data(tmp_path / "run").values()) <= 90


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.txt", b" \n", "nothing to learn from"),
        ("broken.txt", b"\xff\xfe\x00", "cannot be read as text"),
        ("array.jsonl", b'{"text": "fine"}\n["no"]\n', "Line 2 of .* is no JSON object"),
        ("half.jsonl", b'{"text": "fi', "Line 1 of .* is no JSON object"),
        ("other.jsonl", b'{"words": "x"}\n', "Line 1 of .* missing required field `text`"),
        ("short.txt", b"ab", "too little to learn from"),
    ],
)
def test_a_text_of_no_use(engine: Engine, toy: Path, tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OutriderError, match=told):
        train(engine, toy, order(tmp_path / "run", text=str(tmp_path / name)), [])
    with pytest.raises(UsageError, match="cannot be read"):
        train(engine, toy, order(tmp_path / "run2", text=str(tmp_path)), [])


def test_a_text_is_cut_into_pieces_and_its_file_is_needed_once(engine: Engine, toy: Path, tmp_path: Path) -> None:
    book, folder = tmp_path / "book.jsonl", tmp_path / "run"
    lines = [json.dumps({"text": f"{WORDS[n % 8]} and " * 12}) for n in range(30)]
    book.write_text("\n".join(lines))
    asked = order(folder, text=str(book), longest=64, epochs=1.0)
    with pytest.raises(Cancelled):
        train(engine, toy, asked, [], Ear(stop=STAGES["first step"]))
    assert max(len(ids) for ids in data(folder).values()) == 64
    book.write_text(lines[0])
    with pytest.raises(UsageError, match="begun with another text"):
        train(engine, toy, asked, [], resume=True)
    book.unlink()
    assert resume(engine, folder).texts == len(data(folder)) == 60


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_what_was_good(
    engine: Engine, toy: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, steps = MedusaTrainee.learn, iter(range(99))

    def poisoned(self: MedusaTrainee, batch: Any, luck: Any) -> Any:
        figures = dict(learn(self, batch, luck))
        return figures | ({"loss": math.nan} if next(steps) == 5 else {})

    folder = tmp_path / "run"
    with monkeypatch.context() as bad:
        bad.setattr(MedusaTrainee, "learn", poisoned)
        with pytest.raises(ModelError, match="loss of step 6 is nan") as caught:
            train(engine, toy, order(folder))
    assert str(folder / "checkpoint.safetensors") in caught.value.hint
    resume(engine, folder)
    assert all(torch.equal(part, weights(whole)[name]) for name, part in weights(folder).items())


def test_a_full_disk_stops_the_run_and_spoils_nothing(
    engine: Engine, toy: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "x.bin")

    for where, told in (
        ("outrider.core.train.answers.os.fsync", "data could not be written"),
        ("outrider.core.train.states._Shelf._room", "x.bin could not be written: No space left"),
        ("outrider.core.train.checkpoint.save", "checkpoint could not be written"),
        ("outrider.core.train.outcome.put", "x.bin could not be written"),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(where, full)
            with pytest.raises(ModelError, match=told) as caught:
                train(engine, toy, order(folder), resume=folder.exists() and (folder / "plan.json").exists())
        assert "--resume" in caught.value.hint
    resume(engine, folder)
    ours, theirs = weights(folder), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_too_little_memory_or_disk_is_told_before_anything_is_answered(
    engine: Engine, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = Ear()
    with monkeypatch.context() as small:
        small.setattr("outrider.core.library.memory.free", lambda device: 1000)
        with pytest.raises(ModelError, match=r"Training 2,112 weights takes 0\.000 GB of memory.* 0\.000 GB are free"):
            train(engine, toy, order(tmp_path / "one"), ear=ear)
    monkeypatch.setattr(resources, "SPARE", 1 << 60)
    with pytest.raises(
        ModelError, match=r"may take 0\.00\d GB of disk, .*computes, and 0\.000 GB may be used"
    ) as caught:
        train(engine, toy, order(tmp_path / "two"), ear=ear)
    assert "--answers" in caught.value.hint
    assert "answers" not in ear.phases()


def test_a_better_drafter_is_not_replaced(
    engine: Engine, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(engine, toy, order(tmp_path / "first", epochs=1.0))
    kept = {file.name: file.read_bytes() for file in Path(first.place).iterdir()}

    def worse(self: Any, trainee: Any, teacher: Any, texts: list[Kept], folder: Path) -> drafter_card.Measured:
        trainee.save(folder, whole=False)
        return drafter_card.Measured(len(texts), 0.5, [])

    with monkeypatch.context() as bad:
        bad.setattr(run.Course, "_measure", worse)
        second = train(engine, toy, order(tmp_path / "second", epochs=1.0, seed=4))
    assert second.place == "" and second.rival == first.place
    assert second.rival_measured is not None and second.rival_measured.tokens_per_pass >= 1
    assert {file.name: file.read_bytes() for file in Path(first.place).iterdir()} == kept
    with monkeypatch.context() as bad:
        bad.setattr(run.Course, "_acceptance", lambda *_: drafter_card.Measured(2, 9.0, [1.0]))
        third = train(engine, toy, order(tmp_path / "third", epochs=1.0, seed=5))
    assert third.place == first.place
    card = drafter_card.read(Path(third.place))
    assert card is not None and card.seed == 5 and card.measured is not None
    assert sorted(one.name for one in paths.drafters_dir().iterdir()) == ["toy-medusa"]


def test_a_drafter_of_another_model_of_that_name_is_not_taken(engine: Engine, toy: Path, tmp_path: Path) -> None:
    train(engine, toy, order(tmp_path / "run", epochs=0.3))
    other = toys.checkpoint(tmp_path / "elsewhere" / "toy", seed=7)
    assert next(row for row in discovery.near(describe(other)) if row.name == "medusa").where != "trained"
    mine = train(engine, other, order(tmp_path / "run2", epochs=0.3))
    assert Path(mine.place).name == "toy-medusa-2"


def test_shipped_drafters_are_found_behind_those_trained_here(
    engine: Engine, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = train(engine, toy, order(tmp_path / "run", epochs=0.3))
    (tmp_path / "assets" / "drafters").mkdir(parents=True)
    Path(done.place).rename(tmp_path / "assets" / "drafters" / "Toy-medusa")
    monkeypatch.setattr(drafter_card, "files", lambda _: tmp_path / "assets")
    row = next(row for row in discovery.near(describe(toy)) if row.name == "medusa")
    assert row.where == "shipped" and row.usable and "tokens a pass" in row.reason
    assert "medusa" in discovery.automatic([row])
    place = drafter_card.place(toy, "medusa", drafter_card.fingerprint(toy))
    outcome.put(tmp_path / "run" / "drafter", place)
    assert next(row for row in discovery.near(describe(toy)) if row.name == "medusa").where == "trained"


def test_the_whole_container_is_written_for_others(engine: Engine, toy: Path, tmp_path: Path, whole: Path) -> None:
    def asked(to: Path, whole_one: bool, folder: Path = whole) -> dict[str, Any]:
        request = TrainExport(id=2, folder=str(folder), to=str(to), whole=whole_one)
        return run.export(engine, request, lambda _: None, lambda: False)

    made = asked(tmp_path / "out" / "whole", True)
    heads = ["medusa_lm_head.pt", "medusa_lm_head.safetensors"]
    assert made["files"] == ["README.md", "config.json", *heads, "outrider.json"]
    full = load_file(tmp_path / "out" / "whole" / "medusa_lm_head.safetensors")
    head = load_file(toy / "model.safetensors")["lm_head.weight"].bfloat16()
    assert torch.equal(full["1.1.weight"], head)
    assert "tied_to_target" not in json.loads((tmp_path / "out" / "whole" / "config.json").read_bytes())
    asked(tmp_path / "small", False)
    small = load_file(tmp_path / "small" / "medusa_lm_head.safetensors")
    assert all(torch.equal(small[name], part) for name, part in weights(whole).items())
    with pytest.raises(UsageError, match="is there already"):
        asked(tmp_path / "small", True)
    with pytest.raises(Cancelled):
        train(engine, toy, order(tmp_path / "early"), ear=Ear(stop=STAGES["states"]))
    with pytest.raises(UsageError, match="has trained nothing yet"):
        asked(tmp_path / "none", True, tmp_path / "early")


def test_another_process_is_kept_out(engine: Engine, toy: Path, tmp_path: Path) -> None:
    def meddle(event: Progress) -> bool:
        if event.phase == "training" and event.done == 1:
            with pytest.raises(UsageError, match="Another process works on the run"):
                resume(Engine(), tmp_path / "run")
        return False

    train(engine, toy, order(tmp_path / "run", epochs=0.3), ear=Ear(kill=meddle))


def test_the_manner_of_answers_is_kept(engine: Engine, toy: Path, tmp_path: Path) -> None:
    train(engine, toy, order(tmp_path / "run", epochs=0.3, seed=9, greedy=1.0))
    plan = plans.read(tmp_path / "run")
    assert plan is not None
    assert plan.manner == Manner(temperature=0.7, greedy=1.0, most=12, longest=256, seed=9)
    assert data(tmp_path / "run") != {}


@pytest.mark.parametrize(
    ("error", "files", "kept"),
    [
        (
            UsageError("Set layers lower."),
            ("prompts.json", "plan.json"),
            False,
        ),  # an option that the model does not bear
        (ModelError("It does not fit."), ("prompts.json",), False),
        (Cancelled(), ("prompts.json", "plan.json"), True),
        (ModelError("The disk is full."), ("prompts.json", "plan.json", "answers.jsonl"), True),
        (UsageError("Set layers lower."), ("prompts.json", "plan.json", "answers.jsonl"), True),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_came_to_nothing_leaves_no_folder(
    error: OutriderError,
    files: tuple[str, ...],
    kept: bool,
    there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for one that was there before, or that --resume can go on with."""
    folder = tmp_path / "run"
    if there:
        folder.mkdir()

    def fail(self: run.Course) -> None:
        for name in files:
            (folder / name).write_text("{}")
        raise error

    monkeypatch.setattr(run.Course, "run", fail)
    order = TrainOrder(method="medusa", folder=str(folder))
    with pytest.raises(type(error)):
        run.run(Engine(), Train(1, order, prompts=prompts(2)), lambda event: None, lambda: False)
    assert folder.exists() == (kept or there)
