"""The other commands: tables for people, JSON for scripts, one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import signal

import pytest

from outrider.app import cli, options
from outrider.app.commands import _drafters, doctor
from outrider.core.base import protocol


def test_help_and_version(outrider):
    assert outrider("--version").out.startswith("outrider 0.")
    for words in [(), *((name,) for name in cli.COMMANDS), ("models", "pull"), ("plugins", "install")]:
        done = outrider(*words, "--help")
        assert done.code == 0
        assert "Example" in done.out, words


def test_every_command_says_in_the_overview_what_its_help_says(outrider):
    for name, sentence in cli.COMMANDS.items():
        assert sentence in " ".join(outrider(name, "--help").out.split())


def test_every_shared_option_has_a_default_in_its_help(outrider):
    text = " ".join(outrider("run", "--help").out.split())
    without = {"drafter_option", "stop", "logit_bias"}
    assert text.count("[default: ") == len(options._OPTIONS) - len(without) + 1  # --think is no engine option


@pytest.mark.parametrize("words", [(), ("--model", "m"), ("chat",), ("--debug", "-m", "m")])
def test_chat_needs_a_terminal(outrider, words):
    done = outrider(*words)
    assert (done.code, done.out) == (2, "")
    assert "The chat needs a terminal" in done.err
    assert "outrider run" in done.err


@pytest.mark.parametrize(
    "words", [("nonsense",), ("models",), ("models", "nonsense"), ("models", "pull"), ("models", "pull", "--x", "y")]
)
def test_wrong_usage(outrider, words):
    assert outrider(*words).code == 2


def test_models_list(outrider):
    done = outrider("models", "list")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].split() == ["NAME", "SIZE", "STATE", "FORMAT", "QUANT", "SOURCE", "LICENSE", "TITLE"]
    assert lines[1].split()[:6] == ["starter", "98.4", "MB", "can", "be", "pulled"]
    assert lines[3].split() == ["cut", "5", "B", "broken"]
    assert "cut: It is cut off.\n" in done.err
    assert lines[4].split() == ["org/half", "20.0", "GB", "partly", "here"]
    assert "org/half: 12.3 GB of 20.0 GB are here; `outrider models pull org/half` goes on from there.\n" in done.err
    assert "\x1b" not in done.out


def test_models_json_has_every_key(outrider):
    rows = json.loads(outrider("models", "list", "--json").out)
    assert [row["name"] for row in rows] == ["starter", "mine", "cut", "org/half"]
    assert all(tuple(row) == protocol.ModelRow.__struct_fields__ for row in rows)
    assert json.loads(outrider("models", "show", "starter", "--json").out)["detail"]["layers"] == 30


def test_models_show(outrider):
    shown = outrider("models", "show", "mine").out
    assert "context   8,192\ntemplate  yes\n" in shown
    assert "problem  " not in shown
    assert "problem   It is cut off.\n" in outrider("models", "show", "cut").out
    done = outrider("models", "show", "nothing")
    assert (done.code, done.err) == (2, "Error: There is no model nothing.\nTry less.\n")


def test_models_pull_reports_on_stderr_and_results_on_stdout(outrider):
    done = outrider("models", "pull", "mine")
    assert done.out == "mine is ready: 5 B at /models/mine.gguf\n"
    assert done.err == "Downloading (98.4 MB)\nDownloaded 98.4 MB.\n"
    assert json.loads(outrider("models", "pull", "mine", "--json").out)["path"] == "/models/mine.gguf"
    assert outrider("models", "pull", "org/half").err.endswith("Note: Q4_0 was taken.\n")


def test_what_cannot_be_run_is_not_called_ready(outrider):
    done = outrider("models", "pull", "odd")
    assert (done.code, done.out) == (0, "odd is here: 5 B at /models/odd\n")
    assert done.err.endswith("Warning: it cannot be run: the architecture odd is not supported yet.\n")
    done = outrider("models", "pull", "cut")
    assert (done.code, done.out) == (1, "cut is here: 5 B at /models/cut.gguf\n")
    assert done.err.endswith("Error: It cannot be used: It is cut off.\n`outrider models rm cut` deletes it.\n")


def test_ctrl_c_during_a_pull_says_what_is_kept(screen):
    terminal = screen("models", "pull", "endless")
    terminal.read_until(b"98.4 MB of 98.4 MB")
    terminal.process.send_signal(signal.SIGINT)
    code, shown = terminal.finish()
    assert code == 130
    assert shown.endswith(
        b"Stopped. What came from the model hub is kept: pull again to go on, `models rm` to delete it.\r\n"
    )


def test_models_rm_asks_first(outrider, home, screen):
    done = outrider("models", "rm", "mine")
    assert done.code == 2
    assert "--yes" in done.err
    terminal = screen("models", "rm", "mine")
    terminal.read_until(b"[y/N]: ")
    assert not home.requests("Remove")
    terminal.type(b"n\n")
    assert terminal.finish()[0] == 1
    assert not home.requests("Remove")
    assert outrider("models", "rm", "mine", "--yes").out == "Removed mine, 5 B are free again.\n"
    assert [request["name"] for request in home.requests("Remove")] == ["mine"]
    assert outrider("models", "rm", "org/half", "--yes").out == "Removed org/half, 12.3 GB are free again.\n"


def test_models_rm_of_what_is_not_here(outrider):
    done = outrider("models", "rm", "starter")
    assert done.code == 1
    assert "not here" in done.err


def test_drafters_list(outrider, home):
    done = outrider("drafters", "list", "--model", "m", "--drafter-weights", "w")
    assert done.code == 0
    assert [line.split("  ")[0] for line in done.out.splitlines()] == ["NAME", "prompt_lookup", "draft_model", "boom"]
    assert "ImportError: [2Jno" in done.out
    (request,) = home.requests("Drafters")
    assert (request["model"], request["weights"]) == ({"model": "m"}, "w")
    rows = json.loads(outrider("drafters", "list", "--json").out)
    assert [row["usable"] for row in rows] == [True, False, False]
    assert all(list(row) == list(protocol.DrafterRow.__struct_fields__) for row in rows)


def test_options_of_a_drafter_are_shown_with_their_meaning():
    row = protocol.DrafterRow(
        name="some", fit="any", usable=True, options={"depth": "levels of a tree", "corpus": "a file"}
    )
    told = _drafters.shown(row, "starter")
    assert "--drafter-option NAME=VALUE" in told
    assert re.search(r"depth\s+levels of a tree\n.*corpus\s+a file", told)
    row.options = {}
    assert "--drafter-option" not in _drafters.shown(row, "starter")


def test_drafters_that_were_published_are_told_with_how_to_use_them(outrider):
    lines = outrider("drafters", "list", "--model", "known").out.splitlines()
    assert lines[1].split()[:6] == ["eagle", "made", "for", "it", "no", "published"]
    at = lines.index("Published for this model; --drafter METHOD --drafter-weights REPOSITORY brings and uses one:")
    assert [line.split() for line in lines[at + 2 :]] == [
        ["eagle", "org/eagle", "~800", "MB", "MIT,", "3", "layers"],
        ["eagle", "org/here", "here"],
    ]


def test_reasons_go_below_where_they_do_not_fit_beside():
    row = protocol.DrafterRow(name="eagle", fit="exact", reason="needs a draft model of its own", where="train")
    wide = _drafters.table([row], 80).splitlines()
    assert wide == _drafters.table([row]).splitlines()
    assert wide[1].endswith("none known  needs a draft model of its own")
    narrow = _drafters.table([row], 60).splitlines()
    assert narrow[0].split() == ["NAME", "FIT", "USABLE", "MEMORY", "WEIGHTS"]
    assert narrow[1:] == ["eagle  made for it  no              none known", "  needs a draft model of its own"]


def test_drafters_show(outrider):
    text = outrider("drafters", "show", "eagle", "--model", "known").out
    assert "made for it: needs a draft" in text
    assert "  outrider --model known --drafter eagle --drafter-weights org/here\n" in text
    assert (
        "outrider --model m --drafter prompt_lookup\n" in outrider("drafters", "show", "prompt-lookup", "-m", "m").out
    )
    assert (
        json.loads(outrider("drafters", "show", "eagle", "-m", "known", "--json").out)["known"][0]["repo"]
        == "org/eagle"
    )
    done = outrider("drafters", "show", "nonsense")
    assert done.code == 2
    assert "there are: boom, draft_model, prompt_lookup" in done.err


def test_drafters_test(outrider, home):
    done = outrider("drafters", "test", "one", "--drafter-weights", "org/w", "--prompts", "3", "--max-tokens", "8")
    assert done.code == 0
    (request,) = home.requests("DrafterTest")
    assert request["drafter"] == {"name": "one", "weights": "org/w"}
    assert (request["limit"], len({prompt["category"] for prompt in request["prompts"]})) == (8, 3)
    lines = done.out.splitlines()
    assert lines[0] == "one (w) on starter · float32 · cpu"
    assert "1.50 ± 0.10 draft tokens a round, 30 of 60 proposed" in lines[2]
    assert lines[-2:] == ["    1       75%      20", "    2       50%      10"]
    assert (
        "an answer to chat-tides differs from the plain one at token 12, where the two best tokens differ by 0.001"
        in done.err
    )


def test_drafters_test_hands_settings_on(outrider, home):
    options = ("--drafter-option", "tree=chain", "--drafter-option", "depth=3")
    assert outrider("drafters", "test", "eagle", *options, "--draft-tokens", "3").code == 0
    assert home.requests("DrafterTest")[0]["drafter"] == {
        "name": "eagle",
        "tokens": 3,
        "options": {"tree": "chain", "depth": 3},
    }
    assert outrider("drafters", "test", "eagle", "--drafter-option", "tree").code == 2
    assert "--drafter-option NAME=VALUE" in outrider("drafters", "test", "--help").out


@pytest.mark.parametrize(
    ("name", "says", "option"),
    [
        (
            "twofold",
            "The usual reading, the first, gets most accepted, 1.50 ± 0.10 draft tokens a round against 0.50 ± 0.10.",
            0,
        ),
        ("other_way", "but another gets most accepted, 2.50 ± 0.10 draft tokens a round against 1.50 ± 0.10.", 1),
        ("alike", "The usual reading, the first, is as good as any within the error, 1.50", 0),
    ],
)
def test_drafters_test_names_the_better_reading_and_how_to_pin_it(outrider, name, says, option):
    text = outrider("drafters", "test", name).out
    options = ["--drafter-option states=boundary", "--drafter-option states=output --drafter-option sharp=true"]
    assert f"\n\nWith {options[0]}\n" in text and f"\n\nWith {options[1]}\n" in text
    last = text.split("\n\n")[-1]
    assert last.startswith("These files can be read in 2 ways. ") and says in last
    assert last.endswith(f":\n  {options[option]}\n")


def test_drafters_test_in_json(outrider, home):
    assert json.loads(outrider("drafters", "test", "twofold", "--json").out)["best"] == 0
    assert outrider("drafters", "test").code == 0
    assert not home.requests("DrafterTest")[-1].get("drafter")


def test_a_drafter_that_breaks_fails_the_test(outrider):
    done = outrider("drafters", "test", "bad")
    assert done.code == 1
    assert "It broke." in done.err


def test_conformance_fails_with_the_first_broken_check(outrider):
    done = outrider("drafters", "test", "good", "--conformance")
    assert done.code == 0
    assert done.out.splitlines()[2:] == ["greedy    ok       It is ok.[2J", "no trace  refused  It is refused.[2J"]
    done = outrider("drafters", "test", "bad", "--conformance", "--json")
    assert done.code == 1
    assert "bad does not keep the contract: no_trace." in done.err
    assert json.loads(done.out)["checks"][1]["verdict"] == "failed"


def test_doctor_is_content(outrider):
    done = outrider("doctor")
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("ok       versions ")
    assert "2.13.0 on the CPU" in done.out
    assert done.err == "No problems.\n"


@pytest.mark.parametrize(("engine", "says"), [("problem", "→ Mend it."), ("dies", "exit code 3")])
def test_doctor_with_a_problem_in_the_engine(outrider, monkeypatch, engine, says):
    monkeypatch.setenv("FAKE_DOCTOR", engine)
    done = outrider("doctor")
    assert done.code == 1
    assert says in done.out
    assert done.err == "1 problem.\n"


def test_doctor_json(outrider):
    findings = json.loads(outrider("doctor", "--json").out)
    assert all(list(finding) == ["level", "topic", "text", "fix"] for finding in findings)


def test_doctor_names_a_folder_that_cannot_be_written(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "file"))
    found = [finding for finding in doctor._folders() if finding.level == "problem"]
    assert len(found) == 4
    assert all("OUTRIDER_HOME" in finding.fix for finding in found)


def test_doctor_names_what_others_can_read(outrider, home):
    data = home.path / "data"
    data.mkdir(0o700, parents=True)
    (data / "chats.db").touch(0o600)
    assert "yours alone" in outrider("doctor").out
    (data / "chats.db").chmod(0o644)
    data.chmod(0o755)
    done = outrider("doctor")
    assert (
        done.code == 1
        and f"{data} (755), {data / 'chats.db'} (644)." in done.out
        and f"chmod -R go= {data}" in done.out
    )
    (data / "chats.db").chmod(0o600)
    data.chmod(0o700)
    assert outrider("doctor").code == 0


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"NO_COLOR": "1"}, "underlined"),
        ({"TERM": "dumb"}, "dumb"),
        ({"COLORTERM": "truecolor"}, "16 million"),
        ({"TERM": "xterm-256color"}, "256"),
    ],
)
def test_doctor_on_colours(environ, says):
    (finding,) = doctor._colours(environ)
    assert says in finding.text


def test_doctor_in_a_terminal(screen):
    code, shown = screen("doctor").finish()
    assert code == 0
    assert b"xterm-256color" in shown


def test_a_mistake_of_ours_is_one_sentence(home, capsys):
    cli._explain_bug(ValueError, ValueError("what"), None)
    shown = capsys.readouterr().err
    assert "ValueError: what" in shown
    assert "--debug" in shown
    assert "Traceback" not in shown
