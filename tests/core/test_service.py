"""The engine process from outside: frames, private descriptors, cancel, switch, bad input, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys

from outrider.core.base import protocol
from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    Failed,
    Generate,
    Message,
    ModelChoice,
    Result,
    Sampling,
    Step,
)


class Client:
    """A blocking client for tests."""

    def __init__(self, home: Path, **environment: str) -> None:
        path = os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "OUTRIDER_HOME": str(home), "PYTHONPATH": path, **environment}
        self.log = home / "stderr"
        command = [sys.executable, "-m", "outrider.core.service"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env)
        self.unpacker = protocol.Unpacker(protocol.AnyEvent)
        self.waiting: list[protocol.Event] = []
        self.hello = self.next()

    def send(self, request: protocol.Request) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(protocol.pack(request))
        self.process.stdin.flush()

    def next(self) -> protocol.Event:
        assert self.process.stdout is not None
        while not self.waiting:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the engine closed its pipe"
            self.waiting += self.unpacker.feed(data)
        return self.waiting.pop(0)

    def until_end(self, number: int) -> list[protocol.Event]:
        events = []
        while True:
            event = self.next()
            events.append(event)
            if isinstance(event, Done | Result | Failed) and event.request == number:
                return events

    def ask(self, request: protocol.Request) -> protocol.Event:
        self.send(request)
        return self.until_end(request.id)[-1]

    def close(self) -> tuple[int, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code, self.words

    @property
    def words(self) -> str:
        """All that it has written to stderr."""
        return self.log.read_text("utf-8")


def plugin(home: Path, body: str, name: str = "probe") -> None:
    """A distribution with one drafter, importable by the engine process only."""
    (home / f"{name}_plugin.py").write_text(textwrap.dedent(body))
    info = home / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[outrider.drafters]\n{name} = {name}_plugin:Probe\n")


PROBE = """
    import ctypes, os, sys
    import torch
    from outrider.core.drafting import Draft, Fit, Match, Shape, Stateless

    class Drafter(Stateless):
        shape = Shape(nodes=4, depth=4)
        def propose(self, context):
            print("noise from python")
            sys.stdout.flush()
            ctypes.CDLL(None).write(1, b"noise from C\\n", 13)
            os.write(1, b"noise from os\\n")
            return Draft(torch.tensor([1, 2]))

    class Probe:
        api = 1
        def matches(self, model):
            print("noise while matching")
            return Match(Fit.ANY, "prints a lot")
        def load(self, target, match, options):
            return Drafter()
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One process for all tests that leave it as they found it, with plugins that misbehave."""
    home = tmp_path_factory.mktemp("home")
    plugin(home, PROBE)
    plugin(home, PROBE.replace("return Draft(torch.tensor([1, 2]))", 'raise RuntimeError("boom")'), name="raiser")
    plugin(home, "raise ImportError('no luck')", name="hopeless")
    made = Client(home)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelChoice:
    folder = toys.checkpoint(tmp_path_factory.mktemp("model") / "tiny", context=2048)
    return ModelChoice(model=str(folder), dtype="fp32", device="cpu")


def generate(number: int, model: ModelChoice, **more) -> Generate:
    more.setdefault("sampling", Sampling(temperature=0, max_tokens=20))
    return Generate(number, model, messages=[Message("user", "abcabcabc")], **more)


def test_printing_plugins_cannot_corrupt_a_frame(client: Client, model: ModelChoice) -> None:
    quiet = client.ask(generate(1, model, drafter=DrafterChoice(name="none")))
    noisy = client.ask(generate(2, model, drafter=DrafterChoice(name="probe", tokens=2)))
    assert isinstance(quiet, Done) and isinstance(noisy, Done)
    assert noisy.report.token_ids == quiet.report.token_ids
    assert noisy.report.proposed > 0
    for source in ("from python", "from C", "from os", "while matching"):
        assert f"noise {source}" in client.words


def test_hello_comes_before_torch(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert isinstance(client.hello, protocol.Hello)
    assert client.hello.pid == client.process.pid
    maps = Path(f"/proc/{client.process.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()
    client.close()


def test_frames_of_an_answer(client: Client, model: ModelChoice) -> None:
    client.send(generate(7, model))
    events = client.until_end(7)
    done = events[-1]
    assert isinstance(done, Done)
    steps = [event for event in events if isinstance(event, Step)]
    assert "".join(token.text for step in steps for token in step.tokens) == done.report.text
    assert done.report.model == model.model
    again = client.ask(generate(8, model))
    assert isinstance(again, Done)
    assert again.report.token_ids == done.report.token_ids
    assert again.report.timing.load_s == 0


def test_a_fresh_seed_is_reported_and_replays(client: Client, model: ModelChoice) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=12)
    first = client.ask(generate(1, model, sampling=sampling))
    second = client.ask(generate(2, model, sampling=sampling))
    assert isinstance(first, Done) and isinstance(second, Done)
    assert first.report.seed != second.report.seed
    replay = client.ask(generate(3, model, sampling=Sampling(temperature=1.0, max_tokens=12, seed=first.report.seed)))
    assert isinstance(replay, Done)
    assert replay.report.token_ids == first.report.token_ids


def test_cancel_within_one_pass(client: Client, model: ModelChoice) -> None:
    client.send(generate(1, model, sampling=Sampling(temperature=0, logit_bias={258: -100.0})))
    seen = 0
    while seen < 3:
        seen += isinstance(client.next(), Step)
    client.send(protocol.Cancel(2, request=1))
    done = client.until_end(1)[-1]
    assert isinstance(done, Done)
    assert done.finish == "cancelled"
    assert done.report.text
    assert len(done.report.token_ids) < 2000
    assert isinstance(client.ask(generate(3, model)), Done)


def test_a_queued_request_can_be_cancelled(client: Client, model: ModelChoice) -> None:
    client.send(generate(1, model))
    client.send(protocol.Cancel(3, request=2))
    client.send(generate(2, model))
    assert isinstance(client.until_end(1)[-1], Done)
    assert isinstance(client.until_end(2)[-1], Failed)


def test_switching_in_mid_answer(client: Client, model: ModelChoice) -> None:
    want = client.ask(
        generate(1, model, sampling=Sampling(temperature=0, max_tokens=300), drafter=DrafterChoice(name="none"))
    )
    client.send(
        generate(2, model, sampling=Sampling(temperature=0, max_tokens=300), drafter=DrafterChoice(name="none"))
    )
    client.send(protocol.SetDrafter(3, DrafterChoice(name="prompt_lookup", tokens=4)))
    client.send(protocol.SetDrafter(4, DrafterChoice(name="nonsense")))
    events = client.until_end(2)
    answers = {event.request: event for event in events if isinstance(event, Result | Failed)}
    done = events[-1]
    assert isinstance(want, Done) and isinstance(done, Done)
    assert done.report.token_ids == want.report.token_ids
    assert isinstance(answers[3], Result)
    assert isinstance(answers[4], Failed) and "nonsense" in answers[4].message
    assert client.ask(protocol.SetDrafter(5, DrafterChoice(name="auto"))) == Result(5, "auto")  # while idle


@pytest.mark.parametrize(
    ("change", "words", "usage"),
    [
        ({"messages": []}, "prompt is empty", True),
        ({"messages": [Message("user", "  \n")]}, "prompt is empty", True),
        ({"messages": [Message("user", "x" * 4000)]}, "2047 fit into the context", True),
        ({"sampling": Sampling(temperature=-1)}, "--temperature", True),
        ({"sampling": Sampling(top_p=0)}, "--top-p", True),
        ({"sampling": Sampling(logit_bias={10**6: 1.0})}, "--logit-bias", True),
        ({"drafter": DrafterChoice(name="nonsense")}, "no drafter 'nonsense'", False),
        ({"drafter": DrafterChoice(name="prompt_lookup", tokens=0)}, "--draft-tokens", True),
        ({"rule": "guess"}, "--rule guess", True),
        ({"model": ModelChoice(model="no/such/folder")}, "no/such/folder", False),
        ({"model": ModelChoice(model="starter", device="tpu")}, "--device tpu", True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_requests_get_one_clear_sentence(
    client: Client, model: ModelChoice, change: dict, words: str, usage: bool
) -> None:
    if change.get("model", model).model == "starter":
        change = {"model": ModelChoice(model=model.model, device="tpu")}
    request = generate(1, model)
    for name, value in change.items():
        setattr(request, name, value)
    failed = client.ask(request)
    assert isinstance(failed, Failed)
    assert words in failed.message
    assert failed.hint
    assert failed.usage == usage
    assert isinstance(client.ask(generate(2, model)), Done)


def test_raw_text_needs_no_template(client: Client, model: ModelChoice) -> None:
    request = Generate(1, model, prompt="abc", sampling=Sampling(temperature=0, max_tokens=4))
    done = client.ask(request)
    assert isinstance(done, Done)
    assert done.report.prompt_tokens == 3


def test_the_process_ends_with_its_client(tmp_path: Path, model: ModelChoice) -> None:
    client = Client(tmp_path)
    client.send(generate(1, model, sampling=Sampling(temperature=0, logit_bias={258: -100.0})))
    while not isinstance(client.next(), Step):
        pass
    began = time.monotonic()
    code, _ = client.close()  # in mid-answer
    assert code == 0
    assert time.monotonic() - began < 20


def test_garbage_on_the_pipe_ends_the_process(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.process.stdin is not None
    client.process.stdin.write(b"\xff" * 64)
    client.process.stdin.flush()
    code, words = client.close()
    assert code == 0
    assert "something else was written" in words


def test_a_plugin_that_raises_everywhere_is_a_notice(client: Client, model: ModelChoice) -> None:
    want = client.ask(generate(1, model, drafter=DrafterChoice(name="none")))
    client.send(generate(2, model, drafter=DrafterChoice(name="raiser", tokens=2)))
    events = client.until_end(2)
    done = events[-1]
    assert isinstance(want, Done) and isinstance(done, Done)
    assert done.report.token_ids == want.report.token_ids
    notices = [event for event in events if isinstance(event, protocol.Notice)]
    assert any("boom" in notice.text for notice in notices)
    rows = client.ask(protocol.Drafters(3, model))
    assert isinstance(rows, Result)
    broken = {row["name"]: row for row in rows.data}["hopeless"]
    assert broken["fit"] == "broken" and "no luck" in broken["reason"]


def test_bench_runs_everything_in_rotated_order(client: Client, model: ModelChoice) -> None:
    prompts = [protocol.BenchPrompt(f"p{i}", "ab"[i % 2], ["abcabc", "once more"]) for i in range(3)]
    request = protocol.Bench(
        1,
        model,
        prompts,
        [DrafterChoice(name="none"), DrafterChoice(name="prompt_lookup", tokens=4)],
        Sampling(max_tokens=12),
    )
    answer = client.ask(request)
    assert isinstance(answer, Result), answer
    data = answer.data
    assert data["drafters"] == ["none", "prompt_lookup"]
    assert len(data["runs"]) == 3 * 2 * 2
    assert all(run["same_text"] for run in data["runs"])
    assert set(data["categories"]) == {"a", "b"}
    assert data["total"]["none"]["ratio"] == 1.0
    first = [run["drafter"] for run in data["runs"] if run["prompt"] == "p0"]
    assert first == ["none", "prompt_lookup"] * 2


def test_a_drafter_is_tested_against_plain_decoding(client: Client, model: ModelChoice) -> None:
    prompts = [protocol.BenchPrompt(f"p{i}", "a", ["abcabc" * 8]) for i in range(2)]
    choice = DrafterChoice(name="prompt-lookup", tokens=4)
    client.send(protocol.DrafterTest(1, model, prompts, choice, limit=12))
    *events, answer = client.until_end(1)
    assert isinstance(answer, Result), answer
    assert [event.note for event in events if isinstance(event, protocol.Progress) and event.phase == "test"] == [
        "p0",
        "p1",
    ]
    (trial,) = answer.data["trials"]
    assert (answer.data["drafter"], answer.data["weights"], answer.data["best"]) == ("prompt_lookup", None, 0)
    assert (trial["prompts"], trial["same_text"], trial["tokens"]) == (2, 2, 24)
    assert trial["proposed"] > 0 and trial["problem"] == ""
    assert trial["reached"][0] == trial["rounds"]


def test_a_conformance_run_is_a_job_with_progress(client: Client, model: ModelChoice) -> None:
    prompts = [protocol.BenchPrompt("p", "a", ["abcabc"])]
    choice = DrafterChoice(name="prompt_lookup")
    client.send(protocol.DrafterTest(1, model, prompts, choice, conformance=True))
    *events, answer = client.until_end(1)
    assert isinstance(answer, Result), answer
    names = [check["name"] for check in answer.data["checks"]]
    assert [event.note for event in events if isinstance(event, protocol.Progress) and event.phase == "checks"] == names
    assert {check["verdict"] for check in answer.data["checks"]} <= {"ok", "skipped"}


def test_a_drafter_that_cannot_be_tested(client: Client, model: ModelChoice) -> None:
    prompts = [protocol.BenchPrompt("p", "a", ["abcabc"])]
    for choice, words in (
        (DrafterChoice(name="nonsense"), "no drafter 'nonsense'"),
        (DrafterChoice(name="draft_model"), "needs a smaller model"),
        (DrafterChoice(name="none"), "no drafter to test"),
    ):
        failed = client.ask(protocol.DrafterTest(1, model, prompts, choice))
        assert isinstance(failed, Failed) and words in failed.message


def test_doctor_and_models_without_a_model(client: Client) -> None:
    found = client.ask(protocol.Doctor(1))
    assert isinstance(found, Result)
    assert {"torch", "cpu", "disk"} <= {finding["topic"] for finding in found.data}
    rows = client.ask(protocol.Models(2))
    assert isinstance(rows, Result)
    assert "starter" in {row["name"] for row in rows.data}


def test_a_look_up_of_what_is_not_here_downloads_nothing(client: Client, model: ModelChoice) -> None:
    """No hub is reached here: a download would fail with words of its own."""
    for request in (
        protocol.Drafters(1, ModelChoice(model="qwen3-8b")),
        protocol.Drafters(2, model, weights="AngelSlim/Qwen3-8B_eagle3"),
    ):
        failed = client.ask(request)
        assert isinstance(failed, Failed)
        assert "is not in the library" in failed.message and "outrider models pull" in failed.hint
