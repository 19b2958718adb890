"""Files that Outrider 0.1.0 wrote are still read and used; `data/written/make.py` says how they were made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import toys

from outrider.app.store.chats import Store
from outrider.core.base import paths
from outrider.core.base.protocol import (
    DrafterChoice,
    Generate,
    ModelChoice,
    Progress,
    Report,
    Sampling,
    Step,
    Train,
    TrainOrder,
)
from outrider.core.formats.checkpoint import describe
from outrider.core.library import library
from outrider.core.library.discovery import near
from outrider.core.policy import history
from outrider.core.session.engine import Engine
from outrider.core.train import run as training

WRITTEN = Path(__file__).parent / "data" / "written"
TOY = ModelChoice(model="toy", device="cpu", dtype="fp32", threads=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was written, the current folder; its home is the home."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return tmp_path


def answer(engine: Engine, drafter: str) -> tuple[Report, list[Step]]:
    steps: list[Any] = []
    sampling = Sampling(temperature=0.0, max_tokens=40, seed=1)
    request = Generate(
        id=1, model=TOY, prompt="one two three one", sampling=sampling, drafter=DrafterChoice(name=drafter)
    )
    report = engine.generate(request, steps.append, toys.Still())
    return report, [step for step in steps if isinstance(step, Step)]


def of_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put the written history under the keys that this machine gives this copy of the model, and return it.

    They are digests of paths, times and the machine, so they are taken from a history that is written here in another home.
    """
    file = paths.state_dir() / "policy.json"
    written = msgspec.json.decode(file.read_bytes())
    monkeypatch.setenv("OUTRIDER_HOME", str(home / "other"))
    answer(Engine(), "prompt_lookup")
    fresh = msgspec.json.decode((paths.state_dir() / "policy.json").read_bytes())
    monkeypatch.setenv("OUTRIDER_HOME", str(home / "home"))
    (way,), (model,) = fresh["costs"], {key.partition("/")[0] for key in fresh["drafters"]}
    (costs,) = written["costs"].values()
    drafters = {key.partition("/")[2]: record for key, record in written["drafters"].items()}
    here = {"version": written["version"], "costs": {way: costs}}
    file.write_bytes(msgspec.json.encode(here | {"drafters": {f"{model}/{name}": r for name, r in drafters.items()}}))
    return {"costs": costs, "drafters": drafters}


def test_the_history_of_the_policy_arrives(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = of_this_machine(home, monkeypatch)
    engine = Engine()
    model = engine.load(TOY, 1, lambda event: None, lambda: False)
    costs = model.history.costs()
    assert costs is not None and {str(rows): s for rows, s in costs.passes.items()} == written["costs"]["passes"]
    assert costs.drafting == written["costs"]["drafting"] and "medusa" in model.policy.costs.dump()
    known = model.policy.drafters()
    assert set(known) >= set(written["drafters"]) == {"suffix", "prompt_lookup", "medusa"}
    for name, record in written["drafters"].items():
        now = known[name]
        for text, rates in now.acceptance.dump().items():
            assert [list(rate) for rate in rates] == [pytest.approx(rate) for rate in record["acceptance"][text]]
        assert set(now.acceptance.dump()) == set(record["acceptance"])
        assert now.ridden == pytest.approx(record["ridden"]) and now.confident == record["confident"]
        assert now.calibrated.state == pytest.approx(record["calibrated"])
    rows = near(describe(Path("toy")))
    history.add_measured(rows, Path("toy"))
    assert {row.name for row in rows if row.choice} == set(written["drafters"])


def test_a_drafter_that_was_trained_is_found_and_drafts() -> None:
    engine = Engine()
    plain, _ = answer(engine, "none")
    report, steps = answer(engine, "medusa")
    assert engine.model is not None
    row = next(row for row in engine.model.rows if row.name == "medusa")
    assert (row.where, row.usable, row.gain) == ("trained", True, 1.1)
    assert row.weights is not None and Path(row.weights).samefile(paths.drafters_dir() / "toy-medusa")
    assert "1.10 tokens a pass on 3 texts" in row.reason
    assert sum(step.proposed for step in steps if step.drafter == "medusa") > 10
    assert report.token_ids == plain.token_ids


def test_an_interrupted_run_goes_on(home: Path) -> None:
    run, events = home / "run", list[Any]()
    kept = {name: (run / name).read_bytes() for name in ("answers.jsonl", "log.jsonl")}
    begun = kept["log.jsonl"].count(b"\n")
    request = Train(id=1, order=TrainOrder(method="", folder="run"), resume=True)
    done = training.run(Engine(), request, events.append, lambda: False)
    assert (done["method"], done["texts"], done["steps"]) == ("medusa", 24, 20) and 0 < begun < 20
    assert (run / "answers.jsonl").read_bytes() == kept["answers.jsonl"]
    log = (run / "log.jsonl").read_bytes()
    assert log.startswith(kept["log.jsonl"])
    assert [msgspec.json.decode(line)["step"] for line in log.splitlines()] == list(range(1, 21))
    steps = [event.done for event in events if isinstance(event, Progress) and event.phase == "training"]
    assert min(step for step in steps if step) == begun + 1
    assert (run / "drafter" / "outrider.json").is_file()


def test_the_chats_open() -> None:
    with Store.open() as store:
        assert store.trouble is None and store.path == paths.data_dir() / "chats.db"
        (row,) = store.chats()
        whole = store.load(row.id)
        assert whole.chat.system == "Be short." and row.title == "Which river is long?"
        path = whole.path()
        assert [node.role for node in path] == ["user", "assistant"] * 2
        assert [node.text for node in path][::2] == ["Which river is long?", "And which one is wide?"]
        for node in path[1::2]:
            kept = node.answer
            assert node.state == "length" and node.text and kept is not None and kept.report is not None
            assert len(kept.ids) == 24 and sum(one.tokens for one in kept.passes) == 24
            assert sum(one.accepted for one in kept.passes) == kept.report.accepted > 0
            assert len(kept.passes) == 1 + kept.report.passes and kept.marks and kept.kinds
            assert kept.settings is not None and kept.settings.outrider == "0.1.0"
            assert kept.settings.sampling.max_tokens == 24
        assert len(store.finished()) == 2
        assert [hit.chat for hit in store.search("wide")] == [row.id]
        assert store.rename(row.id, "Rivers") is None and store.chats()[0].title == "Rivers"  # it can be written


def test_a_receipt_spares_the_hash() -> None:
    (receipt,) = (paths.models_dir() / ".verified").iterdir()
    (name, changed), *others = msgspec.json.decode(receipt.read_bytes())["changed"].items()
    (file,) = msgspec.json.decode(receipt.read_bytes())["files"]
    place = paths.models_dir() / name
    with place.open("wb") as stream:
        stream.truncate(file["bytes"])  # of its size and without its content, so that a hash would tell
    os.utime(place, ns=(changed, changed))
    phases: list[str] = []
    found = library.resolve("starter", lambda phase, *_: phases.append(phase), lambda: False, download=False)
    assert (found, phases, others) == (place, [], [])
