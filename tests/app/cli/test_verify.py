"""`outrider verify`: what it asks for, what it prints, and when it fails."""

from __future__ import annotations

import json
import signal

import pytest


def test_all_is_the_same(outrider, home):
    done = outrider("verify", "--model", "m", "--drafter", "prompt-lookup", "--draft-tokens", "5")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0] == "m · bfloat16 · cpu, 2 threads"
    assert lines[2].split() == [
        "DRAFTER", "MODE", "ANSWERS", "IDENTICAL", "NEAR-TIES", "DIFFERENCES", "TOKENS", "TOK/PASS"
    ]  # fmt: skip
    assert lines[3].split() == ["prompt_lookup", "greedy", "6", "6", "0", "0", "640", "1.57"]
    assert lines[-1] == "6 of 6 drafted answers are identical to the plain ones."
    (asked,) = home.requests("Verify")
    assert asked["drafters"] == [{"name": "prompt_lookup", "tokens": 5}]
    assert asked["sampling"] == {"max_tokens": 128}
    assert "exact" not in asked["model"] and "rule" not in asked
    categories = [prompt["category"] for prompt in asked["prompts"]]
    assert len(categories) == len(set(categories)) == 6  # one of each


def test_what_is_asked_for(outrider, home, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "a", "turns": ["Hi."]}\n{"id": "b", "turns": ["Ho."]}\n{"id": "c", "turns": ["Hu."]}\n')
    words = ("-m", "m", "--prompts", str(file), "--quick", "--exact", "--temperature", "1", "--seed", "4")
    done = outrider("verify", *words, "-d", "suffix", "-d", "draft-model", "-d", "suffix")
    assert done.code == 0 and "m · bfloat16 · cpu, 2 threads · exact mode" in done.out
    (asked,) = home.requests("Verify")
    assert [prompt["id"] for prompt in asked["prompts"]] == ["a", "b", "c"]
    assert [choice["name"] for choice in asked["drafters"]] == ["suffix", "draft_model"]
    assert asked["sampling"] == {"temperature": 1.0, "seed": 4, "max_tokens": 32}
    assert asked["model"]["exact"] == 7
    outrider("verify", "-m", "m", "--exact", "--draft-tokens", "12", "--limit", "1", "--prompts", str(file))
    asked = home.requests("Verify")[-1]
    assert asked["model"]["exact"] == 12 and len(asked["prompts"]) == 1
    assert [choice.get("name", "auto") for choice in asked["drafters"]] == [
        "auto",
        "prompt_lookup",
    ]  # those that can ride


def test_near_ties_are_told_and_are_no_failure(outrider):
    done = outrider("verify", "-m", "near", "-d", "suffix")
    assert done.code == 0
    assert (
        "suffix, greedy, prompt chat-tides, token 57: a near-tie. "
        "plain said ' the\\x1b[2J\\n' (gap 0.012), drafted said ' a' (gap 0.031). In fp32 the two best are 0.0041 apart."
    ) in done.out
    assert "\x1b" not in done.out
    assert done.out.endswith("5 of 6 drafted answers are identical to the plain ones, 1 part at a near-tie.\n")


def test_the_chat_is_a_table_of_its_own(outrider):
    done = outrider("verify", "-m", "m", "-d", "suffix")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines() if "turns" in line] == [
        ["plain", "turns", "3", "3", "0", "0"]
    ]
    assert "4 of 4 answers behind a cached chat are identical to freshly read ones." in done.out
    done = outrider("verify", "-m", "stale", "-d", "suffix")
    assert done.code == 1
    assert "suffix, edited of the chat, turn 2, token 57: a DIFFERENCE. read anew said" in done.out


def test_a_difference_fails(outrider):
    done = outrider("verify", "-m", "wrong", "-d", "suffix")
    assert done.code == 1
    assert "prompt chat-tides, turn 2, token 57: a DIFFERENCE." in done.out
    assert "drafted ended. In fp32 the two best are 1 apart." in done.out
    assert "Error: 1 drafted answer differs from the plain one.\n" in done.err
    assert "--exact tells whether rounding has to do with it" in done.err
    assert "rounding" not in outrider("verify", "-m", "wrong", "-d", "suffix", "--exact").err


def test_what_could_not_be_checked_fails(outrider):
    done = outrider("verify", "-m", "unchecked", "-d", "suffix")
    assert done.code == 1 and "could not be checked" in done.err
    assert "not checked in fp32. plain said" in done.out and "It does not fit." in done.out


def test_json(outrider, tmp_path):
    file = tmp_path / "out.json"
    done = outrider("verify", "-m", "wrong", "-d", "suffix", "--json", str(file))
    assert done.code == 1 and "DRAFTER" in done.out
    assert json.loads(file.read_text())["partings"][1]["drafted"]["id"] is None
    done = outrider("verify", "-m", "m", "-d", "suffix", "--json", "-")
    assert json.loads(done.out)["same"] is True


def test_rules(outrider, home):
    done = outrider("verify", "-m", "m", "-d", "suffix", "--rule", "rejection")
    assert done.code == 0 and "not promised to be the same; only greedy" in done.err
    assert home.requests("Verify")[0]["rule"] == "rejection"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rule", "typical"), "lossy by design"),
        (("-d", "none"), "leaves nothing to compare"),
        (("-d", ""), "--drafter must not be empty"),
        (("--prompts", "nowhere.jsonl"), "cannot be read"),
        (("--categories", "cooking"), "no prompts of category cooking"),
        (("--json", "no/such/folder/x.json"), "cannot be written"),
    ],
)
def test_wrong_usage_is_told_before_an_engine_starts(outrider, home, words, says):
    done = outrider("verify", *words)
    assert done.code == 2 and says in done.err and done.out == ""
    assert not (home.path / "pid").exists()


def test_ctrl_c_tells_what_was_compared(screen):
    shown = screen("verify", "-m", "endless", "-d", "suffix")
    shown.read_until(b"Checking one, greedy")
    shown.process.send_signal(signal.SIGINT)
    code, seen = shown.finish()
    assert code == 130 and b"Stopped early. 6 of 6 drafted answers" in seen


def test_exact_mode_of_the_other_commands(outrider, home):
    outrider("run", "--exact", "Hi")
    outrider("run", "Hi")
    assert [asked["model"].get("exact") for asked in home.requests("Generate")] == [7, None]
    outrider("bench", "--exact", "--draft-tokens", "3", "--quick", "--drafters", "suffix")
    assert home.requests("Bench")[0]["model"]["exact"] == 3
