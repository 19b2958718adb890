"""A home for the whole test run, and a check at its end that the user's own folders did not change."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from outrider.core.base import paths

FOR_TESTS = ("OUTRIDER_STARTER", "OUTRIDER_SNAPSHOTS", "OUTRIDER_TEST_MODEL", "OUTRIDER_TERMINAL", "OUTRIDER_BUILDS")
FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "TRITON_CACHE_DIR")

Listing = dict[str, tuple[int, int]]


def user_folders() -> list[Path]:
    """Where this user's Outrider keeps its files."""
    return [paths.config_dir(), paths.data_dir(), paths.cache_dir(), paths.state_dir(), paths.models_dir()]


def listing(folders: list[Path]) -> Listing:
    """Size and time of change of all files and folders in `folders`."""
    found: Listing = {}
    for top in folders:
        for path in (top, *top.rglob("*")):
            try:
                seen = path.lstat()
            except FileNotFoundError:
                continue
            found[str(path)] = (seen.st_size, seen.st_mtime_ns)
    return found


def changes(before: Listing, after: Listing) -> list[str]:
    """What is new, gone or different, one line each."""
    lines = [f"new: {path}" for path in after.keys() - before.keys()]
    lines += [f"gone: {path}" for path in before.keys() - after.keys()]
    lines += [f"changed: {path}" for path in before.keys() & after.keys() if before[path] != after[path]]
    return sorted(lines)


def _new_home() -> Path:
    """A temporary home with links to the models of the user's library: the tests find the starter and change nothing."""
    home = Path(tempfile.mkdtemp(prefix="outrider-tests-"))
    library, models = home / "data" / "models", paths.models_dir()
    library.mkdir(parents=True)
    (home / "user").mkdir()
    for file in models.glob("*.gguf"):
        (library / file.name).symlink_to(file)
    if (models / ".verified").is_dir():
        shutil.copytree(models / ".verified", library / ".verified")
    return home


class OwnHome:
    """Moves everything that is found by the environment. The processes of the run inherit it."""

    def __init__(self) -> None:
        self.folders = user_folders()
        self.before = listing(self.folders)
        self.changed: list[str] = []
        self.home = _new_home()
        for name in list(os.environ):
            own = name.startswith("OUTRIDER_") and name not in FOR_TESTS
            if own or name in FOLDERS or name.startswith("XDG_"):
                del os.environ[name]
        os.environ["OUTRIDER_HOME"] = str(self.home)
        os.environ["HOME"] = os.environ["USERPROFILE"] = str(self.home / "user")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.changed = changes(self.before, listing(self.folders))
        if self.changed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.changed:
            terminalreporter.section(
                "the user's own files changed: by a test, or by an Outrider that was open", red=True
            )
            for line in self.changed:
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    """For the process that leads the run. Workers have its environment."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OwnHome())
