"""The tests touch nothing of the user's, and leave nothing in the environment that `make chat` uses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from huggingface_hub.constants import HF_HUB_CACHE
from own_home import changes, listing, user_folders

SUPPORT = Path(__file__).parent / "support"
PLUGINS = Path(sys.prefix) / "test-plugins"
ENTRIES = "from importlib.metadata import entry_points; print(*entry_points(group='outrider.drafters').names)"


def test_every_folder_of_the_run_is_in_its_home():
    home = Path(os.environ["OUTRIDER_HOME"])
    assert home.is_relative_to(tempfile.gettempdir())
    for folder in (*user_folders(), Path.home(), Path("~").expanduser(), Path(HF_HUB_CACHE)):
        assert folder.is_relative_to(home), folder


def test_a_listing_sees_what_is_new_gone_or_different(tmp_path: Path):
    for name in ("same", "gone", "longer", "later"):
        (tmp_path / name).write_text("x")
    before = listing([tmp_path, tmp_path / "none"])
    assert changes(before, listing([tmp_path])) == []
    (tmp_path / "gone").unlink()
    (tmp_path / "new").write_text("x")
    (tmp_path / "longer").write_text("xx")
    os.utime(tmp_path / "later", ns=(1, 1))
    told = [line.replace(str(tmp_path), "") for line in changes(before, listing([tmp_path]))]
    assert [line for line in told if line != "changed: "] == [
        "changed: /later",
        "changed: /longer",
        "gone: /gone",
        "new: /new",
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_a_run_that_changes_the_users_files_fails(tmp_path: Path, clean: bool):
    home = tmp_path / "home"
    (home / "data" / "models").mkdir(parents=True)
    place = 'os.environ["OUTRIDER_HOME"]' if clean else repr(str(home))
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib\n\n\ndef test_it():\n"
        f"    assert os.environ['OUTRIDER_HOME'] != {str(home)!r} and 'OUTRIDER_LOOK_THEME' not in os.environ\n"
        f"    pathlib.Path({place}, 'data', 'chats.db').write_text('x')\n"
    )
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "own_home",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "test_it.py",
    ]
    own = {"OUTRIDER_HOME": str(home), "OUTRIDER_LOOK_THEME": "nord", "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(run, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == (0 if clean else 1), done.stdout + done.stderr
    assert (f"new: {home / 'data' / 'chats.db'}" in done.stdout) is not clean
    assert "1 passed" in done.stdout


def test_the_plugin_of_the_tests_is_not_in_the_environment_of_the_chat():
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    names = [
        subprocess.run(
            [sys.executable, "-c", ENTRIES], env=some, capture_output=True, text=True, check=True
        ).stdout.split()
        for some in (env, os.environ)
    ]
    assert "echo" not in names[0] and "eagle" in names[0]
    assert ("echo" in names[1]) is PLUGINS.is_dir()
