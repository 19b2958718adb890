"""What the policy learnt is there again in the next session: costs if nothing has changed, drafters by their model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
import toys

from outrider.core.base import paths
from outrider.core.base.protocol import DrafterRow, ModelChoice
from outrider.core.model.model import TargetModel
from outrider.core.policy import history
from outrider.core.policy.decisions import Candidate, Drafted, Outcome, UpcomingRound
from outrider.core.policy.history import History
from outrider.core.policy.policy import Policy
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler
from outrider.core.session import calibration
from outrider.core.session.calibration import Calibrator

CPU = torch.device("cpu")
SAMPLER = Sampler(toys.GREEDY, Noise(1))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def learnt() -> Policy:
    policy = Policy()
    for rows in (1, 8):
        policy.calibrate(rows, 0.01 * rows)
    policy.costs.lean_by(1e-6, 1e-7)
    policy.learn(Drafted("d", 4, 0.02))
    for _ in range(20):
        policy.choose(UpcomingRound(), lambda: (Candidate("d", 4),))
        policy.learn(Outcome("d", 4, 3, 0.02, 0.03))
    return policy


def test_what_was_kept_is_recalled(model: Path) -> None:
    policy = learnt()
    History(ModelChoice(), model, CPU).save(policy)
    again = History(ModelChoice(), model, CPU)
    known = again.costs()
    assert known is not None
    assert known.passes == policy.costs.passes and known.slopes == (1e-6, 1e-7)
    later = Policy()
    again.recall(later)
    assert later.costs.drafting("d").of(4) == pytest.approx(0.02)
    faster = Policy()
    faster.calibrate(1, 0.005)  # a plain pass took 0.01 s then: the machine was busy
    again.recall(faster)
    assert faster.costs.drafting("d").of(4) == pytest.approx(0.01)
    assert later._arms["d"].acceptance.trusted("prose") == 4
    assert later._arms["d"].acceptance.rates("code", 3)[2] > 0.7


@pytest.mark.parametrize("change", ["way", "file"])
def test_another_way_of_loading_has_other_costs(change: str, model: Path) -> None:
    History(ModelChoice(), model, CPU).save(learnt())
    choice = ModelChoice(quantize="int8") if change == "way" else ModelChoice()
    if change == "file":
        model.write_bytes(b"other weights")
    again = History(choice, model, CPU)
    assert again.costs() is None
    later = Policy()
    again.recall(later)
    assert ("d" in later._arms) == (change == "way")  # how often it is right hangs on the model alone
    assert "d" not in later.costs.dump()


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"version": 99}', b'{"version": 1, "costs": {"x": 3}}', b"\xff\xfe", b"[]"]
)
def test_a_broken_or_old_file_is_as_good_as_none(text: bytes, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = paths.state_dir() / "policy.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    made = History(ModelChoice(), model, CPU)
    assert made.costs() is None
    assert "not" in capsys.readouterr().err
    made.save(learnt())
    assert made.costs() is not None
    assert [one.name for one in file.parent.iterdir()] == ["policy.json"]


def test_numbers_that_cannot_be_are_not_believed(model: Path) -> None:
    made = History(ModelChoice(), model, CPU)
    made.save(learnt())
    file = paths.state_dir() / "policy.json"
    data = msgspec.json.decode(file.read_bytes())
    for record in data["drafters"].values():
        record["acceptance"], record["calibrated"], record["offered"] = {"prose": [[7.0, -3.0]]}, [1.0], -5.0
    for record in data["costs"].values():
        record["drafting"] = {"d": [-1.0]}
    file.write_bytes(msgspec.json.encode(data))
    later = Policy()
    made.recall(later)
    assert 0 < later._arms["d"].acceptance.rates("prose", 1)[0] < 1
    assert later._arms["d"].offered > 0
    assert "d" not in later.costs.dump()


def test_it_does_not_grow_without_end(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    for size in range(5):
        model.write_bytes(b"x" * (size + 1))
        History(ModelChoice(), model, CPU).save(learnt())
    data = msgspec.json.decode((paths.state_dir() / "policy.json").read_bytes())
    assert len(data["costs"]) == len(data["drafters"]) == 3
    assert History(ModelChoice(), model, CPU).costs() is not None


def test_a_folder_that_cannot_be_written_to_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths.state_dir().parent.mkdir(parents=True)
    paths.state_dir().write_text("a file in its place")
    History(ModelChoice(), model, CPU).save(learnt())
    assert "could not be written" in capsys.readouterr().err


def test_rows_tell_what_was_measured(model: Path) -> None:
    History(ModelChoice(), model, CPU).save(learnt())
    rows = [DrafterRow(name="d"), DrafterRow(name="other")]
    history.add_measured(rows, model)
    assert "4.0 tokens a pass" in rows[0].choice and rows[1].choice == ""


# ---------------------------------------------------------------------------------------------------- at load


class Watched(Calibrator):
    """Its machine takes `rows` units for a pass of so many rows."""

    unit = 0.001

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target, SAMPLER, lambda: False)
        self.measured: list[int] = []

    def timed(self, rows: int, context: int = 0) -> float:
        self.measured.append(rows)
        return self.unit * rows


def test_a_second_load_measures_one_width(model: Path) -> None:
    target, made = toys.target(), History(ModelChoice(), model, CPU)
    first = Watched(target)
    policy = first.policy(None, 1)
    made.save(policy)
    second = Watched(target)
    again = second.policy(made.costs(), 1)
    assert again.costs.passes == policy.costs.passes
    assert set(second.measured) == {8} and len(second.measured) < len(first.measured)


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_a_machine_that_has_changed_is_measured_anew(factor: float, model: Path) -> None:
    target, made = toys.target(), History(ModelChoice(), model, CPU)
    made.save(Watched(target).policy(None, 1))
    second = Watched(target)
    second.unit *= factor
    assert second.policy(made.costs(), 1).costs.of(17) == pytest.approx(17 * second.unit)


def test_context_is_measured_where_it_costs_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "FAR", 64)
    monkeypatch.setattr(calibration, "CHUNK", 32)

    class Leaning(Watched):
        def timed(self, rows: int, context: int = 0) -> float:
            return super().timed(rows) * (1 + context / 64)

    target = toys.target()
    costs = Leaning(target).policy(None, 1).costs
    assert costs.of(1, 128) == pytest.approx(0.003)
    assert costs.of(8, 64) == pytest.approx(0.016)
    assert target.length == 0
    assert Watched(target).policy(None, 1).costs.slopes == (0.0, 0.0)
