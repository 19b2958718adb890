"""`outrider plugins`: found without importing, installed by the tool that owns the environment, torch held in place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from outrider.app import plugins, render
from outrider.app.plugins import Environment, Record

FIXTURE = Path(__file__).parents[2] / "fixtures" / "third_party"


def build_plugin(folder: Path, name: str, *, dependency: str = "outrider") -> Path:
    """A wheel of the third-party fixture under another name."""
    source = folder / name
    shutil.copytree(FIXTURE, source, ignore=shutil.ignore_patterns("__pycache__"))
    text = (source / "pyproject.toml").read_text()
    text = text.replace("outrider_echo", f"outrider_{name}").replace("outrider-echo", f"outrider-{name}")
    text = text.replace("echo = ", f"{name} = ").replace('["outrider"]', json.dumps([dependency]))
    (source / "pyproject.toml").write_text(text)
    (source / "outrider_echo").rename(source / f"outrider_{name}")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    return next(folder.glob(f"outrider_{name}-*.whl"))


class Place:
    """An environment of its own that sees the packages of this one."""

    def __init__(self, folder: Path, home: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
        self.packages = Path(paths["purelib"])
        here = sysconfig.get_paths()["purelib"]
        (self.packages / "base.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        self.environ = {**os.environ, "OUTRIDER_HOME": str(home), "PIP_NO_INDEX": "1"}

    def outrider(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command line there."""
        command = [str(self.python), "-m", "outrider", *words]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path: Path, home: Any) -> Place:
    return Place(tmp_path / "venv", home.path)


def test_a_local_wheel_comes_shows_and_goes(place, tmp_path, home):
    wheel = build_plugin(tmp_path, "parrot")
    done = place.outrider("plugins", "install", str(wheel))
    assert (done.returncode, done.stdout) == (0, "outrider-parrot 0.1.0 is installed, with drafter parrot.\n"), (
        done.stderr
    )
    assert (place.packages / "outrider_parrot").is_dir()
    assert f'source = "{wheel}"' in (home.path / "data" / "plugins.toml").read_text()

    rows = json.loads(place.outrider("plugins", "list", "--json").stdout)
    (row,) = [row for row in rows if row["drafter"] == "parrot"]
    assert row == {
        "drafter": "parrot",
        "distribution": "outrider-parrot",
        "version": "0.1.0",
        "target": "outrider_parrot:Echo",
        "builtin": False,
        "source": str(wheel),
        "missing": False,
        "shadowed_by": "",
    }

    done = place.outrider("plugins", "remove", "parrot")
    assert (done.returncode, done.stdout) == (0, "Removed outrider-parrot.\n"), done.stderr
    assert not (place.packages / "outrider_parrot").exists()
    assert "parrot" not in place.outrider("plugins", "list").stdout
    assert "parrot" not in (home.path / "data" / "plugins.toml").read_text()


def test_a_plugin_cannot_replace_torch(place, tmp_path, home):
    wheel = build_plugin(tmp_path, "greedy", dependency="torch<1")
    done = place.outrider("plugins", "install", str(wheel))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error: pip ended with exit code 1; nothing was recorded.\n" in done.stderr
    assert metadata.version("torch") in done.stderr
    assert not (home.path / "data" / "plugins.toml").exists()
    assert "greedy" not in place.outrider("plugins", "list").stdout


def test_list_imports_no_plugin(place):
    done = place.outrider("plugins", "list")
    assert "prompt_lookup" in done.stdout
    check = "import sys; from outrider.app import plugins; plugins.installed(); sys.exit('outrider.drafters' in sys.modules)"
    assert subprocess.run([place.python, "-c", check], env=place.environ, check=False).returncode == 0


def test_a_plugin_whose_code_is_gone_is_a_problem_for_the_doctor(place):
    info = place.packages / "ghost-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[outrider.drafters]\nghost = ghost_module:Ghost\nprompt_lookup = ghost_module:B\n"
    )
    check = "from outrider.app.commands.doctor import _plugins; [print(f.level, f.text) for f in _plugins()]"
    shown = subprocess.run(
        [place.python, "-c", check], env=place.environ, capture_output=True, text=True, check=True
    ).stdout
    assert "problem ghost of ghost is broken: its code ghost_module:Ghost is not there." in shown


