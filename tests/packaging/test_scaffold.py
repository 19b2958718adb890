"""`outrider plugins new`: a folder under a name of its own that passes the kit as it is."""

from __future__ import annotations

import importlib
import runpy
import tomllib
from pathlib import Path

import pytest
import toys
from click.testing import CliRunner, Result

from outrider.app import scaffold
from outrider.app.cli import cli
from outrider.app.render import WrongUsage
from outrider.core import conformance

PROMPTS = [[5, 9, 13, 9, 5, 9, 13, 2, 7], [1, 2, 3, 4, 1, 2, 3]]


def new(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plugins", "new", *words])


def test_a_new_plugin_passes_its_own_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    done = new("My-Own", "--to", str(folder))
    assert done.exit_code == 0 and str(folder / "pyproject.toml") in done.output
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(conformance, "DRAWS", 160)
    target = toys.target(sharp=0.3)
    theirs = runpy.run_path(str(folder / "tests" / "test_my_own.py"))
    theirs["test_it_keeps_the_contract"](target, PROMPTS, tmp_path / "weights")
    theirs["test_it_fits_no_other_model"](target, tmp_path / "other")
    group = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert group == {"outrider.drafters": {"my_own": "outrider_my_own:MyOwn"}}
    method = importlib.import_module("outrider_my_own").MyOwn()
    assert list(method.options) == ["longest"]


def test_nothing_of_the_template_s_name_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "raven-drafter"
    files = scaffold.create("raven_drafter", folder)
    assert "outrider_raven_drafter/drafter.py" in files and "README.md" in files
    assert not [name for name in files if "emplate" in name or "emplate" in (folder / name).read_text("utf-8")]
    assert "class RavenDrafter(StateDrafter):" in (folder / "outrider_raven_drafter" / "drafter.py").read_text("utf-8")
    assert "outrider plugins install ./raven-drafter " in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["suffix", "Prompt-Lookup", "auto", "none", "class", "2fast", "../up", ""])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(WrongUsage):
        scaffold.drafter_name(name)


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(WrongUsage, match="exists already"):
        scaffold.create("raven", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
