"""The file: what is written parses to the defaults, and each mistake is told with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.keymap import PRESETS, build, keymap, own_keys
from outrider.app.chat.marks import Marks
from outrider.app.commands.run import run
from outrider.app.config import FIELDS, Asked
from outrider.app.config.fields import PERSONA
from outrider.app.config.read import read
from outrider.app.config.schema import Config, Persona, Preset
from outrider.app.config.template import template
from outrider.core.base.protocol import ModelChoice, Sampling, most_threads

Write = Callable[[str], Path]


def whole() -> str:
    return template({action.id: own_keys(action) for action in ACTIONS})


def test_the_written_file_parses_to_the_defaults(write: Write) -> None:
    write(whole())
    settings = Asked().settle()
    assert not settings.faults
    assert settings.config == Config()
    assert settings.values == {path: field.default for path, field in FIELDS.items()}
    assert keymap(settings) == build("default", {})


def test_uncommenting_every_line_changes_nothing(write: Write) -> None:
    text = re.sub(r"^#(?=\S)", "", whole(), flags=re.MULTILINE)
    assert len(tomllib.loads(text)["sampling"]) == len(msgspec.structs.fields(Config().sampling))
    write(text)
    settings = Asked().settle()
    assert not settings.faults
    values = {path: value for path, value in settings.values.items() if path != "keys.bind"}
    assert values == {path: field.default for path, field in FIELDS.items() if path != "keys.bind"}
    assert {settings.sources[path].kind for path in FIELDS} == {"file"}
    assert keymap(settings) == build("default", {})


def test_every_setting_is_explained_and_its_lines_are_short() -> None:
    text = whole()
    for field in FIELDS.values():
        assert field.help.endswith("."), field.path
        if field.path != "keys.bind":
            assert f"\n#{field.name} = " in text
    assert max(map(len, text.splitlines())) <= 125


def test_the_schema_agrees_with_its_neighbours() -> None:
    assert {field.name for field in FIELDS.values() if field.section == "sampling"} == {
        name for name in Sampling.__struct_fields__ if name != "logit_bias"
    }
    assert {name for name in ModelChoice.__struct_fields__ if name != "exact"} == {
        field.name for field in FIELDS.values() if field.section == "engine"
    }
    assert FIELDS["look.marks"].choices == [mode.value for mode in Marks]
    assert FIELDS["keys.preset"].choices == list(PRESETS)
    assert set(Persona.__struct_fields__) == set(PERSONA) == {*Preset.__struct_fields__, "model"}
    names = [field.name for field in FIELDS.values()]
    assert len(names) == len(set(names))  # a persona names them without a section
    options = {word.removeprefix("--") for option in run.params for word in option.opts}
    assert {name.replace("_", "-") for name in PERSONA} - options == {"drafter-options"}
    msgspec.json.schema(Config)


MISTAKES = [
    ('[look]\nthem = "dark"', 2, "look.them is no setting", "Did you mean theme?"),
    ('[look]\n\ntheme = "darkk"', 3, 'look.theme cannot be "darkk"', "Did you mean dark?"),
    ("[look]\nwidth = 3.5", 2, "must be a whole number from 0 to 1000, not 3.5", ""),
    ("[look]\nwidth = -1", 2, "must be a whole number from 0 to 1000, not -1", ""),
    ("[look]\nmouse = 1", 2, "must be true or false, not 1", ""),
    ('[look]\nmarks = "rainbow"', 2, '"confidence" or "off", not "rainbow"', ""),
    ("[sampling]\ntemperature = 300", 2, "must be from 0 to 100, not 300", ""),
    ("[sampling]\ntemperature = nan", 2, "must be from 0 to 100", ""),
    ("[sampling]\ntop-k = 4", 2, "top-k is no setting", "Did you mean top_k?"),
    ("[sampling]\nseed = true", 2, 'a whole number or "default", not true', ""),
    ('[sampling]\nstop = "x"', 2, 'a list of texts, not "x"', ""),
    ('[sampling]\nstop = [""]', 2, "must not be empty", ""),
    ('[sampling]\nsystem = "hello"', 2, "system is no setting", "It belongs into [chat]."),
    ('[engine]\ndevice = "gpu"', 2, "must be auto, cpu, cuda or cuda:N", ""),
    ("[engine]\nthreads = 0", 2, f'a whole number from 1 to {most_threads()} or "default"', ""),
    ("[engine]\nthreads = 99999", 2, f'a whole number from 1 to {most_threads()} or "default", not 99999', ""),
    ("[engine]\ncontext = 1", 2, 'a whole number from 16 to 2147483647 or "default", not 1', ""),
    ("[drafting]\ndrafter_options = { a = 1" + "0" * 30 + " }", 2, "beyond any number that is of use", ""),
    ("[drafting]\ndraft_tokens = 64", 2, 'a whole number from 1 to 63 or "default", not 64', ""),
    ('[engine]\nmodel = " "', 2, "must not be empty", ""),
    ("[lok]\na = 1", 1, "lok is no section", "Did you mean look?"),
    ("temperature = 1", 1, "temperature is no section", "It belongs into [sampling]."),
    ("look = 3", 1, "look must be a section", ""),
    ("[keys.bind]\nnew = 4", 2, "must be a list of keys", ""),
    ("[keys]\nbind = 4", 2, "keys.bind must be a section", ""),
    ("personas = 1", 1, "must be sections, as in [personas.brief]", ""),
    ("[personas]\nbrief = 1", 2, "must be a section, as in [personas.brief]", ""),
    ("[personas.brief]\ntemprature = 1", 2, "no setting", "Did you mean temperature?"),
    ('[presets."*q*"]\nmodel = "x"', 2, 'presets."*q*".model is no setting', "It belongs into [engine]."),
    ('[models."org/x"]\nmodel = "x"', 2, 'models."org/x".model is no setting', "It belongs into [engine]."),
    ("models = 1", 1, "must be sections, as in [models.starter]", ""),
    ("[models.x]\ntemperature = 300", 2, "models.x.temperature must be from 0 to 100, not 300", ""),
    ("[model.x]\ntop_k = 3", 1, "model is no section", "It belongs into [engine]."),
    ('[chat]\npersona = "x"', 2, 'names "x", but there is no such persona', "[personas.x]"),
    ("[sampling]\nstop = [\n  'a',\n  3,\n]", 2, "must be a list of texts", ""),
    ("[drafting]\nrule = 1979-05-27", 2, "not a date", ""),
]


@pytest.mark.parametrize(("text", "line", "words", "hint"), MISTAKES)
def test_a_mistake_has_its_line_and_costs_only_itself(
    write: Write, text: str, line: int, words: str, hint: str
) -> None:
    write(text)
    settings = Asked().settle()
    (fault,) = settings.faults
    assert (fault.line, fault.where) == (line, f"config.toml, line {line}")
    assert words in fault.text and hint in str(fault)
    assert settings.values == {path: field.default for path, field in FIELDS.items()}


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"[look]\ntheme = dark\n", 2, "Invalid value"),
        (b"[look\n", 1, "Expected ']'"),
        (b"[look]\n\n[look]\n", 3, "cannot declare ('look',) twice"),
        (b'[look]\ntheme = "dark', 2, "Unterminated string"),
        (b'\n[look]\ntheme = "d\xe4rk"\n', 3, "is not UTF-8"),
        (b"x = " + b"[" * 9000, 0, "nested too deeply"),
        (b"#" * (1 << 20) + b"\n", 0, "larger than 1 MB"),
    ],
)
def test_a_file_that_cannot_be_read_leaves_the_defaults(write: Write, data: bytes, line: int, words: str) -> None:
    write("").write_bytes(data)
    settings = Asked().settle()
    (fault,) = settings.faults
    assert fault.line == line and words in fault.text
    assert settings.config == Config()


def test_what_is_no_file_is_told(write: Write) -> None:
    path = write("")
    path.unlink()
    path.mkdir()
    (fault,) = Asked().settle().faults
    assert "cannot be read" in fault.text and str(path) in fault.hint


def test_other_ways_to_write_it_are_read_with_their_lines(write: Write) -> None:
    write(
        '\ufefflook.theme = "dark"\r\nsampling = { temperature = 0.5, top_k = "x" }\r\n'
        '[chat]\r\nsystem = """\r\nOne = [2]\r\n# three"""\r\n"think" = 3\r\n'
    )
    file = read()
    assert file.values == {"look.theme": "dark", "sampling.temperature": 0.5, "chat.system": "One = [2]\n# three"}
    assert [fault.line for fault in file.faults] == [2, 7]
