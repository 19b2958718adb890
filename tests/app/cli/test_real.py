"""The command line with the real engine and the starter model, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.core.base import paths, protocol

pytestmark = pytest.mark.real

GREEDY = ("--temperature", "0", "--max-tokens", "32", "--dtype", "fp32", "--device", "cpu")
ROWS = "Row, row, row your boat. Row, row, row your boat. Row, row, row your"


@pytest.fixture(autouse=True)
def starter() -> None:
    if not list(Path(paths.models_dir()).glob("SmolLM2-135M-Instruct.Q4_1.gguf")):
        pytest.skip("the starter is not in the local library: outrider models pull starter")


def ask(*words: str) -> Any:
    """What one command line prints as JSON."""
    command = [sys.executable, "-m", "outrider", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_knows_the_capital_of_france():
    report = ask("run", *GREEDY, "--json", "What is the capital of France?")
    assert list(report) == list(protocol.Report.__struct_fields__)
    assert "Paris" in report["text"]
    assert len(report["kinds"]) == len(report["token_ids"])


def test_a_third_party_plugin_appears_and_drafts():
    (row,) = [row for row in ask("drafters", "list", "--json") if row["name"] == "echo"]
    assert (row["distribution"], row["fit"], row["usable"], row["trusted"]) == ("outrider-echo", "any", True, False)
    (row,) = [row for row in ask("plugins", "list", "--json") if row["drafter"] == "echo"]
    assert row["target"] == "outrider_echo:Echo"
    drafted = ask("run", *GREEDY, "--json", "--raw", "--drafter", "echo", "--draft-tokens", "4", ROWS)
    plain = ask("run", *GREEDY, "--json", "--raw", "--drafter", "none", ROWS)
    assert drafted["drafters"]["echo"] > 0
    assert drafted["accepted"] > 0
    assert drafted["token_ids"] == plain["token_ids"]


def test_a_benchmark_of_one_prompt():
    wanted = ("--categories", "chat", "--limit", "1", "--max-tokens", "8", "--drafters", "prompt_lookup")
    data = ask("bench", *wanted, "--dtype", "fp32", "--device", "cpu", "--json", "-")
    assert data["drafters"] == ["none", "prompt_lookup"]
    assert data["total"]["none"]["ratio"] == 1.0
    assert set(data["categories"]) == {"chat"}
    assert all(run["same_text"] for run in data["runs"])
