"""Which value holds: flags, environment, persona, presets, file, what was last used, default."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.app.config import FIELDS, Asked, folders
from outrider.app.config.remember import remember

Write = Callable[[str], Path]
FILE = """\
[engine]
model = "org/Qwen3-8B"
[sampling]
temperature = 0.1
[look]
theme = "nord"
[presets."*qwen*"]
temperature = 0.2
drafter = "suffix"
[presets."*8b"]
drafter = "eagle"
[personas.brief]
temperature = 0.3
model = "starter"
system = "Be brief."
[personas.cool]
temperature = 0.35
"""


def test_the_strongest_wins(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sampling.temperature"

    def holds(asked: Asked) -> tuple[float | str, str]:
        settings = asked.settle()
        assert not settings.faults
        return settings.values[path], settings.place(path)

    assert holds(Asked()) == ("default", "default")
    write(FILE)
    assert holds(Asked({"engine.model": "other"})) == (0.1, "config.toml, line 4")
    assert holds(Asked()) == (0.2, "preset *qwen*, line 8")
    assert holds(Asked(persona="brief")) == (0.3, "persona brief, line 13")
    assert holds(Asked(persona="cool")) == (0.35, "persona cool, line 17")  # also over the model's preset
    monkeypatch.setenv("OUTRIDER_SAMPLING_TEMPERATURE", "0.4")
    assert holds(Asked(persona="brief")) == (0.4, "environment OUTRIDER_SAMPLING_TEMPERATURE")
    assert holds(Asked({path: 0.5}, "brief")) == (0.5, "flag --temperature")


def test_presets_go_by_the_model_that_will_run(write: Write) -> None:
    write(FILE)
    drafter = "drafting.drafter"
    assert Asked().settle().values[drafter] == "eagle"  # the later one
    assert Asked({"engine.model": "/models/Qwen2-1B.gguf"}).settle().values[drafter] == "suffix"
    assert Asked(persona="brief").settle().values[drafter] == "auto"  # it brings a model of its own
    assert Asked({"engine.model": "~/x/llama-8B/"}).settle().values[drafter] == "eagle"


def test_the_order_of_everything(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the weakest to the strongest; each is laid over those before."""
    path, held, settings = "sampling.temperature", [], Asked().settle()
    text = "[engine]\nmodel = 'org/Some-Model'\n"
    layers = [
        ("file", "[sampling]\ntemperature = 0.1\n"),
        ("preset", "[presets.'*model']\ntemperature = 0.2\n"),
        ("model", "[models.some-model]\ntemperature = 0.3\nthink = false\nsystem = 'x'\ndraft_tokens = 3\n"),
        ("persona", "[personas.p]\ntemperature = 0.4\n[chat]\npersona = 'p'\n"),
    ]
    for kind, more in layers:
        text += more
        write(text)
        settings = Asked().settle()
        held.append(settings.values[path])
        assert settings.sources[path].kind == kind and not settings.faults
    assert settings.place("chat.think") == "model some-model, line 9" and settings.drafter().tokens == 3
    monkeypatch.setenv("OUTRIDER_SAMPLING_TEMPERATURE", "0.5")
    held += [Asked().settle().values[path], Asked({path: 0.6}).settle().values[path]]
    assert held == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_a_models_section_holds_for_that_name_alone(write: Write) -> None:
    write('[models."org/A*"]\ntop_k = 1\n[models.b]\ntop_k = 2\n[models."org/b"]\ntop_k = 3\n')

    def top_k(model: str) -> object:
        return Asked({"engine.model": model}).settle().values["sampling.top_k"]

    assert [top_k(name) for name in ("org/Ab", "ORG/a*", "B", "/models/b/", "org/b", "bb")] == [
        *("default", 1, 2, 2, 3, "default")
    ]


def test_default_in_a_stronger_layer_leaves_it_to_the_model(write: Write) -> None:
    write(
        '[sampling]\ntemperature = 0.1\n[chat]\nsystem = "x"\n[personas.free]\ntemperature = "default"\nsystem = "default"'
    )
    settings = Asked(persona="free").settle()
    assert settings.sampling().temperature is None and settings.get("chat.system") is None
    assert settings.sources["chat.system"].kind == "persona"