def test_what_was_installed_and_is_gone_is_said(outrider):
    plugins.write_record([Record("outrider-gone", "1.0", "/wheels/gone.whl")])
    done = outrider("plugins", "list")
    assert done.code == 0
    assert "missing" in done.out
    assert "outrider plugins install /wheels/gone.whl" in done.err
    assert "outrider-gone was installed but is not here any more" in outrider("doctor").out
    assert outrider("plugins", "remove", "outrider-gone").code == 0
    assert plugins.read_record() == []


def test_a_drafter_that_another_one_stands_before_is_told(outrider, tmp_path, monkeypatch):
    """Outrider's own is used, whatever a package calls its drafter, and of two packages the first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for package, names in (("aa-one", ("suffix", "twin")), ("bb-two", ("twin", "alone"))):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = nowhere:Thing\n" for name in names)
        (info / "entry_points.txt").write_text(f"[outrider.drafters]\n{lines}")
    found = {(one.distribution, one.drafter): one.shadowed_by for one in plugins.installed() if not one.builtin}
    first, second = sorted({name for name, drafter in found if drafter == "twin"}, key=lambda name: found[name, "twin"])
    assert found["aa-one", "suffix"] == "outrider" and found["bb-two", "alone"] == ""
    assert found[first, "twin"] == "" and found[second, "twin"] == first
    told = outrider("plugins", "list").out
    assert "not used, outrider has that name" in told and f"not used, {first} has that name" in told
    monkeypatch.setattr(plugins, "install", lambda packages: [one for one in plugins.installed() if not one.builtin])
    done = outrider("plugins", "install", "aa-one")
    assert "Warning: suffix is not used: outrider has a drafter of that name" in done.err
    assert "alone is not used" not in done.err


@pytest.mark.parametrize("name", ["outrider", "torch", "prompt_lookup", "Prompt-Lookup"])
def test_outrider_itself_stays(outrider, name):
    done = outrider("plugins", "remove", name)
    assert done.code == 2
    assert "belongs to Outrider itself" in done.err


@pytest.mark.parametrize("package", ["torch", "torch==1.0", "outrider>=9", "Torch[all]"])
def test_nothing_else_is_upgraded_this_way(outrider, package):
    assert outrider("plugins", "install", package).code == 2


def test_an_unknown_plugin(outrider):
    done = outrider("plugins", "remove", "nothing")
    assert (done.code, done.out) == (2, "")
    assert "There is no plugin called nothing." in done.err


def test_the_record_keeps_what_it_is_given(home):
    records = [Record("a", "1", 'C:\\x "quoted" \n\t\x7f é 😀'), Record("b-c", "2.0+cpu", "")]
    plugins.write_record(records)
    assert plugins.read_record() == records


@pytest.mark.parametrize("text", ["nonsense", "[[plugin]]\nname = 1\n", "plugin = 3\n", "plugin = [1]\n"])
def test_a_broken_record_is_named(outrider, home, text):
    path = home.path / "data" / "plugins.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    done = outrider("plugins", "list")
    assert done.code == 1
    assert str(path) in done.err
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("outrider-echo", "outrider-echo"),
        ("outrider_echo==1.0", "outrider_echo"),
        ("outrider.echo[x] >=1; python_version>'3'", "outrider.echo"),
        ("echo @ file:///x.whl", "echo"),
        ("wheels/outrider_echo-0.1.0-py3-none-any.whl", "outrider_echo"),
        ("outrider-echo-0.1.0.tar.gz", "outrider-echo"),
        (str(FIXTURE), "outrider-echo"),
        ("git+file:///x", None),
    ],
)
def test_names_of_packages(package, name):
    assert plugins._guess_name(package) == name


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that this process runs in `pipx/venvs/outrider-dev`, with a pipx that writes down how it is called."""
    prefix = tmp_path / "pipx" / "venvs" / "outrider-dev"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    tools = tmp_path / "bin"
    tools.mkdir()
    script = 'import json, os, sys; json.dump([sys.argv[1:], open(os.environ["PIP_CONSTRAINT"].split()[-1]).read() if '
    script += (
        f'"PIP_CONSTRAINT" in os.environ else "", os.environ["PIPX_HOME"]], open({str(tmp_path / "called")!r}, "w"))'
    )
    pipx = tools / "pipx"
    pipx.write_text(f"#!{sys.executable}\n{script}\n")
    pipx.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return prefix


