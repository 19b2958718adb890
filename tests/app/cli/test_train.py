"""`outrider train`: what it asks for, what it shows, and the runs that it knows."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider.app.commands import _runs, _training
from outrider.app.store.chats import Store
from outrider.app.store.records import Attachment, Chat, Node, Whole
from outrider.core.base.protocol import Progress, TrainOrder


def kept(
    home: Any, name: str, method: str = "eagle", *, steps: int | None = None, done: bool = False, at: int = 1
) -> Path:
    """A run as the engine leaves it."""
    folder = home.path / "data" / "training" / name
    folder.mkdir(parents=True)
    plan: dict[str, Any] = {"order": {"method": method, "folder": str(folder)}, "model": {"model": "m"}, "more": 1}
    if steps is not None:
        plan["schedule"] = {"steps": 200, "tokens": 9}
        lines = [json.dumps({"step": n, "loss": 3.0}) for n in range(1, steps + 1)]
        (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"st')
    (folder / "plan.json").write_text(json.dumps(plan))
    if done:
        (folder / "result.json").write_text('{"measured": {"tokens_per_pass": 1.62, "texts": 5}, "place": ""}')
    for one in folder.iterdir():
        os.utime(one, (at, at))
    return folder


def test_what_is_asked_and_told(outrider, home):
    done = outrider(
        "train", "e-agle", "-m", "m", "--budget", "1h30m", "--option", "words=9", "--threads", "1", "--seed", "4"
    )
    (asked,) = home.requests("Train")
    order = msgspec.convert(asked["order"], TrainOrder)
    folder = home.path / "data" / "training" / "m-e_agle"
    assert order == TrainOrder(
        method="e_agle", folder=str(folder), budget_s=5400.0, seed=4, threads=1, options={"words": "9"}
    )
    assert asked["model"]["model"] == "m" and "resume" not in asked
    assert len(asked["prompts"]) > 1000 and max(len(one["messages"]) for one in asked["prompts"]) > 1  # all turns
    assert done.code == 0
    assert done.err.splitlines() == [
        f"The run is kept in {folder}",
        "Answering 40 answers",
        "Note: Left out: 1 of the prompts.",
        "Training 8 steps",
        "Training step 4 of 8: loss 6.500, 1.40 tokens a pass",
        "Training step 8 of 8: loss 4.500, 1.80 tokens a pass",
    ]
    assert done.out.splitlines() == [
        "e_agle: 123,456 weights, 8 steps over 40 texts (6,000 tokens), loss 1.250",
        "  loss          8.00 █▇▆▅▄▃▂▁ 4.50",
        "  tokens/pass   1.40 ▁█ 1.80",
        "On 5 texts that it has not seen: 1.62 tokens a pass",
        "Right at depth 1, 2, …: 50% 25%",
        "`auto` takes it for this model from now on, 1.50 with the one before it: /data/drafters/m-eagle",
        "Try it: outrider bench --drafter e_agle",
    ]


def test_one_that_is_better_stays(outrider, tmp_path):
    out = tmp_path / "run"
    done = outrider("train", "eagle", "--out", str(out), "--option", "worse=1", "--json", str(tmp_path / "r.json"))
    assert "The one that is there is better on the same texts, 1.71, and stays.\n" in done.out
    assert f"Try it: outrider bench --drafter eagle --drafter-weights {out}/drafter\n" in done.out
    assert json.loads((tmp_path / "r.json").read_text())["rival_measured"]["tokens_per_pass"] == 1.71


def test_going_on_from_a_drafter(outrider, home, tmp_path):
    done = outrider("train", "eagle", "--continue-from", str(tmp_path), "--context", "4096")
    order = home.requests("Train")[0]["order"]
    assert (order["continue_from"], order["longest"]) == (str(tmp_path), 4096)
    assert "The one that it went on from: 1.50 tokens a pass on the same texts\n" in done.out
    assert "  up to    256 tokens before: 1.50, now 1.60\n" in done.out and "512" not in done.out


def test_failures(outrider, home, tmp_path):
    done = outrider("train", "eagle", "-m", "fails")
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("Error: The loss of step 3 is nan.\nTry less.\n")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n")
    for words, told in (
        (("--budget", "soon"), "--budget soon is no time."),
        (("--budget", "0m"), "--budget 0m is no time."),
        (("--option", "words"), "--option must be NAME=VALUE"),
        (("--text", "a.txt", "--prompts", "b.jsonl"), "--text goes with neither"),
        (("--text", "a.txt", "--chats"), "--text goes with neither"),
        (("--text", "a.txt", "--answers-of", "b"), "--answers-of goes with neither"),
        (("--answers-of", "nothing"), "There is no run nothing."),
        (("--resume", "x", "--out", "y"), "--resume and --out exclude each other."),
        (("--resume", "x"), "There is no run x."),
        (("--resume",), "There is no run of eagle."),
        (("--prompts", str(prompts)), "There are no prompts in"),
        (("--chats",), "There are no chats yet."),
    ):
        done = outrider("train", "eagle", *words)
        assert done.code == 2 and told in done.err, words
    assert len(home.requests("Train")) == 1


def test_an_interrupt_lets_it_come_to_a_place_from_where_it_goes_on(start, home):
    process = start("train", "eagle", "-m", "endless")
    seen = b""
    while b"step 8 of 8" not in seen:
        seen += os.read(process.stderr.fileno(), 1 << 16)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert home.engine is not None and home.requests("Cancel")


def test_runs_are_listed_and_taken_up(outrider, home):
    assert "There is no run yet." in outrider("train", "runs").err
    kept(home, "first", at=100, steps=3)
    kept(home, "second", at=300, steps=7, done=True)
    newest = kept(home, "third", at=200, steps=5)
    kept(home, "other", "medusa", at=50)
    (home.path / "data" / "training" / "broken").mkdir()
    told = outrider("train", "runs").out.splitlines()
    assert [line.split()[0] for line in told] == ["RUN", "second", "third", "first", "other"]
    assert told[1].endswith("1.62  done") and told[2].endswith("stopped at step 5 of 200")
    assert told[4].endswith("stopped while answering")
    rows = json.loads(outrider("train", "runs", "--json").out)
    assert rows[0]["tokens_per_pass"] == 1.62 and rows[0]["done"]
    for words, folder in ((("--resume",), newest), (("--resume", "first"), newest.with_name("first"))):
        done = outrider("train", "eagle", *words)
        asked = home.requests("Train")[-1]
        assert done.code == 0 and asked["order"]["folder"] == str(folder)
        assert asked["resume"] and "model" not in asked and not asked.get("prompts")
    assert "  loss          3.00 " in done.out  # what was done before counts
    outrider("train", "eagle", "-m", "m2", "--resume", str(newest))
    assert home.requests("Train")[-1]["model"]["model"] == "m2"
    assert "All runs of suffix" not in outrider("train", "suffix", "--resume").err
    (newest / "result.json").write_text("{}")
    (newest.with_name("first") / "result.json").write_text("{}")
    assert "All runs of eagle are done." in outrider("train", "eagle", "--resume").err


def test_export(outrider, home, tmp_path):
    folder = kept(home, "first", steps=3)
    done = outrider("train", "export", "last", "--full", "--to", str(tmp_path / "out"))
    (asked,) = home.requests("TrainExport")
    assert (asked["folder"], asked["to"], asked["whole"]) == (str(folder), str(tmp_path / "out"), True)
    assert done.out == f"{tmp_path / 'out'}: config.json, model.safetensors\n"
    assert outrider("train", "export", "nope", "--to", "x").code == 2
    assert "Usage: outrider train export" in outrider("train", "export", "--help").out


def test_chats_come_first_and_nothing_that_was_answered(outrider, home):
    home.path.joinpath("data").mkdir(parents=True)
    with Store.open() as store:
        nodes = [
            Node(id="a", role="user", text="Hi", created=1.0),
            Node(id="b", role="assistant", text="Xyzzy42", parent="a", created=2.0),
            Node(
                id="c", role="user", text="", parent="b", created=3.0, attachments=[Attachment(name="n", text="words")]
            ),
            Node(id="d", role="user", text="other branch", parent="b", created=4.0),
        ]
        chat = Chat(id="chat1", title="t", created=1.0, updated=2.0, head="c", system="Be brief.")
        store.insert(Whole(chat=chat, nodes=nodes))
    assert outrider("train", "eagle", "--chats", "--answers", "9").code == 0
    (asked,) = home.requests("Train")
    first = asked["prompts"][0]["messages"]
    assert [(one["role"], one["content"].split("\n")[0]) for one in first] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("user", "N"),
    ]
    assert "words" in first[2]["content"] and len(asked["prompts"]) > 1000
    assert "Xyzzy42" not in json.dumps(asked["prompts"])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_curve_of_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream, clock = io.StringIO(), Clock()
    curve = _training.Curve(stream, terminal=True, clock=clock)

    def show(phase: str, done: float, total: float, **figures: float) -> str:
        stream.seek(0)
        stream.truncate()
        curve.show(Progress(1, phase, done, total, "steps", "\x1b[2J", figures))
        return stream.getvalue()

    assert show("training", 1, 100, loss=5.0).startswith("Training  ")
    assert "\x1b[2J" not in show("training", 2, 100, loss=4.0)
    clock.now = 10.0
    painted = show("training", 11, 100, loss=3.0, tokens_per_pass=1.5)
    assert painted.startswith("\r\x1b[1A") and painted.count("\n") == 2
    assert "11 of 100 steps" in painted and "1 min 29 s left" not in painted  # too narrow for it here
    assert max(len(line) for line in painted.replace("\x1b[K", "").replace("\x1b[1A", "").split("\n")) <= 60
    assert curve.course.left == pytest.approx(89.0)
    clock.now = 10.05
    assert show("training", 12, 100, loss=3.0) == ""
    assert "100 of 100" in show("training", 100, 100, loss=2.0)
    stream.truncate(0)
    curve.clear()
    assert stream.getvalue().endswith("\r\x1b[2A\x1b[J")
    curve.clear()
    assert curve.course.left is None


def test_curves():
    assert _training.curve([], 5) == ""
    assert _training.curve([float("nan"), 1.0], 5) == "▁"
    assert _training.curve([1, 1, 2, 2, 3, 3], 3) == "▁▅█"
    assert [_training.seconds(text) for text in ("90", "45s", "1h30m")] == [90.0, 45.0, 5400.0]


def test_a_folder_for_each_run(home):
    first = _runs.fresh("eagle", "org/my model")
    assert first.name == "my-model-eagle"
    first.mkdir(parents=True)
    assert _runs.fresh("eagle", "org/my model").name == "my-model-eagle-2"