def test_weights_go_with_the_drafter_they_were_written_for(write: Write) -> None:
    write(
        '[drafting]\ndrafter = "eagle"\ndrafter_weights = "~/w"\ndrafter_options = { tree = "chain" }\ndraft_tokens = 3'
    )
    own = Asked().settle().drafter()
    assert own.name == "eagle" and own.weights == os.path.expanduser("~/w") and own.options == {"tree": "chain"}
    other = Asked({"drafting.drafter": "suffix"}).settle().drafter()
    assert (other.name, other.weights, other.options, other.tokens) == ("suffix", None, {}, 3)


def test_personas(write: Write) -> None:
    write(FILE + '[chat]\npersona = "brief"\n')
    settings = Asked().settle()
    assert settings.persona == "brief" and settings.model().model == "starter"
    with pytest.raises(LookupError) as caught:
        Asked(persona="breif").settle()
    assert caught.value.args == ("There is no persona breif.", "Did you mean brief?")
    write("")
    with pytest.raises(LookupError, match=r"\[personas.x\]"):
        Asked(persona="x").settle()


def test_a_measuring_command_takes_only_the_engine_part(write: Write) -> None:
    write(FILE + "device = 'cpu'\n")
    asked = Asked({"sampling.top_k": 3}, sections=("engine",))
    settings = asked.settle()
    assert settings.model().model == "org/Qwen3-8B" and settings.drafter().name == "auto"
    assert settings.sampling().top_k == 3 and settings.sampling().temperature is None


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("look.theme", "light", "light"),
        ("look.mouse", "OFF", False),
        ("look.mouse", "1", True),
        ("look.width", "80", 80),
        ("sampling.top_p", "1", 1.0),
        ("sampling.seed", "default", "default"),
        ("sampling.stop", "END", ["END"]),
        ("sampling.stop", '["a", "b"]', ["a", "b"]),
        ("chat.system", 'Say "x = 1".', 'Say "x = 1".'),
        ("chat.think", "false", False),
        ("drafting.drafter_options", '{ tree = "chain" }', {"tree": "chain"}),
        ("keys.bind", '{ new = ["alt+n"] }', {"new": ["alt+n"]}),
    ],
)
def test_the_environment_is_read_in_the_type_of_the_setting(
    monkeypatch: pytest.MonkeyPatch, path: str, text: str, value: object
) -> None:
    monkeypatch.setenv(FIELDS[path].env, text)
    settings = Asked().settle()
    assert not settings.faults and settings.values[path] == value


def test_a_wrong_variable_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_LOOK_WIDTH", "wide")
    monkeypatch.setenv("OUTRIDER_CHAT_PERSONA", "nobody")
    monkeypatch.setenv("OUTRIDER_LOOK_THEME", "")
    settings = Asked().settle()
    assert [fault.where for fault in settings.faults] == ["OUTRIDER_LOOK_WIDTH", "OUTRIDER_CHAT_PERSONA"]
    assert settings.values["look.width"] == 100 and settings.persona is None


def test_variables_are_distinct() -> None:
    names = [field.env for field in FIELDS.values()]
    assert len(names) == len(set(names)) and not {"OUTRIDER_HOME", "OUTRIDER_DEBUG"} & set(names)


def test_what_was_last_used_comes_under_the_file(write: Write, home: Path) -> None:
    remember("look.theme", "dark")
    remember("look.marks", "off")
    settings = Asked().settle()
    assert (settings.values["look.theme"], settings.place("look.theme")) == ("dark", "remembered")
    write(FILE)
    settings = Asked().settle()
    assert settings.values["look.theme"] == "nord" and settings.values["look.marks"] == "off"
    for junk in ("{", "[]", '{"look.theme": "gone", "look.marks": 3}'):
        (home / "state" / "remembered.json").write_text(junk)
        assert Asked().settle().values["look.marks"] == "accepted"


def test_folders_reach_the_engine(write: Write, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.core.base import paths

    assert folders() == {}
    write(f"[folders]\nmodels = '{home / 'big'}'\n")
    assert folders() == {"OUTRIDER_MODELS": str(home / "big")}
    monkeypatch.setenv("OUTRIDER_MODELS", str(home / "other"))
    assert folders() == {"OUTRIDER_MODELS": str(home / "other")} and paths.models_dir() == home / "other"
