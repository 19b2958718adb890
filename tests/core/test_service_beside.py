"""What the engine process answers beside its loop: questions and downloads while an answer runs, and how they end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toys
from hubserver import COMMIT, Hub, serving
from service_client import Client, plugin
from toys import tokenizer_json

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

NONE = DrafterChoice(name="none")
REPO = "acme/tiny"
QUESTIONS = 50


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelChoice:
    """Under the name of a model for which drafters are shipped: their files are looked at too."""
    folder = toys.checkpoint(tmp_path_factory.mktemp("model") / "SmolLM2-135M-Instruct", context=2048)
    return ModelChoice(model=str(folder), dtype="fp32", device="cpu")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A process of its own, with `OUTRIDER_HOME` in `tmp_path`."""
    made = Client(tmp_path)
    yield made
    made.close()


def generate(number: int, model: ModelChoice, tokens: int, drafter: DrafterChoice = NONE) -> Generate:
    sampling = Sampling(temperature=0, max_tokens=tokens, logit_bias={258: -100.0})
    return Generate(number, model, messages=[Message("user", "abcabcabc")], sampling=sampling, drafter=drafter)


def loaded_torch(client: Client) -> bool:
    maps = Path(f"/proc/{client.process.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell which libraries a process has loaded")
    return "libtorch" in maps.read_text()


def token_ids(event: protocol.Event) -> list[int]:
    assert isinstance(event, Done), event
    return event.report.token_ids


# ------------------------------------------------------------------------------------------------ questions


def test_questions_load_no_torch(client: Client, model: ModelChoice) -> None:
    models = client.ask(protocol.Models(1))
    assert isinstance(models, Result) and "starter" in {row["name"] for row in models.data}
    drafters = client.ask(protocol.Drafters(2, model))
    assert isinstance(drafters, Result)
    rows = {row["name"]: row for row in drafters.data}
    assert rows["suffix"]["usable"] and all(rows[name]["trains"] for name in ("eagle", "medusa", "mtp", "dflash"))
    given = client.ask(protocol.Drafters(3, model, weights=model.model))
    assert isinstance(given, Result)
    assert isinstance(client.ask(protocol.Remove(4, "qwen3-8b")), Failed)
    assert isinstance(client.ask(protocol.Pull(5, "no/such/../id")), Failed)
    assert not loaded_torch(client)
    assert isinstance(client.ask(generate(6, model, 1)), Done)
    assert loaded_torch(client)  # it can be told


GATE = """
    import pathlib, time
    import torch
    from outrider.core.drafting import Draft, Fit, Match, Shape, Stateless

    class Drafter(Stateless):
        shape = Shape(nodes=1, depth=1)
        def propose(self, context):
            pathlib.Path({reached!r}).touch()
            while not pathlib.Path({opened!r}).exists():
                time.sleep(0.01)
            return Draft(torch.tensor([1]))

    class Probe:
        api = 1
        def matches(self, model):
            return Match(Fit.ANY, "waits")
        def load(self, target, match, options):
            return Drafter()
"""


def test_questions_are_answered_while_the_loop_stands_still(tmp_path: Path, model: ModelChoice) -> None:
    reached, opened = tmp_path / "reached", tmp_path / "opened"
    plugin(tmp_path, GATE.format(reached=str(reached), opened=str(opened)), name="gate")
    client = Client(tmp_path)
    want = token_ids(client.ask(generate(1, model, 20)))
    client.send(generate(2, model, 20, DrafterChoice(name="gate")))
    while not isinstance(client.next(), Step):
        pass
    for number in range(10, 10 + QUESTIONS):
        client.send(protocol.Models(number) if number % 2 else protocol.Drafters(number, model))
    answered: list[int] = []
    while len(answered) < QUESTIONS:
        event = client.next()
        assert isinstance(event, Result | protocol.Notice | Step), event  # no end of the answer before
        if isinstance(event, Result):
            answered.append(event.request)
    assert answered == list(range(10, 10 + QUESTIONS))
    opened.touch()
    assert token_ids(client.until_end(2)[-1]) == want
    assert reached.exists()
    client.close()


def test_questions_change_no_token_of_the_answer(client: Client, model: ModelChoice) -> None:
    choice = DrafterChoice(name="auto")
    want = token_ids(client.ask(generate(1, model, 600, choice)))
    client.send(generate(2, model, 600, choice))
    number = answered = 9
    while not isinstance(event := client.next(), Done):
        if number == answered:  # always one
            number += 1
            client.send(
                protocol.Models(number, everything=number % 3 == 0) if number % 2 else protocol.Drafters(number, model)
            )
        if isinstance(event, Result):
            answered = event.request
        assert not isinstance(event, Failed), event
    assert token_ids(event) == want
    assert answered > 9
    if number != answered:
        assert isinstance(client.until_end(number)[-1], Result)


def test_a_question_that_waits_can_be_cancelled(client: Client, model: ModelChoice) -> None:
    client.send(protocol.Cancel(1, request=3))
    client.send(protocol.Drafters(2, model))
    client.send(protocol.Models(3))
    assert isinstance(client.until_end(2)[-1], Result)
    assert isinstance(client.until_end(3)[-1], Failed)
    assert isinstance(client.ask(protocol.Models(4)), Result)


MATCHES = """
    import pathlib, time
    from outrider.core.drafting import Fit, Match

    class Probe:
        api = 1
        def matches(self, model):
            {body}
            return Match(Fit.NO, "never")
"""


def test_a_plugin_that_ends_the_process_in_a_question_is_a_row(tmp_path: Path, model: ModelChoice) -> None:
    plugin(tmp_path, MATCHES.format(body="raise SystemExit('out')"), name="leaver")
    client = Client(tmp_path)
    rows = client.ask(protocol.Drafters(1, model))
    assert isinstance(rows, Result)
    broken = {row["name"]: row for row in rows.data}["leaver"]
    assert broken["fit"] == "broken" and "out" in broken["reason"]
    client.close()


