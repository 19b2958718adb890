"""Changes of the file: one line is new, every other byte stays."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from outrider.app.config.edit import CannotEdit, replace, with_value, without

FILE = """\
# mine
[look]   # how it looks
theme = "dark"   # I like "dark" # very much

#width = 100
# [sampling]

[sampling]
temperature=0.5
stop = [  # two
  "a#b",
]  # done
  top_k = 4

[personas."my own"]
system = "x"
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("look", "theme"), "light", 'theme = "dark"   #', 'theme = "light"   #'),
        (("look", "width"), 80, "#width = 100", "width = 80"),
        (("look", "mouse"), False, '"dark" # very much\n', '"dark" # very much\nmouse = false\n'),
        (("sampling", "temperature"), 0.25, "temperature=0.5", "temperature= 0.25"),
        (("sampling", "stop"), ["é\n"], 'stop = [  # two\n  "a#b",\n]  # done', 'stop = ["é\\n"]  # done'),
        (("sampling", "top_k"), 1, "  top_k = 4", "  top_k = 1"),
        (("sampling", "seed"), 7, "  top_k = 4\n", "  top_k = 4\nseed = 7\n"),
        (("personas", "my own", "system"), "\x7f", 'system = "x"', 'system = "\\u007F"'),
        (("personas", "my own", "top_k"), 3, 'system = "x"\n', 'system = "x"\ntop_k = 3\n'),
        (("presets", "*q*", "top_k"), 3, 'system = "x"\n', 'system = "x"\n\n[presets."*q*"]\ntop_k = 3\n'),
        (("keys", "bind", "new"), [], 'system = "x"\n', 'system = "x"\n\n[keys.bind]\nnew = []\n'),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_one_value_changes(path: tuple[str, ...], value: Any, old: str, new: str, end: str) -> None:
    assert FILE.count(old) == 1
    before, wanted = FILE.replace("\n", end), FILE.replace(old, new).replace("\n", end)
    assert with_value(before, path, value) == wanted
    assert with_value(wanted, path, value) == wanted.replace("temperature=0.25", "temperature= 0.25")


@pytest.mark.parametrize("text", ["", "# only words", "[look]", "[look]\n", "[sampling]\nseed = 1"])
def test_a_section_is_made_where_there_is_none(text: str) -> None:
    changed = with_value(text, ("look", "theme"), "dark")
    assert changed.startswith(text)
    assert tomllib.loads(changed)["look"] == {"theme": "dark"}
    assert changed.endswith("\n") or text == "[look]"


@pytest.mark.parametrize(
    "text", ['look = { theme = "dark" }', 'look.theme = "dark"\nlook.width = 3', "look = 3", '[look]\ntheme.x = "dark"']
)
def test_what_only_a_person_can_change_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit, match="look"):
        with_value(text, ("look", "mouse" if "width" in text else "theme"), "light")


def test_a_dotted_key_is_changed_in_its_place() -> None:
    assert with_value('look.theme = "dark" # so\n', ("look", "theme"), "light") == 'look.theme = "light" # so\n'


def test_unset_comments_out_and_set_takes_it_back() -> None:
    text = without(FILE, ("sampling", "stop"))
    assert text == FILE.replace('stop = [  # two\n  "a#b",\n]', '#stop = [  # two\n#  "a#b",\n#]')
    assert without(text, ("sampling", "stop")) == text
    assert with_value(without(FILE, ("look", "theme")), ("look", "theme"), "nord").count("nord") == 1
    with pytest.raises(CannotEdit):
        without("sampling = { stop = [] }", ("sampling", "stop"))


def test_a_link_stays_a_link_and_a_failed_write_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "dotfiles" / "c.toml", tmp_path / "config.toml"
    replace(real, "one")
    real.chmod(0o640)
    link.symlink_to(real)
    replace(link, "two\r\n")
    assert link.is_symlink() and real.read_bytes() == b"two\r\n" and real.stat().st_mode & 0o777 == 0o640

    def fail(*_paths: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        replace(link, "three")
    assert real.read_text() == "two\n" and os.listdir(real.parent) == ["c.toml"]
