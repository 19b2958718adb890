"""Rules of the house that no tool checks by itself: what is imported when, what a wheel holds, how long things get."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = ("app", "core", "plugins", "assets")
HEAVY = {"torch", "numpy", "textual", "tokenizers", "safetensors", "huggingface_hub"}
FILE_LINES, FUNCTION_LINES = 500, 60
CORE_MODULES = 8  # that the drafting half of a plugin may take names from


def sources() -> list[Path]:
    """Every module of the distribution."""
    return [path for root in ROOTS for path in sorted((ROOT / root).rglob("*.py"))]


def module(path: Path) -> str:
    """The name that a source file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded_by(code: str) -> set[str]:
    """Top-level names in `sys.modules` after `code`, in an interpreter of its own."""
    report = f"{code}\nimport sys; print(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_outrider_is_a_namespace_in_every_root():
    import outrider

    assert outrider.__file__ is None
    assert not [root for root in ROOTS if (ROOT / root / "outrider" / "__init__.py").exists()]


def test_the_app_and_the_protocol_load_no_torch():
    names = [module(path) for path in (ROOT / "app").rglob("*.py") if path.stem != "__main__"]
    loaded = loaded_by(
        "\n".join(f"import {name}" for name in [*names, "outrider.core.base.protocol", "outrider.core.base.paths"])
    )
    assert not loaded & (HEAVY - {"textual"})


@pytest.mark.parametrize("name", ["base.protocol", "base.paths", "base.errors", "drafting"])
def test_the_light_half_of_core_loads_nothing_heavy(name):
    assert not loaded_by(f"import outrider.core.{name}") & HEAVY


@pytest.mark.parametrize("words", [[], ["run"], ["chats"], ["bench"], ["models", "pull"], ["plugins"], ["doctor"]])
def test_help_loads_nothing_heavy_and_no_plugin(words):
    run = f"from outrider.app.cli import main; assert main({[*words, '--help']!r}) == 0"
    check = "import sys; assert not [name for name in sys.modules if name.startswith('outrider.drafters')]"
    assert not loaded_by(f"{run}\n{check}") & HEAVY


def test_help_costs_little():
    code = "import resource, subprocess, sys\n"
    code += "subprocess.run([sys.executable, '-m', 'outrider', '--help'], check=True, stdout=subprocess.DEVNULL)\n"
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) <= 0.15


def test_the_wheel_holds_one_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    version = metadata.version("outrider")
    assert {name.partition("/")[0] for name in names} == {"outrider", f"outrider-{version}.dist-info"}
    assert {f"{module(path).replace('.', '/')}" for path in sources()} <= {
        name.removesuffix(".py").removesuffix("/__init__") for name in names
    }
    portions = ("app", "core", "drafters", "assets")
    assert {f"outrider/{portion}/py.typed" for portion in portions} <= set(names)
    assert {"outrider/assets/bench_prompts.jsonl", "outrider/assets/catalogue.toml"} <= set(names)
    native = {
        path.name
        for path in (ROOT / "core/outrider/core/model/kernels/c").glob("native*")
        if path.suffix in (".c", ".h")
    }
    assert len(native) > 3 and {f"outrider/core/model/kernels/c/{name}" for name in native} <= set(names)
    ours = [name for name in names if not name.startswith("outrider/assets/plugin_template/")]
    assert not [
        name for name in ours if name.startswith("tests") or "/test_" in name or name.endswith((".pyc", ".part"))
    ]


def test_files_and_functions_stay_short():
    long = []
    for path in sources():
        text = path.read_text("utf-8")
        if text.count("\n") > FILE_LINES:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert not long


def test_the_drafting_half_of_a_plugin_takes_names_from_few_modules_of_core(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("house")
    taken = script.plugins(script.House(ROOT, script.ENGINE))
    assert "draft_model" in taken
    assert not {name: modules for name, modules in taken.items() if len(modules) > CORE_MODULES}


def test_everything_public_says_what_it_is():
    silent = []
    for path in sources():
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        if text and not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
        public = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for node in [*tree.body, *(inner for owner in public for inner in owner.body)]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not _documented(node):
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not silent


def _documented(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return node.name.startswith("_") or bool(ast.get_docstring(node)) or bool(node.decorator_list)


def test_the_version_is_the_newest_of_the_changelog():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == metadata.version("outrider")


def test_the_entry_points_are_those_of_pyproject():
    ours = {
        entry.name for entry in metadata.distribution("outrider").entry_points if entry.group == "outrider.drafters"
    }
    modules = {
        path.stem for path in (ROOT / "plugins" / "outrider" / "drafters").iterdir() if not path.stem.startswith("_")
    }
    assert ours == {name for name in modules if name != "py"}


def test_nothing_in_core_and_plugins_imports_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lazy and type-only imports included, modules and folders alike."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("house")
    house = script.House(ROOT)
    graph = house.graph("core", "plugins")
    assert script.cycles(graph) == [] and script.cycles(house.folders(graph, strict=True)) == []
