"""`outrider config`, and the settings as the defaults of the other commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outrider.app.config import FIELDS


@pytest.fixture(autouse=True)
def file(home, monkeypatch) -> Path:
    """Where the settings are; no variable of the person who runs the tests counts."""
    for name in [field.env for field in FIELDS.values() if field.env in os.environ]:
        monkeypatch.delenv(name)
    path = home.path / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_path_init_and_what_is_there_already(outrider, file):
    assert outrider("config", "path").out == f"{file}\n"
    assert outrider("config", "check").out == f"There is no {file}; the defaults hold.\n"
    assert outrider("config", "init").out == f"{file}\n"
    assert "#theme =" in file.read_text() and '#new = ["ctrl+n"]' in file.read_text()
    assert outrider("config", "check").out == f"{file} is fine.\n"
    done = outrider("config", "init")
    assert done.code == 1 and "is there already" in done.err
    file.write_text("# mine\n")
    done = outrider("config", "init", "--force")
    assert done.code == 0 and "config.toml.old" in done.err
    assert file.with_name("config.toml.old").read_text() == "# mine\n"


def test_show_tells_where_values_come_from(outrider, file, monkeypatch):
    file.write_text('[sampling]\ntemperature = 0.3\n[presets."*qwen*"]\ntop_k = 5\n')
    monkeypatch.setenv("OUTRIDER_LOOK_THEME", "nord")
    lines = [line.split(None, 2) for line in outrider("config", "show").out.splitlines()]
    assert lines[0] == ["KEY", "VALUE", "FROM"] and len(lines) == len(FIELDS) + 1
    assert ["sampling.temperature", "0.3", "config.toml, line 2"] in lines
    assert ["look.theme", "nord", "environment OUTRIDER_LOOK_THEME"] in lines
    rows = json.loads(outrider("config", "show", "sampling.top_k", "--model", "qwen3-8b", "--json").out)
    assert rows == [{"key": "sampling.top_k", "value": 5, "from": "preset", "where": "preset *qwen*, line 4"}]
    assert outrider("config", "show", "sampling.temperature").out == "0.3\n"
    look = [path for path in FIELDS if path.startswith("look.")]
    assert len(outrider("config", "show", "look").out.splitlines()) == 1 + len(look)
    done = outrider("config", "show", "sampling.temprature")
    assert done.code == 2 and "Did you mean sampling.temperature?" in done.err
    assert outrider("config", "show", "--persona", "x").code == 2


def test_show_env_documents_every_variable(outrider, monkeypatch):
    monkeypatch.setenv("OUTRIDER_LOOK_WIDTH", "80")
    out = outrider("config", "show", "--env").out
    assert all(field.env in out and field.path in out for field in FIELDS.values())
    (row,) = json.loads(outrider("config", "show", "look.width", "--env", "--json").out)
    assert row == {"variable": "OUTRIDER_LOOK_WIDTH", "key": "look.width", "set": "80"}


def test_check_finds_mistakes_in_file_keys_and_environment(outrider, file, monkeypatch):
    file.write_text('[look]\nthem = 1\n[keys.bind]\nnew = ["ctrl+m"]\n')
    monkeypatch.setenv("OUTRIDER_LOOK_WIDHT", "3")
    done = outrider("config", "check")
    lines = done.out.splitlines()
    assert done.code == 1 and len(lines) == 3
    assert lines[0].startswith("config.toml, line 2: look.them") and lines[1].startswith(
        "config.toml, line 4: keys.bind"
    )
    assert lines[2] == "OUTRIDER_LOOK_WIDHT: is no variable of a setting. Did you mean OUTRIDER_LOOK_WIDTH?"
    told = json.loads(outrider("config", "check", "--json").out)
    assert [fault["line"] for fault in told] == [2, 4, 0]


def test_set_and_unset(outrider, file):
    assert outrider("config", "set", "look.theme", "nord").out == 'look.theme = "nord"\n'
    text = file.read_text()
    assert '\ntheme = "nord"\n' in text and "#width = 100" in text  # in the whole file, at its place
    for words in [
        ("sampling.temperature", "0.3"),
        ("sampling.stop", "a", "b"),
        ("chat.system", "Be brief."),
        ("chat.think", "off"),
        ("sampling.seed", "-1"),
        ("personas.brief.system", "One sentence."),
        ('presets."*qwen*".draft_tokens', "4"),
        ("keys.bind.new", "alt+n", "N"),
        ("keys.bind.thought", "none"),
        ("drafting.drafter_options", '{ tree = "chain" }'),
    ]:
        done = outrider("config", "set", *words)
        assert done.code == (2 if words[1] == "-1" else 0), done.err
    found = tomllib.loads(file.read_text())
    assert found["sampling"] == {"temperature": 0.3, "stop": ["a", "b"]}
    assert found["chat"] == {"system": "Be brief.", "think": False}
    assert found["personas"]["brief"] == {"system": "One sentence."} and found["presets"]["*qwen*"]["draft_tokens"] == 4
    assert found["keys"]["bind"] == {"new": ["alt+n", "N"], "thought": []}
    assert outrider("config", "check").code == 0
    assert outrider("config", "unset", "sampling.temperature").code == 0
    assert "#temperature = 0.3" in file.read_text()
    assert "is not set" in outrider("config", "unset", "sampling.temperature").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("look.them", "dark"), "Did you mean look.theme?"),
        (("look.theme", "darkk"), "Did you mean dark?"),
        (("look.width", "wide"), "must be a whole number"),
        (("look.width", "1", "2"), "must be a whole number"),
        (("personas.x.temprature", "1"), "Did you mean temperature?"),
        (("presets.x.model", "m"), "is nothing that presets can set"),
        (("keys.bind.nwe", "alt+n"), "Did you mean new?"),
        (("keys.bind.new", "ctrl+m"), "is the same byte as enter"),
        (("keys.bind", "x"), "There is no setting keys.bind."),
        (("a b", "x"), "a b is no key."),
        (("look.theme",), "Missing argument"),
    ],
)
def test_set_refuses_what_cannot_be(outrider, file, words, told):
    done = outrider("config", "set", *words)
    assert done.code == 2 and told in done.err and not file.exists()


def test_set_leaves_a_broken_file_alone(outrider, file):
    for text in ("[look\n", "look = { theme = 'dark' }\n"):
        file.write_text(text)
        done = outrider("config", "set", "look.theme", "dark")
        assert done.code == 1 and "line 1" in done.err.lower() and "outrider config edit" in done.err
        assert file.read_text() == text
        assert outrider("config", "unset", "look.theme").code == 1


def test_edit_opens_the_editor_and_checks(outrider, file, monkeypatch, tmp_path):
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\nprintf "[look]\\nthem = 1\\n" > "$2"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", f'"{editor}" -w')
    done = outrider("config", "edit")
    assert done.code == 1 and "config.toml, line 2" in done.err
    monkeypatch.setenv("VISUAL", str(tmp_path / "none"))
    assert "could not be started" in outrider("config", "edit").err


def test_schema(outrider):
    schema = json.loads(outrider("config", "schema").out)
    assert set(schema["$defs"]) >= {"Config", "Look", "Persona", "Preset"}
    assert not any(part["additionalProperties"] for part in schema["$defs"].values())


# ------------------------------------------------------------------------------------------------ other commands


def test_run_takes_its_defaults_from_the_settings(outrider, home, file, monkeypatch):
    file.write_text(
        '[engine]\nmodel = "mine"\ncontext = 512\n[sampling]\ntemperature = 0.3\nstop = ["END"]\n'
        '[chat]\nsystem = "Be brief."\nthink = false\n[drafting]\ndrafter = "suffix"\nexact = true\n'
        '[personas.wild]\ntemperature = 2\nmodel = "other"\n'
    )
    assert outrider("run", "hi").code == 0
    assert outrider("run", "--no-exact", "--temperature", "0.5", "-m", "m", "--think", "--system", "x", "hi").code == 0
    monkeypatch.setenv("OUTRIDER_SAMPLING_TOP_K", "7")
    assert outrider("run", "--persona", "wild", "hi").code == 0
    assert outrider("run", "--raw", "hi").code == 0
    own, typed, wild, raw = home.requests("Generate")
    assert own["model"] == {"model": "mine", "context": 512, "exact": 7}
    assert own["sampling"] == {"temperature": 0.3, "stop": ["END"]}
    assert own["messages"][0] == {"role": "system", "content": "Be brief."}
    assert own["drafter"]["name"] == "suffix" and own["think"] is False
    assert typed["model"] == {"model": "m", "context": 512} and typed["sampling"]["temperature"] == 0.5
    assert typed["messages"][0]["content"] == "x" and typed["think"] is True
    assert wild["model"]["model"] == "other" and wild["sampling"] == {"temperature": 2.0, "top_k": 7, "stop": ["END"]}
    assert "messages" not in raw and "think" not in raw


def test_bench_measures_the_configured_model_and_nothing_else_of_it(outrider, home, file):
    file.write_text(
        "[engine]\nmodel = 'mine'\n[sampling]\ntemperature = 0.3\ntop_k = 4\n[drafting]\ndrafter = 'suffix'\n"
        "draft_tokens = 3\n[presets.mine]\ncontext = 64\ntop_p = 0.5\n"
    )
    assert outrider("bench", "--quick").code == 0
    (request,) = home.requests("Bench")
    assert request["model"] == {"model": "mine", "context": 64} and request["sampling"]["temperature"] == 0.0
    assert not {"top_k", "top_p"} & set(request["sampling"])
    assert len(request["drafters"]) > 2 and not any("tokens" in drafter for drafter in request["drafters"])


def test_run_tells_mistakes_and_goes_on(outrider, home, file):
    file.write_text("[look]\nthem = 1\n[sampling]\ntemperature = 'hot'\n")
    done = outrider("run", "hi")
    assert done.code == 0 and done.out == "Paris is nice\n"
    assert (
        done.err.startswith("Warning: config.toml, line 2: look.them") and "1 more: outrider config check" in done.err
    )
    assert home.requests("Generate")[0].get("sampling", {}) == {}
    file.write_bytes(b"\xff")
    assert outrider("run", "hi").code == 0
    done = outrider("run", "--persona", "x", "hi")
    assert done.code == 2 and "There is no persona x." in done.err


def test_the_settings_move_the_folders_of_the_engine(outrider, file, tmp_path):
    from outrider.app.config import folders

    file.write_text(f"[folders]\nbuilds = '{tmp_path / 'b'}'\n")
    assert folders() == {"OUTRIDER_BUILDS": str(tmp_path / "b")}


def test_models_show_is_asked_with_the_settings(outrider, home, file):
    file.write_text("[engine]\ncontext = 512\nmodel = 'mine'\n[sampling]\ntemperature = 1\n")
    assert outrider("models", "show", "starter").code == 0
    assert home.requests("Models")[0]["choice"]["context"] == 512
    assert outrider("models", "show", "starter", "--context", "64").code == 0
    assert home.requests("Models")[1]["choice"]["context"] == 64


# ------------------------------------------------------------------------------------------------ keys, completion


def test_keys(outrider, file):
    rows = {row["action"]: row for row in json.loads(outrider("keys", "--json").out)}
    assert (
        rows["new"]["keys"] == ["ctrl+n"] and rows["copy"]["reply"] == ["c"] and rows["marks"]["slash"] == "/marks mode"
    )
    assert "quit              ctrl+q, ctrl+d if empty" in outrider("keys").out
    file.write_text("[keys]\npreset = 'vim'\n[keys.bind]\nnew = ['ctrl+t']\nnwe = ['x']\n")
    done = outrider("keys")
    assert "Did you mean new?" in done.err and "Some terminals do not send ctrl+t." in done.err
    assert "\nnew               ctrl+t" in done.out and "c, y" in done.out
    assert "\nnew               ctrl+n" in outrider("keys", "--preset", "default").out


def test_a_shell_is_told_of_chats_by_their_titles(home, monkeypatch, capfd):
    from outrider.app import cli
    from outrider.app.store.chats import Store
    from outrider.app.store.ids import new_id
    from outrider.app.store.records import Chat, short

    chat = Chat(id=new_id(), title="Rivers", created=1.0, updated=1.0)
    with Store.open() as store:
        store.put_chat(chat)
    for name, value in {
        "_OUTRIDER_COMPLETE": "fish_complete",
        "COMP_WORDS": "outrider --resume ",
        "COMP_CWORD": "",
    }.items():
        monkeypatch.setenv(name, value)
    assert cli.main() == 0
    assert f"plain,{short(chat.id)}\tRivers\n" in capfd.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(outrider):
    script = outrider("completion", "bash").out
    subprocess.run(["bash", "-c", f"set -e\n{script}\ncomplete -p outrider"], check=True, capture_output=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(outrider, shell):
    done = outrider("completion", shell)
    assert done.code == 0 and "_OUTRIDER_COMPLETE" in done.out and "Warning" not in done.err
    assert outrider("completion", "cmd").code == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("outrider ru", {"run"}),
        ("outrider config set look.", {path for path in FIELDS if path.startswith("look.")}),
        ("outrider --dev", {"--device"}),
        ("outrider run --drafter pro", {"prompt_lookup"}),
        ("outrider --persona br", {"brief"}),
        ("outrider run --rule rej", {"rejection"}),
        ("outrider --model sta", {"starter"}),
        ("outrider keys --preset v", {"vim"}),
        ("outrider run --no-s", {"--no-stream"}),
        ("outrider models show qwen3.6", {"qwen3.6-27b", "qwen3.6-35b-a3b"}),
        ("outrider --model mine/", {"mine/model:Q8_0"}),
        ("outrider drafters show med", {"medusa"}),
        ("outrider chats show la", {"last"}),
    ],
)
def test_a_shell_is_told_how_a_line_may_go_on(home, file, monkeypatch, capfd, words, offered):
    from outrider.app import cli

    file.write_text("[personas.brief]\n")
    (home.path / "data" / "models" / "mine--model+Q8_0").mkdir(parents=True)
    for name, value in {
        "_OUTRIDER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }.items():
        monkeypatch.setenv(name, value)
    assert cli.main() == 0
    assert {line.partition(",")[2] for line in capfd.readouterr().out.splitlines()} == offered


def test_drafters_and_doctor_know_the_settings(outrider, home, file):
    file.write_text("[engine]\nmodel = 'mine'\nmodl = 3\n")
    assert outrider("drafters", "list").code == 0
    assert home.requests("Drafters")[0]["model"]["model"] == "mine"
    done = outrider("doctor")
    assert done.code == 1 and "config.toml, line 3: engine.modl is no setting." in done.out
    assert "→ Did you mean model?" in done.out


@pytest.mark.parametrize(
    ("words", "temperature", "top_k", "system"),
    [
        ((), 0.7, 5, "Old."),
        (("--persona", "brief"), 0.2, 5, "Be brief."),
        (("--persona", "brief", "--temperature", "1"), 1.0, 5, "Be brief."),
    ],
)
def test_a_chat_that_goes_on_keeps_its_own_unless_told_otherwise(
    outrider, file, monkeypatch, words, temperature, top_k, system
):
    from outrider.app import chat, render
    from outrider.app.commands import _resume
    from outrider.app.store.records import Chat, Settings
    from outrider.core.base.protocol import Sampling

    file.write_text(
        "[sampling]\ntemperature = 0.9\n[personas.brief]\ntemperature = 0.2\nsystem = 'Be brief.'\n"
        "[chat]\npersona = 'brief'\n"
    )
    kept = Chat(
        id="1",
        title="",
        created=0,
        updated=0,
        system="Old.",
        settings=Settings(sampling=Sampling(temperature=0.7, top_k=5)),
    )
    seen = []
    monkeypatch.setattr(_resume, "find_chat", lambda *_, **__: (kept, ""))
    monkeypatch.setattr(render, "is_terminal", lambda _stream: True)
    monkeypatch.setattr(chat, "run_chat", lambda options: seen.append(options) or 0)
    assert outrider("--continue", *words).code == 0
    (options,) = seen
    assert (options.sampling.temperature, options.sampling.top_k) == (temperature, top_k)
    assert options.system == system and options.resume == "1"


@pytest.mark.parametrize(
    ("words", "variable", "terminals", "term", "comes"),
    [
        ((), None, (True, True), "xterm", "screen"),
        ((), None, (True, False), "xterm", "lines"),
        ((), None, (True, True), "dumb", "lines"),
        ((), None, (False, True), "xterm", "refused"),
        ((), None, (False, False), "dumb", "refused"),
        (("--screen-reader",), None, (False, False), "xterm", "lines"),
        ((), "on", (True, True), "xterm", "lines"),
        (("--no-screen-reader",), "on", (True, True), "dumb", "screen"),
        ((), "off", (True, False), "xterm", "refused"),
    ],
)
def test_the_chat_comes_on_a_screen_or_in_lines(outrider, monkeypatch, words, variable, terminals, term, comes):
    from outrider.app import chat, linear, render

    seen = []
    reads, writes = terminals
    monkeypatch.setattr(render, "is_terminal", lambda stream: reads if stream is sys.stdin else writes)
    monkeypatch.setattr(chat, "run_chat", lambda _: seen.append("screen") or 0)
    monkeypatch.setattr(linear, "run_linear", lambda _: seen.append("lines") or 0)
    monkeypatch.setenv("TERM", term)
    if variable:
        monkeypatch.setenv("OUTRIDER_LOOK_SCREEN_READER", variable)
    done = outrider(*words)
    assert seen == ([] if comes == "refused" else [comes]) and done.code == (2 if comes == "refused" else 0)


def test_keys_names_what_this_terminal_may_keep(outrider, monkeypatch):
    for name in ("TMUX", "STY", "WT_SESSION", "VTE_VERSION", "TERMINAL_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM_PROGRAM", "vscode")
    out = outrider("keys").out
    assert "This is VS Code." in out and "ctrl+j makes a new line" in out
    assert any(
        line.split() == ["F1", "Help", "VS", "Code:", "its", "commands", "ctrl+o", "?,", "/help"]
        for line in out.splitlines()
    )
    rows = {row["action"]: row for row in json.loads(outrider("keys", "--json").out)}
    assert rows["palette"]["kept"] == {"ctrl+p": "VS Code: opening files"} and rows["new"]["kept"] == {}
    assert outrider("keys", "--markdown").out.startswith("# Keys and commands of the chat")


def test_doctor_tells_the_profile(outrider, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "a 1 b 22")
    monkeypatch.setenv("OUTRIDER_LOOK_FPS", "12")
    assert "over SSH: at most 12 paints a second, replies every 100 ms" in outrider("doctor").out