def test_a_question_that_hangs_in_a_plugin_holds_up_no_answer_and_no_end(tmp_path: Path, model: ModelChoice) -> None:
    hang, asked = tmp_path / "hang", tmp_path / "asked"
    body = f"while pathlib.Path({str(hang)!r}).exists(): pathlib.Path({str(asked)!r}).touch() or time.sleep(0.01)"
    plugin(tmp_path, MATCHES.format(body=body), name="sleeper")
    client = Client(tmp_path)
    assert isinstance(client.ask(generate(1, model, 4)), Done)
    hang.touch()
    client.send(protocol.Drafters(2, model))
    while not asked.exists():
        threading.Event().wait(0.005)
    assert isinstance(client.ask(generate(3, model, 4)), Done)
    assert client.close()[0] == 0


# ------------------------------------------------------------------------------------------------ downloads


@pytest.fixture
def hub() -> Iterator[Hub]:
    config = {"model_type": "odd", "architectures": ["OddForCausalLM"], "vocab_size": 300, "hidden_size": 8}
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": tokenizer_json().encode(),
        "model.safetensors": safetensors(1 << 20),
    }
    with serving(Hub({REPO: {COMMIT: files}})) as served:
        yield served


def safetensors(nbytes: int) -> bytes:
    header = json.dumps({"weight": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(nbytes)


class Held:
    """Stops the weights on their way after so many pieces, until it is let go."""

    def __init__(self, hub: Hub, pieces: int) -> None:
        self.go, self._left = threading.Event(), pieces
        hub.before_piece = self._piece

    def _piece(self, path: str) -> None:
        if path.endswith("model.safetensors"):
            self._left -= 1
            if self._left < 0:
                self.go.wait()


def clean(hub: Hub) -> dict[str, str]:
    """The environment of an engine that asks this hub and sees no models of other tools."""
    gone = (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_HUB_CACHE",
    )
    return {name: "" for name in gone if name in os.environ} | {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1"}


def until_moving(client: Client, number: int) -> None:
    """Until the first bytes of a download are told."""
    while True:
        event = client.next()
        assert not isinstance(event, Failed), event
        if isinstance(event, protocol.Progress) and (event.request, event.phase) == (number, "download") and event.done:
            return


def partial(client: Client, number: int) -> int:
    rows: Any = client.ask(protocol.Models(number))
    return {row["name"]: row for row in rows.data}[REPO].get("partial", 0)


def test_questions_and_answers_come_while_a_download_stands_still(tmp_path: Path, hub: Hub, model: ModelChoice) -> None:
    held = Held(hub, 40)
    client = Client(tmp_path, **clean(hub))
    want = token_ids(client.ask(generate(1, model, 30)))
    client.send(protocol.Pull(2, REPO))
    until_moving(client, 2)
    assert isinstance(client.ask(protocol.Drafters(3, model)), Result)
    assert partial(client, 4) > 0
    assert token_ids(client.ask(generate(5, model, 30))) == want
    refused = client.ask(protocol.Remove(6, REPO))
    assert isinstance(refused, Failed) and "just being brought" in refused.message
    held.go.set()
    row: Any = client.until_end(2)[-1]
    assert isinstance(row, Result), row
    assert row.data["path"] and row.data["unsupported"]  # it came, and it was looked at
    assert isinstance(client.ask(protocol.Remove(7, REPO)), Result)
    client.close()


def test_a_cancelled_download_ends_alone_and_goes_on_later(tmp_path: Path, hub: Hub) -> None:
    held = Held(hub, 40)
    client = Client(tmp_path, **clean(hub))
    client.send(protocol.Pull(1, REPO))
    until_moving(client, 1)
    client.send(protocol.Cancel(2, request=1))
    assert isinstance(client.until_end(1)[-1], Failed)
    here = partial(client, 3)
    assert here > 0
    held.go.set()
    assert isinstance(client.ask(protocol.Pull(4, REPO)), Result)
    assert max(one.start for one in hub.asked if one.path.endswith("model.safetensors")) > 0
    client.close()


@pytest.mark.parametrize("how", ["quit", "hang up", "dead pipe"])
def test_the_process_ends_while_a_download_runs(tmp_path: Path, hub: Hub, how: str) -> None:
    held = Held(hub, 40)
    client = Client(tmp_path, **clean(hub))
    client.send(protocol.Pull(1, REPO))
    until_moving(client, 1)
    process = client.process
    assert process.stdin is not None and process.stdout is not None
    if how == "quit":
        client.send(protocol.Quit(2))
        assert isinstance(client.until_end(1)[-1], Failed)  # it is told
    elif how == "hang up":
        process.stdin.close()
    else:
        process.stdout.close()
    assert process.wait(timeout=60) == 0
    held.go.set()
    process.stdin.close()
    process.stdout.close()
    again = Client(tmp_path, **clean(hub))
    assert partial(again, 1) > 0
    assert isinstance(again.ask(protocol.Pull(2, REPO)), Result)
    again.close()


def test_what_waits_when_the_client_hangs_up_is_not_begun(tmp_path: Path, model: ModelChoice) -> None:
    client = Client(tmp_path)
    client.send(generate(1, model, 1500))
    client.send(generate(2, model, 1500))
    while not isinstance(client.next(), Step):
        pass
    client.send(protocol.Quit(3))
    first, second = client.until_end(1)[-1], client.until_end(2)
    assert isinstance(first, Done) and first.finish == "cancelled"
    assert len(second) == 1 and isinstance(second[0], Failed)
    assert client.close()[0] == 0
