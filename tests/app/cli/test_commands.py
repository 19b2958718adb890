"""The other commands: tables for people, JSON for scripts, one sentence for what is wrong."""

from __future__ import annotations

import json
import signal

import pytest

from outrider.app import cli, options
from outrider.app.commands import bench, doctor
from outrider.core import protocol
from outrider.core.protocol import Bench, BenchPrompt


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
    without = {"weights", "stop", "logit_bias"}
    assert text.count("[default: ") == len(options._OPTIONS) - len(without)


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
    assert all(len(row) == 9 for row in rows)


def test_bench_measures_what_fits_against_plain(outrider, home):
    done = outrider("bench", "--quick", "--categories", "chat,code_edit")
    assert done.code == 0
    (request,) = home.requests("Bench")
    assert [drafter["name"] for drafter in map(dict, request["drafters"]) if drafter] == ["none", "prompt_lookup"]
    assert [prompt["category"] for prompt in request["prompts"]] == ["chat", "code_edit"]
    assert request["sampling"] == {"temperature": 0.0, "max_tokens": 48}
    lines = [line.split() for line in done.out.splitlines()]
    assert ["prompt_lookup", "32.0", "1.50×", "1.00", "0%", "1", "64"] in lines
    assert lines[-2][:2] == ["total", "plain"]


def test_bench_json(outrider, tmp_path):
    done = outrider("bench", "--json", "-", "--limit", "1", "--drafters", "prompt-lookup", "--categories", "chat")
    assert json.loads(done.out)["drafters"] == ["none", "prompt_lookup"]
    path = tmp_path / "result.json"
    done = outrider("bench", "--json", str(path), "--limit", "1", "--drafter", "differs")
    assert json.loads(path.read_text())["drafters"] == ["none", "differs"]
    assert "CATEGORY" in done.out
    assert "6 of 6 drafted answers differ from the plain one" in done.err
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "no prompts"),
        ("{}\n", "Line 1"),
        ('{"id": "a", "category": "c", "turns": ["x"]}\nnonsense\n', "Line 2"),
        ('{"id": "a", "category": "c", "turns": [" "]}\n', "empty turn"),
        ('{"id": "a", "category": "c", "turns": []}\n', "empty turn"),
        ("\xff", "Line 1"),
    ],
)
def test_bench_with_bad_prompts(outrider, home, tmp_path, text, says):
    path = tmp_path / "prompts.jsonl"
    if text is not None:
        path.write_text(text, "latin-1")
    done = outrider("bench", "--prompts", str(path))
    assert done.code == 2
    assert says in done.err
    assert not (home.path / "requests").exists()


@pytest.mark.parametrize(
    "words", [("--categories", "nope"), ("--json", "/no/such/folder/x"), ("--temperature", "-1"), ("--repeats", "0")]
)
def test_bench_usage(outrider, home, words):
    assert outrider("bench", *words).code == 2
    assert not (home.path / "requests").exists()


def test_the_bundled_prompts():
    prompts = bench._read_prompts(None)
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 16
    categories = {prompt.category for prompt in prompts}
    assert categories == {"chat", "code", "code_edit", "summarisation", "structured", "translation"}
    assert all(prompt.source for prompt in prompts)
    assert Bench(id=1, model=options.ModelChoice(), prompts=prompts, drafters=[]).prompts[0] == prompts[0]
    assert isinstance(prompts[0], BenchPrompt)


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