def test_in_a_pipx_environment_pipx_does_it(outrider, prefix, tmp_path):
    (prefix / "pipx_metadata.json").write_text("{}")
    assert outrider("plugins", "install", "outrider-elsewhere").code == 0
    words, constraints, home = json.loads((tmp_path / "called").read_text())
    assert words == ["inject", "outrider-dev", "outrider-elsewhere"]
    assert f"torch=={metadata.version('torch')}\n" in constraints
    assert home == str(tmp_path / "pipx")


def test_without_pipx_on_the_path_the_command_is_told(outrider, prefix, monkeypatch):
    (prefix / "pipx_metadata.json").write_text("{}")
    monkeypatch.setenv("PATH", "")
    done = outrider("plugins", "install", "x")
    assert done.code == 1
    assert "pipx inject outrider-dev x" in done.err


RECEIPT = """[tool]
requirements = [
    { name = "outrider", directory = "/src/outrider" },
    { name = "outrider-old", specifier = ">=1" },
    { name = "outrider-mine", editable = "/src/my drafter" },
]
"""


def test_a_uv_tool_is_told_how_to_do_it_itself(outrider, prefix):
    """From what uv wrote down: no package of that name on an index is ever named."""
    (prefix / "uv-receipt.toml").write_text(RECEIPT)
    done = outrider("plugins", "install", "outrider-new", "outrider-old")
    assert done.code == 1
    start = "uv tool install --torch-backend=auto /src/outrider"
    old, mine = "--with 'outrider-old>=1'", "--with-editable '/src/my drafter'"
    assert f"{start} {old} {mine} --with outrider-new\n" in done.err
    assert plugins.tool_command(prefix, without="Outrider.Old") == f"{start} {mine}"


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ('editable = "/src/o"', "--editable /src/o"),
        ('git = "https://example.org/o?rev=1"', "'git+https://example.org/o?rev=1'"),
        ('path = "/o.whl"', "/o.whl"),
        ('specifier = "==1"', "outrider==1"),
    ],
)
def test_where_a_uv_tool_came_from(tmp_path, requirement, words):
    (tmp_path / "uv-receipt.toml").write_text(f'[tool]\nrequirements = [{{ name = "outrider", {requirement} }}]\n')
    assert plugins.tool_command(tmp_path) == f"uv tool install --torch-backend=auto {words}"


def test_a_receipt_that_cannot_be_read(tmp_path):
    assert plugins.tool_command(tmp_path, add=["x"]) == "uv tool install --torch-backend=auto outrider --with x"


def test_commands_of_each_tool(tmp_path):
    held = tmp_path / "c.txt"
    pip = Environment("pip", tmp_path)
    assert pip.command("install", ["x"], held)[1:4] == ["-m", "pip", "install"]
    assert pip.command("install", ["x"], held)[-3:] == ["-c", str(held), "x"]
    assert pip.command("uninstall", ["x"])[-2:] == ["--yes", "x"]
    uv = Environment("uv", tmp_path)
    python = ["--python", sys.executable]
    assert uv.command("install", ["x"], held) == ["uv", "pip", "install", *python, "-c", str(held), "x"]
    assert uv.command("uninstall", ["x"]) == ["uv", "pip", "uninstall", *python, "x"]
    pipx = Environment("pipx", tmp_path / "outrider")
    assert pipx.command("install", ["x"], held) == ["pipx", "inject", "outrider", "x"]
    assert pipx.command("uninstall", ["x"]) == ["pipx", "uninject", "outrider", "--leave-deps", "x"]


def test_without_pip_and_uv_it_says_so(prefix, monkeypatch):
    monkeypatch.setattr(plugins.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(render.Failure, match="no pip"):
        plugins.install(["x"])
